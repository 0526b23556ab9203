"""The cluster loses the end of a log: that is said, nothing else is wrong, the shard goes on."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint

from kproxy.cluster import lost_end, publisher, rebuild, shard_owner
from kproxy.cluster.log_prefix import mark
from kproxy.common.errors import Code
from kproxy.log import truncation
from kproxy.metadata.catalogue import QueueIds
from kproxy.protocol.batch import control_batch
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.producers import AllocateProducerId
from kproxy.virtual.commands.transactions import Begin, Marker
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.transactions import tag_of
from kproxy.virtual.types import PartitionKey, ShardId
from tests.commands import command
from tests.harness import patient
from tests.present import present
from tests.simulation.workers.cluster import World
from tests.simulation.workers.offset_topic import SimRowsWriter
from tests.simulation.workers.sim_worker import Life
from tests.wire import batch

OTHER = 1 << 40  # a writer
PID = 77


@pytest.fixture
async def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Life]:
    """Yield one worker on a simulated cluster, on a real disk and in real time."""
    world = World(random.Random(1), 1, tmp_path)
    world.calm = True
    monkeypatch.setattr(world, "delay", lambda: 0.0)
    monkeypatch.setattr(publisher, "RowsWriter", SimRowsWriter)
    monkeypatch.setattr(publisher, "_PERIOD_S", 3600.0)  # a test publishes itself
    monkeypatch.setattr(rebuild, "read_to_end", world.read_to_end)
    monkeypatch.setattr(shard_owner, "_AGAIN_S", 0.01)
    monkeypatch.setattr(truncation, "_SHORT_S", 0.0)
    life = Life(world, "w0", 1, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life.run)
        await checkpoint()
        life.shards.assigned(frozenset({0}))
        yield life
        await life.crash()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def second_life(before: Life, name: str = "w1") -> AsyncIterator[Life]:
    """Run another worker, once the one before has ended."""
    life = Life(before.world, name, before.writer + int(name[1:]), 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life.run)
        await checkpoint()
        life.shards.assigned(frozenset({0}))
        yield life
        await life.crash()
        tasks.cancel_scope.cancel()


async def served(life: Life, after: Shard | None = None) -> Shard:
    with anyio.fail_after(patient(20)):
        while (shard := life.shards.serving(0)) is None or shard is after:
            await anyio.sleep(0.001)
    return shard


async def put(shard: Shard, key: PartitionKey, *values: bytes, **of: Any) -> list[int]:
    """Append records, each a batch; return their offsets."""
    envelopes = [Envelope(Kind.APPEND, *key, body=batch(value, **of)) for value in values]
    outcomes = await shard.append(envelopes).wait()
    assert not any(outcome.code for outcome in outcomes)
    return [outcome.number for outcome in outcomes]


async def made(shard: Shard) -> PartitionKey:
    queue_id = QueueIds(1).new(ShardId(0))
    values: dict[str, Any] = {"name": "q", "partitions": 1, "configs": {}}
    outcomes = await shard.append([command(Kind.CREATE, queue_id, values=values)]).wait()
    assert outcomes[0].code == Code.NONE
    return queue_id, 0


def row(shard: Shard, key: PartitionKey) -> Partition:
    return present(shard.state.partition(key))


def spans(shard: Shard, key: PartitionKey) -> list[tuple[int, int]]:
    """Return the first and the last offset of each batch."""
    found = shard.state.batches(key, 0, 1 << 40)
    return [(last - one.last_delta, last) for last, one in found]


def numbers(*lines: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(one.get("queue"), one.get("partition"), one["first"], one["last"]) for one in lines]


def of(said: list[Any], event: str) -> list[dict[str, Any]]:
    return [line for line in said if line["event"] == event]


async def publish(life: Life) -> int:
    owner = life.shards._owners[0]
    await present(owner.publisher).publish()
    return life.world.published[0].seen_as_of


def lose(world: World, count: int) -> int:
    """Lose the last envelopes of the log; return its end now."""
    del world.logs[0][-count:]
    return len(world.logs[0])


@pytest.mark.parametrize("published", [False, True], ids=["rows before", "rows behind"])
async def test_lost_records_are_said_and_their_offsets_are_not_given_again(
    life: Life, published: bool
) -> None:
    """FAULT: nobody said so; with rows of what was lost the shard was served no more, and else
    offsets and producer ids were given twice."""
    shard = await served(life)
    key = await made(shard)
    assert await put(shard, key, *(b"%d" % n for n in range(10))) == list(range(10))
    ended = len(life.world.logs[0])
    if published:
        assert await publish(life) == ended
    with structlog.testing.capture_logs() as said:
        end = lose(life.world, 4)
        again = await served(life, shard)
    assert numbers(*of(said, "log_lost")) == [(None, None, end, ended - 1)]
    assert numbers(*of(said, "records_lost")) == [("q", 0, 6, 9)]
    assert row(again, key).next_offset == 10
    assert await put(again, key, b"new") == [10]
    assert spans(again, key) == [*((n, n) for n in range(6)), (6, 9), (10, 10)]
    assert again.claim_offset >= ended  # no log offset is given twice


async def test_a_log_that_is_as_long_again_is_seen_by_its_leader(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: the worker went on with what the log had not, and published it."""
    shard = await served(life)
    key = await made(shard)
    await put(shard, key, b"0", b"1", b"2")
    log: Any = shard.log
    applied = log.next_offset
    log.saw_end(applied, applied, 5)
    lose(life.world, 2)
    for _ in range(4):
        life.world.land(0, Envelope(Kind.APPEND, *key, body=batch(b"other"), writer=OTHER))
    with structlog.testing.capture_logs() as said:
        log.saw_end(len(life.world.logs[0]), applied, 6)
        again = await served(life, shard)
    assert numbers(*of(said, "records_lost")) == [("q", 0, 1, 2)]
    assert spans(again, key) == [(n, n) for n in range(5)]  # as the log has them


