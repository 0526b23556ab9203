"""A reader that leaves aborted records out as Java's consumer does reads committed ones, and no
more.
"""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.fetching import aborted, streamed_response
from kproxy.fetching.context import FetchContext, FetchPartition
from kproxy.fetching.poll import Poll, PollLimits
from kproxy.fetching.streamed_response import Budget, PartitionRead, Pins, plan_read
from kproxy.loop.pace import Pace
from kproxy.protocol.batch import control_batch, read_header
from kproxy.store.rocks import RocksKv
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.transactions import ABORTED, Aborted
from kproxy.virtual.state import State
from kproxy.virtual.types import QueueId
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.commands import command
from tests.fakes import MemorySegments, MemoryShard, memory_worker
from tests.handlers.transactional import Transactional
from tests.held import HELD_S, held_by, slowness
from tests.wire import batch

QUEUE = QueueId(b"q" * 16)
KEY = (QUEUE, 0)
BIG = 1 << 40


def shard_with_a_queue() -> MemoryShard:
    shard = MemoryShard()
    values = {"name": "q", "partitions": 1, "configs": {}}
    shard.apply(command(Kind.CREATE, QUEUE, values=values))
    return shard


def followed_at(shard: Any, offset: int, max_bytes: int = BIG) -> FetchPartition:
    followed = FetchPartition(("q", 0))
    followed.key, followed.shard = KEY, shard
    followed.offset, followed.max_bytes = offset, max_bytes
    return followed


def row_of(shard: Any) -> Partition:
    row: Partition | None = shard.state.partition(KEY)
    assert row is not None
    return row


class Consumer:
    """A consumer that reads as Java's `CompletedFetch`: it knows nothing but an answer."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self.offset = 0
        self.values: list[tuple[int, int]] = []

    def poll(self, max_bytes: int) -> PartitionRead:
        followed = followed_at(self._shard, self.offset, max_bytes)
        for _ in range(1000):
            budget = Budget(max_bytes, read_committed=True)
            part = plan_read(followed, budget)
            if not budget.searching:
                break
            assert part.held_back
            assert budget.first
        assert part.code == 0
        self._take(part)
        return part

    def _take(self, part: PartitionRead) -> None:
        assert part.aborted is not None
        waiting = sorted(part.aborted, key=lambda one: one[1])
        dropped: set[int] = set()
        for base, _, position, length in part.batches:
            data = bytes(self._shard.segments.data[position : position + length])
            header = read_header(data)
            last = base + header.last_offset_delta
            while waiting and waiting[0][1] <= last:
                dropped.add(waiting.pop(0)[0])
            if header.is_control:
                if not int.from_bytes(data[68:70], "big"):
                    dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                for offset in range(max(base, self.offset), last + 1):
                    self.values.append((offset, header.producer_id))
            self.offset = last + 1


STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["write", "write", "commit", "abort", "plain"])),
    min_size=5,
    max_size=100,
)


def stepped(shard: MemoryShard, steps: list[tuple[int, str]]) -> Iterator[list[tuple[int, int]]]:
    """Yield committed records behind each step, by offset, of what is decided."""
    makers = [Transactional(shard, KEY, f"t{n}", 1 + n % 2) for n in range(5)]
    written: dict[int, list[tuple[int, int]]] = {n: [] for n in range(5)}
    committed: list[tuple[int, int]] = []
    for number, (which, what) in enumerate(steps):
        one = makers[which]
        if what == "plain":
            offset = shard.apply(Envelope(Kind.APPEND, *KEY, body=batch(b"v"))).number
            committed.append((offset, -1))
        elif what == "write":
            count = 1 + number % 3
            base = one.write(*[b"v" * (number % 50)] * count)
            written[which] += [(base + n, one.producer_id) for n in range(count)]
        elif one.is_open:
            one.end(what == "commit")
            if what == "commit":
                committed += written[which]
            written[which] = []
        yield sorted(committed)


@given(
    steps=STEPS,
    sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=5),
    rows_max=st.integers(1, 8),
    at_once=st.integers(1, 6),
)
@settings(deadline=None, max_examples=250)
def test_exactly_what_was_committed_is_read(
    steps: list[tuple[int, str]], sizes: list[int], rows_max: int, at_once: int
) -> None:
    """Also while it is written, whatever is looked at and returned at a time."""
    shard = shard_with_a_queue()
    along, stable, committed = Consumer(shard), 0, list[tuple[int, int]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aborted, "ROWS_MAX", rows_max)
        patch.setattr(streamed_response, "_BATCHES_AT_ONCE", at_once)
        for number, known in enumerate(stepped(shard, steps)):
            committed = known
            row = row_of(shard)
            assert stable <= row.last_stable <= row.next_offset
            stable = row.last_stable
            part = along.poll(sizes[number % len(sizes)])
            assert (part.last_stable, part.high_watermark) == (stable, row.next_offset)
            assert along.offset <= stable
        for consumer in (along, Consumer(shard)):
            turn = 0
            while consumer.offset < stable:
                before = consumer.offset
                consumer.poll(sizes[turn % len(sizes)])
                assert consumer.offset > before
                turn += 1
            assert not consumer.poll(BIG).held_back
            assert consumer.values == [one for one in committed if one[0] < stable]


@given(steps=STEPS)
@settings(deadline=None, max_examples=50)
def test_read_uncommitted_has_all_and_the_last_stable_offset(steps: list[tuple[int, str]]) -> None:
    shard = shard_with_a_queue()
    for _ in stepped(shard, steps):
        pass
    row = row_of(shard)
    part = plan_read(followed_at(shard, 0), Budget(BIG))
    assert part.aborted is None
    assert (part.last_stable, part.high_watermark) == (row.last_stable, row.next_offset)
    assert len(part.batches) == len(list(shard.state.batches(KEY, 0, row.next_offset)))


# -- where very many were aborted


MANY = 100_000


class Stored:
    """A shard whose rows lie in RocksDB, as a worker's do."""

    def __init__(self, path: Path) -> None:
        self.kv = RocksKv(path, 8 << 20)
        self.state = State(self.kv)
        self.segments = MemorySegments()
        self.serving = True

    def put(self, found: dict[bytes, bytes | None]) -> None:
        self.kv.write(found)
        self.kv.push()


