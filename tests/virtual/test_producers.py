"""The batches that repeat a remembered one, as the handler asks and as the fold judges."""

from collections.abc import Iterator
from random import Random

from kproxy.common.errors import Code
from kproxy.protocol.batch import read_header
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.producers import find, judge, remember, repeated
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.producers import BatchMetadata, producer_id_of
from kproxy.virtual.rows.queues import Partition, decode_partition
from kproxy.virtual.state import State
from kproxy.virtual.types import QueueId, ShardId
from tests.fakes import DictKv, MemoryShard
from tests.present import present
from tests.running.together import together
from tests.wire import batch

KEY = (QueueId(b"q" * 16), 0)
LAST = 0x7FFFFFFF


@together("seed", range(40))
def test_the_handler_finds_every_repetition_that_the_fold_would(seed: int) -> None:
    """Around the place where sequences begin again, with epochs that go up."""
    random = Random(seed)
    state, row, offset = State(DictKv()), Partition(), 0
    sequence, epoch = random.choice((0, LAST - 20)), 0
    found = 0
    sent: list[tuple[int, int]] = []
    for _ in range(120):
        near, count = (sequence + random.randint(-12, 12)) & LAST, random.randint(1, 3)
        if sent and random.random() < 0.3:
            near, count = random.choice(sent[-8:])
        at = epoch - random.randint(0, 1) * (epoch > 0)
        header = read_header(batch(*[b"v"] * count, producer_id=7, epoch=at, sequence=near))
        known = find(state, KEY, row, 7)
        verdict = judge(known, header, row, 1)
        repetition = verdict if isinstance(verdict, BatchMetadata) else None
        assert repeated(known, header) == repetition
        found += repetition is not None
        if verdict is None:
            remember(state, KEY, row, known, header, offset, 1)
            offset += header.record_count
            sequence = (near + header.record_count) & LAST
            sent.append((near, count))
        if random.random() < 0.02:
            sequence, epoch = 0, epoch + 1
    assert found


CREATE = CreateQueue(KEY[0], "q", 1, {}).envelope()


def sent(producer_id: int, sequence: int = 0, *, time_ms: int = 0) -> Envelope:
    body = batch(b"v", producer_id=producer_id, epoch=0, sequence=sequence)
    return Envelope(Kind.APPEND, *KEY, time_ms=time_ms, body=body)


def crowded(spilled: int) -> MemoryShard:
    """Return a partition with four producers in its row, and so many others, without rows."""
    shard = MemoryShard()
    shard.apply(CREATE)
    for producer_id in range(4):
        shard.apply(sent(producer_id))
    present(shard.state.partition(KEY)).spilled = spilled
    return shard


def test_more_producers_than_16_bits_count_do_not_end_the_process() -> None:
    """FAULT: the row could not be written, not at the next start either."""
    shard = crowded(0xFFFF)
    assert shard.apply(sent(9)).code == Code.POLICY_VIOLATION
    assert shard.apply(sent(3, 1)).code == Code.NONE, "it is known, and takes no room"
    assert decode_partition(encoded(shard)).spilled == 0xFFFF


def test_producers_that_are_remembered_by_time_are_counted_in_32_bits() -> None:
    shard = crowded(0xFFFE)
    for producer_id in range(9, 12):
        assert shard.apply(sent(producer_id, time_ms=5)).code == Code.NONE
    again = decode_partition(encoded(shard))
    assert (again.spilled, again.by_time) == (0x1_0001, True)
    assert [*map(producer_id_of, again.producers)] == [3, 9, 10, 11]


def encoded(shard: MemoryShard) -> bytes:
    return present(shard.kv.get(rows.partition_key(*KEY)))


class Reads(DictKv):
    """Counts reads, and allows no scan over producers."""

    gets = 0

    def get(self, key: bytes) -> bytes | None:
        self.gets += 1
        return super().get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        assert not RowKind.PRODUCER.of(start), "it looks at others"
        return super().scan(start, end)


def test_an_append_looks_at_no_producer_but_its_own() -> None:
    """FAULT: each 100th new producer looked at all of them: over 50 ms from 5,500 on."""
    costs = []
    for count in (10, 2000):
        kv = Reads()
        fold = Fold(State(kv, 8), ShardId(0), 1)
        place, log = LogLocation(0, 0, 1), 0
        for envelope in [CREATE, *(sent(pid, time_ms=5) for pid in range(count))]:
            assert not fold.apply(log, envelope, place).code
            kv.write(fold.state.drain())
            log += 1
        kv.gets = 0
        assert not fold.apply(log, sent(1, 1, time_ms=6), place).code
        changes = fold.state.drain()
        written = sum(len(key) + len(value or b"") for key, value in changes.items())
        costs.append((kv.gets, len(changes), written))
    assert costs[0] == costs[1]


def test_lone_producer_stays_in_the_row_of_the_partition() -> None:
    """Each start of a program is a new producer."""
    shard = MemoryShard()
    shard.apply(CREATE)
    for pid in range(20):
        for sequence in range(3):
            assert not shard.apply(sent(pid, sequence, time_ms=5)).code
            assert producer_id_of(present(shard.state.partition(KEY)).producers[-1]) == pid
