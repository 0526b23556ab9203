"""A shared log over a link that a test drives: order, unknown fates, ends, full disks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kproxy.cluster.publisher import admitted
from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.log.disk_space import DiskSpace
from kproxy.log.sequencer import LogChanged, Sequencer
from kproxy.log.shared import SharedLog
from kproxy.loop import pace
from kproxy.store.segments import Segments
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.state import State
from tests.fakes import DictKv
from tests.harness import until


class Link:
    """A link that keeps what is asked of it."""

    writer = 1

    def __init__(self) -> None:
        self.sent: list[Envelope] = []
        self.reads: list[tuple[int, int]] = []
        self.counter = 0
        self.end_is = 0
        self.full = False

    def next_counter(self) -> int:
        self.counter += 1
        return self.counter

    def send(self, partition: int, envelope: Envelope) -> None:
        if self.full:
            raise KafkaError(Code.REQUEST_TIMED_OUT, "full")
        self.sent.append(envelope)

    def read(self, partition: int, start: int, end: int) -> None:
        self.reads.append((start, end))

    async def end(self, partition: int) -> int:
        return self.end_is


def deliver(
    first: int, batch: list[Envelope], places: list[LogLocation], end: tuple[int, int]
) -> list[Outcome]:
    return [Outcome(number=first + i) for i in range(len(batch))]


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[SharedLog, Link]]:
    link, segments = Link(), Segments(directory)
    segments.start(0)
    log = SharedLog(
        0, segments, deliver, link, segment_bytes=1000, disk_space=DiskSpace(directory, 1)
    )
    log.next_offset = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.run)
        yield log, link
        log.close()
    segments.close()


def envelope(body: bytes = b"body") -> Envelope:
    return Envelope(Kind.APPEND, body=body)


def theirs() -> Envelope:
    return Envelope(Kind.APPEND, body=b"theirs", writer=2)


async def test_outcomes_come_with_the_reports(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, link):
        ticket = log.append([envelope(), envelope()])
        log.reported([(1, 0)])
        await anyio.sleep(0.01)
        assert not ticket.done
        log.reported([(2, 1)])
        assert [outcome.number for outcome in await ticket.wait()] == [0, 1]
        assert not link.reads


async def test_a_gap_is_read_first(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, link):
        ticket = log.append([envelope()])
        log.reported([(1, 2)])
        assert link.reads == [(0, 2)]
        await log.was_read([(0, theirs()), (1, theirs())])
        assert (await ticket.wait())[0].number == 2
        assert log.next_offset == 3


async def test_a_part_of_the_log_is_never_skipped(tmp_path: Path) -> None:
    """The shard is given up where what comes next is not what follows."""
    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="part of the log is missing")):
        async with running(tmp_path) as (log, _):
            await log.was_read([(0, theirs())])
            log._sequencer.read(1, theirs())  # and its envelope is lost
            await log.was_read([(2, theirs())])
            await anyio.sleep(5)
    (segment,) = tmp_path.glob("*.log")
    assert segment.read_bytes().count(b"theirs") == 1


async def test_a_fate_not_known_is_answered_and_read_later(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, link):
        ticket = log.append([envelope(), envelope()])
        log.reported([(1, None), (2, 1)])
        assert link.reads == [(0, 1)]
        await log.was_read([(0, link.sent[0])])  # it had landed after all
        codes = [outcome.code for outcome in await ticket.wait()]
        assert codes == [Code.REQUEST_TIMED_OUT, Code.NONE]
        assert log.next_offset == 2


async def test_records_of_others_are_read_when_the_end_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, link):
        log.saw_end(3, 0)
        assert link.reads == [(0, 3)]
        await log.was_read([(i, theirs()) for i in range(3)])
        log.append([envelope()])
        log.saw_end(4, 3)
        assert len(link.reads) == 1  # that is ours, on its way
        log.saw_end(4, 3)
        assert link.reads[1] == (3, 4)  # it takes long


async def test_catching_up_waits_for_the_end_that_there_is(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, link):
        link.end_is = 2
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.catch_up)
            await anyio.sleep(0.01)
            assert link.reads == [(0, 2)]
            await log.was_read([(0, theirs()), (1, theirs())])
        assert log.next_offset == 2


async def test_records_of_others_are_applied_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: up to 4,000 envelopes in one turn of the loop, and four deletions of any size."""
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    turns, pieces = 0, list[tuple[int, int]]()  # envelopes, and in which turn

    def noted(first: int, batch: list[Envelope], *more: Any) -> list[Outcome]:
        pieces.append((len(batch), turns))
        return deliver(first, batch, *more)

    async with running(tmp_path) as (log, _):
        monkeypatch.setattr(log, "_deliver", noted)
        heavy = [Envelope(Kind.DELETE, writer=2) for _ in range(3)]
        await log.was_read(list(enumerate([theirs() for _ in range(2000)] + heavy)))
        while log.next_offset < 2003:
            turns += 1
            await checkpoint()
    assert [size for size, _ in pieces if size > 0] == [200] * 10 + [1] * 3
    assert len({turn for _, turn in pieces}) == len(pieces)


