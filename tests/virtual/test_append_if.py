"""The appends on the condition that a partition ends where the writer expects."""

import pytest

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.records import AppendIf, Trim
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.wire import batch

KEY: PartitionKey = (QueueId(bytes(16)), 0)


@pytest.fixture
def shard() -> MemoryShard:
    made = MemoryShard()
    made.apply(CreateQueue(KEY[0], "q", 1, {}).envelope())
    return made


def append(shard: MemoryShard, end: int, *values: bytes, sequence: int = -1) -> Outcome:
    producer, epoch = (5, 0) if sequence >= 0 else (-1, -1)
    data = batch(*values, producer_id=producer, epoch=epoch, sequence=sequence)
    return shard.apply(Envelope(Kind.APPEND_IF, *KEY, body=AppendIf.body(data, end)))


def test_the_second_of_two_writers_that_expect_one_end_is_refused(shard: MemoryShard) -> None:
    assert append(shard, 0, b"a", b"b").number == 0
    refused = append(shard, 0, b"c")
    assert refused.code == Code.INVALID_RECORD
    assert refused.message == "the partition ends at 2, not at 0 (kproxy.if-end-offset)"
    assert append(shard, 2, b"c").number == 2
    assert append(shard, 99, b"d").code == Code.INVALID_RECORD


def test_a_retry_is_answered_as_the_first_was(shard: MemoryShard) -> None:
    assert append(shard, 0, b"a", sequence=0).number == 0
    again = append(shard, 0, b"a", sequence=0)
    assert (again.code, again.number) == (Code.NONE, 0)


def test_a_refused_batch_leaves_its_sequence_free(shard: MemoryShard) -> None:
    assert append(shard, 7, b"a", sequence=0).code == Code.INVALID_RECORD
    assert append(shard, 0, b"a", sequence=0).number == 0


def test_the_end_stays_where_records_are_deleted(shard: MemoryShard) -> None:
    append(shard, 0, b"a", b"b")
    shard.apply(Trim(*KEY, -1).envelope())
    assert append(shard, 2, b"c").number == 2


def test_a_condition_of_a_later_kproxy_is_refused(shard: MemoryShard) -> None:
    body = bytearray(AppendIf.body(batch(b"a"), 0))
    body[-9] = 2
    with pytest.raises(ValueError, match="a command APPEND_IF has form 2"):
        shard.apply(Envelope(Kind.APPEND_IF, *KEY, body=bytes(body)))
