"""The waiting and the due records, as the fold decides."""

from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.protocol.batch import read_header, stamped
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue, GrowQueue
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.counts import counted
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import delays as delay_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.delays import (
    DELAY_ENTRIES,
    DELAYS_DUE,
    NOTHING,
    WAITING_BATCHES,
    Waiting,
    hidden,
    waiting_in,
)
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.schema import decode_count
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.present import present
from tests.virtual.commands.delay_cases import due, later, mixed, waiting
from tests.wire import batch

Q = QueueId(b"q" * 16)
KEY: PartitionKey = (Q, 0)


@pytest.fixture(params=[False, True], ids=["embedded", "shared"])
def shard(request: pytest.FixtureRequest) -> MemoryShard:
    made = MemoryShard(shared=request.param)
    made.apply(CreateQueue(Q, "q", 1, {}).envelope())
    return made


def claimed(shard: MemoryShard, writer: int) -> None:
    made = Claim().envelope()
    made.writer = writer
    shard.apply(made)


def seen(shard: MemoryShard) -> int:
    return present(shard.state.partition(KEY)).next_offset


def waits(shard: MemoryShard) -> list[tuple[int, int]]:
    """Return (due, last offset) of each batch."""
    scan = shard.kv.scan(*delay_rows.waiting_range(KEY))
    found = [WAITING_BATCHES.parts(key)[1:] for key, _ in scan]
    there = [last for _, last in found if shard.state.batch_at(hidden(KEY), last) is not None]
    assert len(there) == len(found) == waiting_in(shard.kv.get, KEY).batches
    return found


def entry(shard: MemoryShard) -> int | None:
    data = shard.kv.get(DELAY_ENTRIES.key(KEY))
    return None if data is None else decode_count(data)


def is_void(shard: MemoryShard, outcome: Outcome) -> bool:
    noted = shard.kv.get(rows.no_effect_key(len(shard.log) - 1)) is not None
    assert noted == (shard.state.shared and outcome.number < 0)
    return outcome.number < 0


def test_delayed_records_are_seen_once_they_are_due(shard: MemoryShard) -> None:
    said = shard.apply(later(KEY, waiting(50, b"a", b"b"), delay_ms=5))
    assert (said.code, said.number) == (Code.NONE, -1)
    assert seen(shard) == 0
    assert waits(shard) == [(50, 1)]
    assert waiting_in(shard.kv.get, KEY) == Waiting(2, 1, 5, 50)
    assert is_void(shard, shard.apply(due(KEY, [1], [batch(b"a", b"b")], time_ms=49)))
    assert seen(shard) == 0
    said = shard.apply(due(KEY, [1], [stamped(batch(b"a", b"b"), 50)], time_ms=50))
    assert (said.code, said.number) == (Code.NONE, 1)
    assert seen(shard) == 2
    assert waits(shard) == []
    assert waiting_in(shard.kv.get, KEY) == Waiting(0, 0, 5, 50)
    assert is_void(shard, shard.apply(due(KEY, [1], [batch(b"a", b"b")], time_ms=50)))
    assert seen(shard) == 2


def test_a_due_is_void_as_a_whole(shard: MemoryShard) -> None:
    shard.apply(later(KEY, waiting(10), waiting(20), waiting(30)))
    for removed in ([0, 1, 2], [0, 9], [9]):
        assert is_void(shard, shard.apply(due(KEY, removed, [batch(b"v")], time_ms=25)))
    assert waits(shard) == [(10, 0), (20, 1), (30, 2)]
    assert shard.apply(due(KEY, [1], [batch(b"v")], time_ms=25)).number == 1
    assert waits(shard) == [(10, 0), (30, 2)]


def test_only_the_owner_delivers(shard: MemoryShard) -> None:
    claimed(shard, 7)
    shard.apply(later(KEY, waiting(10)))
    claimed(shard, 8)
    said = shard.apply(due(KEY, [0], [batch(b"v")], time_ms=10, writer=7))
    assert said.code == Code.NOT_LEADER_OR_FOLLOWER
    assert is_void(shard, said)
    assert shard.apply(due(KEY, [0], [batch(b"v")], time_ms=10, writer=8)).number == 1


def test_records_without_a_delay_are_appended_at_once(shard: MemoryShard) -> None:
    shard.apply(later(KEY, waiting(10), now=batch(b"n", b"m"), split=batch(b"n")[:61]))
    assert seen(shard) == 2
    assert waits(shard) == [(10, 0)]


def test_rest_of_a_mixed_batch_waits_on(shard: MemoryShard) -> None:
    shard.apply(later(KEY, mixed(10, 20, 30)))
    assert waits(shard) == [(10, 2)]
    said = shard.apply(due(KEY, [2], [batch(b"v")], [waiting(20), waiting(30)], time_ms=10))
    assert said.number == 1
    assert waits(shard) == [(20, 3), (30, 4)]
    assert waiting_in(shard.kv.get, KEY).records == 2