async def test_a_leader_that_has_all_changes_nothing(life: Life) -> None:
    shard = await served(life)
    key = await made(shard)
    await put(shard, key, b"0")
    log: Any = shard.log
    for epoch in (5, 6, 7):
        log.saw_end(log.next_offset, log.next_offset, epoch)
        await anyio.sleep(0.02)
    assert life.shards.serving(0) is shard
    assert await put(shard, key, b"1") == [1]


@pytest.mark.parametrize("asked_again", [False, True])
async def test_a_leader_of_old_that_does_not_know_the_end_is_not_believed(
    life: Life, monkeypatch: pytest.MonkeyPatch, asked_again: bool
) -> None:
    """It stood still meanwhile, and answers before it has heard that another one leads."""
    shard = await served(life)
    key = await made(shard)
    await put(shard, key, b"0", b"1", b"2")
    await publish(life)
    log: Any = shard.log
    true_end = life.link.end

    async def of_old(partition: int) -> int:
        return int(await true_end(partition)) - 2

    with structlog.testing.capture_logs() as said:
        if asked_again:
            monkeypatch.setattr(life.link, "end", of_old)
        for _ in range(3):
            log.saw_end(log.next_offset - 2, log.next_offset)
        with anyio.fail_after(patient(20)):
            while not of(said, "shard_log_changed"):
                await anyio.sleep(0.001)
        await anyio.sleep(0.2)
        monkeypatch.setattr(life.link, "end", true_end)
        again = await served(life, shard)
    assert not of(said, "log_lost")
    assert spans(again, key) == [(0, 0), (1, 1), (2, 2)]
    assert await put(again, key, b"3") == [3]