def batch_row(offset: int) -> tuple[bytes, bytes]:
    return batch_rows.batch_key(*KEY, offset), batch_rows.Batch(0, 0, 78, 0, 0, 0, 0, 0).encode()


def short_ones(behind_a_long_one: bool) -> dict[bytes, bytes | None]:
    """Record and marker in turn; perhaps in a transaction that began at 0 and ends last."""
    end = 2 * MANY + 1
    found: dict[bytes, bytes | None] = dict(batch_row(offset) for offset in range(end + 1))
    for number in range(MANY):
        first = 1 + 2 * number
        one = Aborted(number, first, 0 if behind_a_long_one else first + 2)
        found[ABORTED.key(KEY, first + 1)] = ABORTED.encode(one)
    if behind_a_long_one:
        found[ABORTED.key(KEY, end)] = ABORTED.encode(Aborted(MANY, 0, end + 1))
    return found


def all_at_once() -> dict[bytes, bytes | None]:
    """Return rows of many that are open at a time, and end in the worst order:

    the last one first.
    """
    found: dict[bytes, bytes | None] = dict(batch_row(offset) for offset in range(2 * MANY))
    for number in range(MANY):
        stable = 0 if number < MANY - 1 else 2 * MANY
        one = Aborted(number, MANY - 1 - number, stable)
        found[ABORTED.key(KEY, MANY + number)] = ABORTED.encode(one)
    return found


async def polled(worker: Worker, shard: Any, offset: int) -> PartitionRead:
    context = FetchContext()
    followed = followed_at(shard, offset)
    context.follow(followed)
    followed.as_of = worker.queue_changes
    limits = PollLimits(
        min_bytes=1, max_bytes=BIG, max_wait_s=0, full=True, read_committed=True
    )  # fmt: skip
    pace = Pace()
    found = await Poll(worker, context, limits, pace, Pins()).run(NextRequestSignal())
    return found[0]


@pytest.mark.parametrize(
    ("make", "offset", "listed"),
    [
        (partial(short_ones, False), 1, 500),
        (partial(short_ones, True), 1, 501),
        (partial(short_ones, True), 100_001, 501),
        (all_at_once, 0, 1000),
        (all_at_once, 50_000, 51_000),
    ],
    ids=["short", "behind-a-long-one", "within-a-long-one", "at-once", "at-once-later"],
)
async def test_very_many_do_not_hold_the_loop(
    tmp_path: Path, make: Callable[[], dict[bytes, bytes | None]], offset: int, listed: int
) -> None:
    made = make()
    shard = Stored(tmp_path / "rows")
    row = Partition()
    row.next_offset, row.any_aborted = len([key for key in made if key[:1] == b"b"]), True
    shard.put({rows.partition_key(*KEY): row.encode(), **made})
    part, held = await held_by(polled(memory_worker(), shard, offset))
    assert len(part.batches) == 1000
    assert part.aborted is not None
    assert len(part.aborted) == listed
    assert held < HELD_S * slowness()


def test_stretch_of_many_is_cut_where_the_found_ones_are_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aborted, "ROWS_MAX", 3)
    shard = shard_with_a_queue()
    for number in range(10):
        one = Transactional(shard, KEY, f"t{number}")
        one.write(b"v")
        one.end(commit=False)
    consumer = Consumer(shard)
    part = consumer.poll(BIG)
    assert part.aborted is not None
    assert (len(part.batches), len(part.aborted)) == (6, 3)
    while consumer.offset < 20:
        consumer.poll(BIG)
    assert consumer.values == []


def test_control_record_is_decoded() -> None:
    """So the consumer above reads it: version and type begin the key."""
    for commit in (False, True):
        data = control_batch(1, 1, commit=commit, time_ms=5)
        assert struct.unpack_from(">hh", data, 66) == (0, int(commit))