def test_sequences_are_judged_once_for_all_of_a_batch(shard: MemoryShard) -> None:
    def sent(sequence: int, epoch: int = 0) -> Envelope:
        made = batch(b"a", b"b", b"c", producer_id=5, epoch=epoch, sequence=sequence)
        return later(KEY, waiting(10), waiting(20), now=batch(b"a"), split=made[:61])

    assert shard.apply(sent(0)).code == Code.NONE
    for _ in range(2):
        said = shard.apply(sent(0))
        assert (said.code, said.number) == (Code.NONE, -1)
    assert shard.apply(sent(4)).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert shard.apply(sent(0, epoch=1)).code == Code.NONE
    assert shard.apply(sent(3)).code == Code.INVALID_PRODUCER_EPOCH
    assert seen(shard) == 2
    assert len(waits(shard)) == 4
    plain = batch(b"d", producer_id=5, epoch=1, sequence=3)
    assert shard.apply(Envelope(Kind.APPEND, *KEY, body=plain)).number == 2


def test_a_partition_is_filed_under_what_is_due_first(shard: MemoryShard) -> None:
    assert entry(shard) is None
    for due_ms, filed in ((50, 50), (60, 50), (40, 40), (45, 40)):
        shard.state.filed.clear()
        shard.apply(later(KEY, waiting(due_ms)))
        assert entry(shard) == filed
        assert (RowKind.DELAY_DUE.byte in shard.state.filed) == (due_ms == filed)
    assert shard.kv.get(DELAYS_DUE.key(40, KEY)) == b""


def test_nothing_is_looked_for_where_nothing_waits(shard: MemoryShard) -> None:
    def start() -> int:
        return present(shard.state.partition(hidden(KEY))).log_start

    shard.apply(later(KEY, waiting(10), waiting(20), waiting(30)))
    shard.apply(due(KEY, [1], [batch(b"v")], time_ms=50))
    assert start() == 0
    shard.apply(due(KEY, [0], [batch(b"v")], time_ms=50))
    assert start() == 1
    shard.apply(due(KEY, [2], [batch(b"v")], time_ms=50))
    assert start() == 3


def test_a_deleted_queues_records_are_gone(shard: MemoryShard) -> None:
    shard.apply(GrowQueue(Q, 2).envelope())
    shard.apply(later(KEY, waiting(10)))
    shard.apply(DeleteQueue(Q).envelope())
    assert waiting_in(shard.kv.get, KEY) == NOTHING
    assert shard.state.partition(hidden(KEY)) is None
    said = shard.apply(due(KEY, [0], [batch(b"v")], time_ms=10))
    assert said.code == Code.UNKNOWN_TOPIC_ID
    assert shard.apply(later(KEY, waiting(10))).code == Code.UNKNOWN_TOPIC_ID
    assert shard.state.partition(hidden(KEY)) is None


def test_hidden_partitions_are_not_counted(shard: MemoryShard) -> None:
    shard.apply(later(KEY, waiting(10)))
    assert shard.state.counts.partitions == 1
    assert counted(shard.kv).values() == shard.state.counts.values()
    shard.apply(DeleteQueue(Q).envelope())
    assert shard.state.counts.waiting == 0
    assert counted(shard.kv).values() == shard.state.counts.values()


def test_delayed_records_are_counted(shard: MemoryShard) -> None:
    shard.apply(later(KEY, waiting(10)))
    shard.apply(later(KEY, waiting(20)))
    assert shard.state.counts.waiting == 2
    shard.apply(due(KEY, [0], [batch(b"v")], time_ms=10))
    assert shard.state.counts.waiting == 1
    assert counted(shard.kv).values() == shard.state.counts.values()


def test_readers_are_woken_by_what_they_can_see_alone(shard: MemoryShard) -> None:
    made = waiting(10, producer_id=5, epoch=0, sequence=0)
    shard.fold.apply(len(shard.log), later(KEY, made), _place())
    assert KEY not in shard.state.touched
    shard.fold.apply(len(shard.log) + 1, due(KEY, [0], [batch(b"v")], time_ms=10), _place())
    assert KEY in shard.state.touched


def test_routes_pass_on_what_was_due(shard: MemoryShard) -> None:
    shard.apply(later(KEY, waiting(10)))
    shard.apply(due(KEY, [0], [stamped(batch(b"v"), 10), batch(b"w")], time_ms=10))
    found = [one for _, one in shard.state.batches(KEY, 0, 9)]
    assert [(one.routed, one.number) for one in found] == [(False, 0), (False, 1)]


def _place() -> Any:
    from kproxy.virtual.outcome import LogLocation

    return LogLocation(0, 0, 100)


def test_header_of_a_waiting_batch_has_its_due_time() -> None:
    made = mixed(70, 50)
    assert read_header(made).max_timestamp == 50
    assert not read_header(made).is_log_append_time


@pytest.mark.parametrize(
    "made", [later(KEY, waiting(1)), due(KEY, [1, 2], [batch(b"v")], time_ms=1)]
)
def test_the_length_of_a_body_lies_where_a_batch_has_its_own(made: Envelope) -> None:
    """A reader that looks for damage passes over the bytes of clients inside (`store.tail`)."""
    assert int.from_bytes(made.body[8:12], "big") == len(made.body) - 12