@pytest.mark.parametrize("room", [1 << 20, 0])
async def test_commands_of_other_shards_are_appended_again_or_said(
    life: Life, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """FAULT: a transaction's end was lost with the log, and nobody told it once more: readers of
    committed records stood still for ever. Nobody said so if it was too large."""
    monkeypatch.setattr(lost_end, "_TOLD_BYTES_MAX", room)
    shard = await served(life)
    key = await made(shard)
    begin = Begin(PID, 0, 2, 5, tag_of("t"), [key], [], 0)
    assert (await shard.append([begin.envelope()]).wait())[0].code == Code.NONE
    await put(shard, key, b"0", producer_id=PID, epoch=0, sequence=0, attributes=0x10)
    assert row(shard, key).first_open == 0
    marker = Marker(control_batch(PID, 0, commit=True, time_ms=1), PID, 0, 5, True, [key], (), 1)
    await shard.append([marker.envelope()]).wait()
    assert row(shard, key).first_open < 0
    lose(life.world, 1)
    with structlog.testing.capture_logs() as said:
        again = await served(life, shard)
    (log_lost,) = of(said, "log_lost")
    assert (log_lost["untold"], row(again, key).first_open < 0) == (
        (0, True) if room else (1, False)
    )


async def test_without_a_copy_the_rows_say_what_is_lost(life: Life) -> None:
    """FAULT: the shard was served no more."""
    shard = await served(life)
    key = await made(shard)
    await put(shard, key, *(b"%d" % n for n in range(10)))
    as_of = await publish(life)
    await life.crash()
    life.world.lose("w0")
    end = lose(life.world, 4)
    async with second_life(life) as other:
        with structlog.testing.capture_logs() as said:
            again = await served(other)
        assert numbers(*of(said, "log_lost")) == [(None, None, end, as_of - 1)]
        assert numbers(*of(said, "records_lost")) == [("q", 0, 6, 9)]
        assert spans(again, key) == [*((n, n) for n in range(6)), (6, 9)]
        assert await put(again, key, b"new") == [10]


async def test_a_worker_that_died_after_it_had_filled_the_log(life: Life) -> None:
    """The rows are older than the loss still, and the log does not end before them any more."""
    shard = await served(life)
    key = await made(shard)
    await put(shard, key, *(b"%d" % n for n in range(10)))
    await publish(life)
    await life.crash()
    life.world.lose("w0")
    end = lose(life.world, 4)
    filled = mark(end)
    filled.writer = OTHER
    life.world.land(0, Envelope(Kind.APPEND, *key, body=batch(b"between"), writer=OTHER))
    for _ in range(5):
        life.world.land(0, filled)
    async with second_life(life) as other:
        again = await served(other)
        assert spans(again, key) == [*((n, n) for n in range(6)), (6, 9)]
        assert await put(again, key, b"new") == [10]
        await publish(other)
        await other.crash()
        life.world.lose("w1")
        async with second_life(life, "w2") as third:  # from rows as of behind all that
            again = await served(third)
            assert spans(again, key) == [*((n, n) for n in range(6)), (6, 9), (10, 10)]


@pytest.mark.parametrize("published", [False, True], ids=["rows before", "rows behind"])
async def test_a_retry_of_what_the_log_took_at_a_lost_offset_is_seen_behind_it(
    life: Life, published: bool
) -> None:
    """FAULT: it was answered as a repetition, and no consumer that was ahead ever saw it."""
    shard = await served(life)
    key = await made(shard)
    await put(shard, key, *(b"%d" % n for n in range(10)))
    if published:
        await publish(life)
    lose(life.world, 4)

    def sent(shard: Shard) -> Any:
        body = batch(b"new", producer_id=PID, epoch=0, sequence=0)
        return shard.append([Envelope(Kind.APPEND, *key, body=body)])

    assert (await sent(shard).wait())[0].code == Code.NOT_LEADER_OR_FOLLOWER
    again = await served(life, shard)
    assert not (await sent(again).wait())[0].code
    assert [last for _, last in spans(again, key)][-2:] == [9, 10]
    seen = [one for at, one in again.state.batches(key, 0, 1 << 40) if at != 9]
    read = [again.segments.batch(one.segment, one.position, one.length) for one in seen]
    assert sum(b"new" in present(data) for data in read) == 1
    assert await put(again, key, b"next", producer_id=PID, epoch=0, sequence=1) == [11]


async def test_a_batch_over_the_end_of_what_is_lost_is_seen_as_a_whole(life: Life) -> None:
    shard = await served(life)
    key = await made(shard)
    await put(shard, key, *(b"%d" % n for n in range(10)))
    lose(life.world, 4)
    many = batch(*[b"new"] * 6, producer_id=PID, epoch=0, sequence=0)
    late = await shard.append([Envelope(Kind.APPEND, *key, body=many)]).wait()
    assert late[0].code == Code.NOT_LEADER_OR_FOLLOWER
    again = await served(life, shard)
    assert spans(again, key) == [*((n, n) for n in range(6)), (12, 17)]


async def test_a_producer_id_of_a_lost_offset_is_given_to_nobody(life: Life) -> None:
    shard = await served(life)
    ids = [AllocateProducerId().envelope() for _ in range(4)]
    known = [outcome.number for outcome in await shard.append(ids).wait()]
    lose(life.world, 2)
    late = await shard.append([AllocateProducerId().envelope()]).wait()
    assert late[0].code == Code.NOT_LEADER_OR_FOLLOWER
    again = await served(life, shard)
    (given,) = await again.append([AllocateProducerId().envelope()]).wait()
    assert given.number > max(known)


async def test_a_command_of_another_shard_at_a_lost_offset_is_appended_again(life: Life) -> None:
    """FAULT: rows as of behind it voided it, though the other shard heard that it is there."""
    shard = await served(life)
    key = await made(shard)
    begin = Begin(PID, 0, 2, 5, tag_of("t"), [key], [], 0)
    assert (await shard.append([begin.envelope()]).wait())[0].code == Code.NONE
    await put(shard, key, b"0", producer_id=PID, epoch=0, sequence=0, attributes=0x10)
    await put(shard, key, b"1", b"2", b"3")
    await publish(life)
    lose(life.world, 3)
    marker = Marker(control_batch(PID, 0, commit=True, time_ms=1), PID, 0, 5, True, [key], (), 1)
    landed = marker.envelope()
    landed.writer = OTHER
    life.world.land(0, landed)
    log: Any = shard.log
    for _ in range(3):
        log.saw_end(len(life.world.logs[0]), log.next_offset)
    again = await served(life, shard)
    assert row(again, key).first_open < 0
