"""Rows: what this kproxy writes it reads, and a form of a later one it refuses."""

import struct
from collections.abc import Callable

import pytest

from kproxy.common.errors import Code
from kproxy.virtual import producers
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import producers as producer_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.offsets import Committed
from kproxy.virtual.rows.producers import BatchMetadata
from kproxy.virtual.rows.queues import Partition, Queue, Term
from kproxy.virtual.types import LogOffset, QueueId
from tests.commands import command
from tests.fakes import MemoryShard
from tests.present import present
from tests.wire import batch

ID = QueueId(bytes(range(16)))
QUEUE = Queue(
    name="q", queue_id=ID, partitions=1, wanted=1, created_at=LogOffset(0),
    changed_at=LogOffset(0), configs={"a": "b"},
)  # fmt: skip
FORM_AT: list[tuple[bytes, int, Callable[[bytes], object]]] = [
    (Partition().encode(), 0, rows.decode_partition),
    (Batch(0, 0, 1, 0, 0, 1, 5, 5).encode(), 0, batch_rows.decode_batch),
    (
        producer_rows.producer_with(None, 7, 0, BatchMetadata(0, 0, 0, 0)),
        10,
        producer_rows.decode_producer,
    ),
    (Committed(3, -1, 0, "m").encode(), 12, offset_rows.decode_committed),
    (Committed(3, -1, 0, "m", 5).encode(), 12, offset_rows.decode_committed),
    (QUEUE.encode(), 40, lambda data: rows.decode_queue("q", data)),
    (Term(3, 4).encode(), 0, rows.decode_term),
]


@pytest.mark.parametrize(("data", "at", "decode"), FORM_AT)
def test_a_form_of_a_later_kproxy_is_refused(
    data: bytes, at: int, decode: Callable[[bytes], object]
) -> None:
    decode(data)
    with pytest.raises(ValueError, match="later one"):
        decode(data[:at] + b"\x21" + data[at + 1 :])


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 1 << 56, 2**63 - 1])
def test_numbers_that_clients_choose_are_no_forms(number: int) -> None:
    time_ms = (1 << 55) - 1
    assert (
        offset_rows.decode_committed(Committed(number, number >> 32, time_ms, "").encode())[0]
        == number
    )
    sent = BatchMetadata(number >> 32, number >> 32, number, number)
    row = producer_rows.producer_with(None, number, -1, sent)
    for _ in range(producer_rows.BATCHES_REMEMBERED):
        row = producer_rows.producer_with(row, number, -1, sent)
    assert producer_rows.decode_producer(row).batches == (sent,) * producer_rows.BATCHES_REMEMBERED


def test_the_term_is_the_claim_that_came_last() -> None:
    shard = MemoryShard()
    assert shard.state.get(rows.TERM_KEY) is None
    for writer in (5, 6):
        shard.apply(Envelope(Kind.CLAIM, writer=writer))
    assert rows.decode_term(present(shard.state.get(rows.TERM_KEY))) == Term(1, 6)


def test_a_producer_may_be_known_by_its_epoch_alone() -> None:
    shard, key = MemoryShard(), (ID, 0)
    values = {"name": "q", "partitions": 1, "configs": {}}
    shard.apply(command(Kind.CREATE, ID, values=values))
    row = present(shard.state.partition(key))
    row.producers = (producer_rows.producer_cleared(9, 4),)
    shard.state.put_partition(key, row)
    shard.kv.write(shard.state.drain())
    again = rows.decode_partition(row.encode())
    assert again.producers == row.producers
    ((producer_id, known),) = producers.remembered(shard.state, key, again)
    assert (producer_id, known.epoch, known.batches) == (9, 4, ())
    assert (known.newest.last_sequence, known.newest.time_ms) == (-1, -1)

    def send(epoch: int, sequence: int) -> Code:
        body = batch(b"v", producer_id=9, epoch=epoch, sequence=sequence)
        return shard.apply(Envelope(Kind.APPEND, *key, body=body)).code

    assert send(3, 0) == Code.INVALID_PRODUCER_EPOCH
    assert send(4, 1) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(4, 0) == Code.NONE
    assert send(4, 1) == Code.NONE


def test_producers_known_by_their_epoch_alone_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_REMEMBERED", 2)
    monkeypatch.setattr(producers, "_FORGOTTEN_AT_ONCE", 1)
    shard, key = MemoryShard(), (ID, 0)
    values = {"name": "q", "partitions": 1, "configs": {}}
    shard.apply(command(Kind.CREATE, ID, values=values))
    sent: set[int] = set()
    gone: list[set[int]] = []
    for number in range(12):
        row = present(shard.state.partition(key))
        if number == 2:
            row.producers = (*row.producers, producer_rows.producer_cleared(99, 0))
            shard.state.put_partition(key, row)
            sent.add(99)
        body = batch(b"v", producer_id=number, epoch=0, sequence=0)
        shard.apply(Envelope(Kind.APPEND, *key, body=body))
        sent.add(number)
        gone.append(sent - {pid for pid, _ in producers.remembered(shard.state, key, row)})
    assert next(forgotten for forgotten in gone if forgotten) == {99}
    assert len(gone[-1]) > 1


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("routed", [False, True])
def test_an_older_kproxy_passes_over_whose_transaction_a_batch_is(
    routed: bool, number: int
) -> None:
    new = Batch(0, 0, 1, 0, 0, 1, 5, 5, routed=routed, number=number, transaction=7)
    assert batch_rows.decode_batch(new.encode()) == new
    size = len(Batch(0, 0, 1, 0, 0, 1, 5, 5).encode())
    assert struct.unpack_from(">?H", new.encode(), size) == (routed, number)  # as it read them
    old = new._replace(transaction=batch_rows.NOT_SAID)
    assert batch_rows.decode_batch(old.encode()) == old