async def test_a_log_that_stays_shorter_than_what_was_applied_was_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproxy.log.truncation._SHORT_S", 0.02)

    with pytest.RaisesGroup(LogChanged):
        async with running(tmp_path) as (log, _):
            await log.was_read([(i, theirs()) for i in range(3)])
            await anyio.sleep(0.01)
            log.saw_end(1, 3)  # a new leader that does not know its end yet
            log.saw_end(3, 3)
            await anyio.sleep(0.03)
            log.saw_end(1, 3)
            assert not log.append([envelope()]).done
            await anyio.sleep(0.03)
            log.saw_end(1, 3)
            with pytest.raises(KafkaError) as refused:
                await log.append([envelope()]).wait()
            assert refused.value.code == Code.NOT_LEADER_OR_FOLLOWER
            await anyio.sleep_forever()


async def test_no_room_in_the_line_is_a_retriable_error(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, link):
        link.full = True
        outcome = (await log.append([envelope()]).wait())[0]
        assert outcome.code == Code.REQUEST_TIMED_OUT


async def test_waiter_is_told_to_ask_elsewhere_when_the_shard_is_left(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, _):
        ticket = log.append([envelope()])
        log.close()
        assert (await ticket.wait())[0].code == Code.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(KafkaError):
            await log.append([envelope()]).wait()


async def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproxy.log.shared._RETRY_S", 0.01)

    async with running(tmp_path) as (log, _):
        real, refusals = Segments.write, 3

        def write(self: Segments, buffers: list[bytes], total: int, sync: bool) -> None:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise OSError(28, "No space left on device")
            real(self, buffers, total, sync)

        monkeypatch.setattr(Segments, "write", write)
        ticket = log.append([envelope()])
        log.reported([(1, 0)])
        assert (await ticket.wait())[0].number == 0
        assert not refusals


async def test_nothing_is_applied_behind_what_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: after any error of the order's what came next was applied, over the hole."""

    async def fail() -> None:
        async with running(tmp_path) as (log, _):
            monkeypatch.setattr(Sequencer, "read_all", lambda *_: {}[0])
            await log.was_read([(0, Envelope(Kind.APPEND, writer=2))])
            monkeypatch.undo()
            await log.was_read([(0, Envelope(Kind.APPEND, writer=2))])
            assert not log.next_offset
            await anyio.sleep(5)

    with pytest.raises(ExceptionGroup) as raised:
        await fail()
    assert isinstance(raised.value.exceptions[0], KeyError)


async def test_segments_roll(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, _):
        for i in range(5):
            await log.was_read([(i, Envelope(Kind.APPEND, body=bytes(600), writer=2))])
            await until(lambda i=i: log.next_offset == i + 1)  # type: ignore[misc]
        await log.roll()
    assert len(list(tmp_path.glob("*.log"))) == 4


async def test_nothing_overtakes_what_the_full_line_refused(tmp_path: Path) -> None:
    """FAULT S10: of one ticket's envelopes a later one went out where an earlier one did not."""

    async with running(tmp_path) as (log, link):
        codes = iter([None, Code.REQUEST_TIMED_OUT, None])

        def send(partition: int, envelope: Envelope) -> None:
            code = next(codes)
            if code is not None:
                raise KafkaError(code, "full")
            link.sent.append(envelope)

        link.send = send  # type: ignore[method-assign]
        told: list[str] = []
        log.on_refusal = lambda: told.append("refused")
        ticket = log.append([envelope(), envelope(), envelope()])
        assert told  # FAULT: it was heard of once the first had landed
        assert len(link.sent) == 1
        log.reported([(1, 0)])
        found = [outcome.code for outcome in await ticket.wait()]
        assert found == [Code.NONE, Code.REQUEST_TIMED_OUT, Code.REQUEST_TIMED_OUT]


async def test_one_that_is_too_large_holds_up_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as (log, link):
        real = link.send

        def send(partition: int, envelope: Envelope) -> None:
            if len(envelope.body) > 10:
                raise KafkaError(Code.MESSAGE_TOO_LARGE, "too large")
            real(partition, envelope)

        link.send = send  # type: ignore[method-assign]
        log.on_refusal = lambda: pytest.fail("who sent it does not send it again")
        ticket = log.append([envelope(bytes(11)), envelope()])
        log.reported([(2, 0)])
        found = [outcome.code for outcome in await ticket.wait()]
        assert found == [Code.MESSAGE_TOO_LARGE, Code.NONE]


async def test_produces_wait_where_rows_wait_for_their_publication(tmp_path: Path) -> None:
    """FAULT: their keys grew in memory for as long as the cluster did not take the rows."""
    state = State(DictKv(), 8)
    state.unpublished = set()
    settings = Config(bootstrap_servers="host:1", shards=2, publish_rows_max=2)
    async with running(tmp_path) as (log, _):
        log.admitted = partial(admitted, state, settings)

        def refused(kind: Kind) -> Code | None:
            error = log.append([Envelope(kind, body=b"x")]).error
            return None if error is None else error.code

        for waiting, kinds in ((19, {}), (20, {Kind.APPEND}), (40, {Kind.APPEND, Kind.COMMIT})):
            while len(state.unpublished) < waiting:
                key = b"%d" % len(state.unpublished)
                state.put(rows.queue_key(key.decode()), b"row")
                state.drain()
            for kind in (Kind.APPEND, Kind.COMMIT, Kind.DELETE, Kind.CLAIM):
                assert refused(kind) == (Code.KAFKA_STORAGE_ERROR if kind in kinds else None)
        state.unpublished = set()  # the cluster has taken them
        assert refused(Kind.APPEND) is None
