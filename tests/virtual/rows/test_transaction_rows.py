"""Rows of transactions: their bytes are those on disk, and a form of a later kproxy is refused."""

from collections.abc import Callable

import pytest

from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind, swept_ranges
from kproxy.virtual.rows.offsets import Committed
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.transactions import (
    ABORTED,
    OPEN_FIRSTS,
    OPEN_GROUPS,
    OPEN_TRANSACTIONS,
    PENDING_BY_PARTITION,
    PENDING_COUNT_KEY,
    PENDING_OFFSETS,
    TRANSACTIONAL_PRODUCERS,
    TRANSACTIONAL_PRODUCERS_DUE,
    TRANSACTIONS,
    TRANSACTIONS_DUE,
    Aborted,
    OpenGroup,
    OpenTransaction,
    Participant,
    PendingOffset,
    Transaction,
    TransactionalProducer,
    TransactionState,
)
from kproxy.virtual.schema import decode_count, encode_count
from kproxy.virtual.types import PartitionKey, QueueId

Q = QueueId(bytes(range(16)))
KEY: PartitionKey = (Q, 1)
KEY_HEX = "000102030405060708090a0b0c0d0e0f00000001"
TAG = b"tag of t"
TRANSACTION = Transaction(
    producer_id=7, previous_producer_id=6, epoch=5, last_epoch=4, timeout_ms=3,
    state=TransactionState.PREPARE_ABORT, version=2, start_ms=1, update_ms=9, number=10,
    ending_producer_id=11, ending_epoch=12, marker_epoch=13, participants=14,
)  # fmt: skip
IDLE = TRANSACTION._replace(state=TransactionState.COMPLETE_COMMIT)
OPEN = TRANSACTION._replace(state=TransactionState.ONGOING)
COMMITTED = Committed(5, -1, 9, "m")

VALUES: list[tuple[bytes, str, Callable[[bytes], object], object]] = [
    (TRANSACTIONS.encode(TRANSACTION),
     "01 0000000000000007 0000000000000006 0005 0004 00000003 03 02 0000000000000001"
     "0000000000000009 000000000000000a 000000000000000b 000c 000d 0000000e",
     TRANSACTIONS.decode, TRANSACTION),
    (TRANSACTIONAL_PRODUCERS.encode(TransactionalProducer(3, 10, 9)),
     "01 0003 000000000000000a 0000000000000009",
     TRANSACTIONAL_PRODUCERS.decode, TransactionalProducer(3, 10, 9)),
    (OPEN_TRANSACTIONS.encode(OpenTransaction(2, -1, 3, 10, TAG)),
     "01 02 ffffffffffffffff 0003 000000000000000a 746167206f662074",
     OPEN_TRANSACTIONS.decode, OpenTransaction(2, -1, 3, 10, TAG)),
    (ABORTED.encode(Aborted(7, 5, 6)), "01 0000000000000007 0000000000000005 0000000000000006",
     ABORTED.decode, Aborted(7, 5, 6)),
    (OPEN_GROUPS.encode(OpenGroup(2, 3, 10, 4, TAG)),
     "01 02 0003 000000000000000a 00000004 746167206f662074",
     OPEN_GROUPS.decode, OpenGroup(2, 3, 10, 4, TAG)),
    (PendingOffset(True, 8, COMMITTED).encode(),
     "01 01 0000000000000008 0000000000000005 ffffffff 0000000000000009 6d",
     PENDING_OFFSETS.decode, PendingOffset(True, 8, COMMITTED)),
]  # fmt: skip
KEYS: list[tuple[bytes, RowKind, str]] = [
    (TRANSACTIONS.key("t"), RowKind.TRANSACTION, "74"),
    (transaction_rows.transaction_due_key(TRANSACTION, "t"), RowKind.TRANSACTION_DUE,
     "0000000000000000 74"),
    (transaction_rows.transaction_due_key(OPEN, "t"), RowKind.TRANSACTION_DUE,
     "0000000000000004 74"),
    (transaction_rows.transaction_due_key(IDLE, "t"), RowKind.TRANSACTION_IDLE,
     "0000000000000009 74"),
    (transaction_rows.participant_key(10, Participant(2, KEY)), RowKind.PARTICIPANT,
     "000000000000000a 00000002 00" + KEY_HEX),
    (transaction_rows.participant_key(10, Participant(2, group="g")), RowKind.PARTICIPANT,
     "000000000000000a 00000002 01 67"),
    (TRANSACTIONAL_PRODUCERS.key(7), RowKind.TRANSACTIONAL_PRODUCER,
     "0000000000000007"),
    (TRANSACTIONAL_PRODUCERS_DUE.key(9, 7), RowKind.PRODUCER_DUE,
     "0000000000000009 0000000000000007"),
    (OPEN_TRANSACTIONS.key(KEY, 7), RowKind.OPEN_TRANSACTION, KEY_HEX + "0000000000000007"),
    (OPEN_FIRSTS.key(KEY, 5), RowKind.OPEN_FIRST, KEY_HEX + "0000000000000005"),
    (ABORTED.key(KEY, 6), RowKind.ABORTED, KEY_HEX + "0000000000000006"),
    (OPEN_GROUPS.key("g", 7), RowKind.OPEN_GROUP, "0001 67 0000000000000007"),
    (PENDING_OFFSETS.key("g", 7, KEY), RowKind.PENDING_OFFSET,
     "0001 67 0000000000000007" + KEY_HEX),
    (PENDING_BY_PARTITION.key("g", KEY, 7), RowKind.PENDING_BY_PARTITION,
     "0001 67" + KEY_HEX + "0000000000000007"),
    (PENDING_COUNT_KEY, RowKind.PENDING_COUNT, ""),
]  # fmt: skip


@pytest.mark.parametrize(("data", "written", "decode", "row"), VALUES)
def test_values_are_those_on_disk(
    data: bytes, written: str, decode: Callable[[bytes], object], row: object
) -> None:
    assert data == bytes.fromhex(written)
    assert decode(data) == row
    with pytest.raises(ValueError, match="later one"):
        decode(b"\x02" + data[1:])


@pytest.mark.parametrize(("key", "kind", "written"), KEYS)
def test_keys_are_those_on_disk(key: bytes, kind: RowKind, written: str) -> None:
    assert key == kind.letter + bytes.fromhex(written)


def test_counts_and_producers_are_those_on_disk() -> None:
    assert encode_count(3) == bytes.fromhex("0000000000000003")
    assert decode_count(bytes.fromhex("0000000000000003")) == 3
    assert encode_count(7) == bytes.fromhex("0000000000000007")
    assert transaction_rows.tag_of("t") == bytes.fromhex("ca73dcf5e072d4d6")


def test_keys_say_what_they_are_of() -> None:
    assert TRANSACTIONS.parts(TRANSACTIONS.key("t")) == ("t",)
    due = transaction_rows.transaction_due_key(IDLE, "t")
    assert TRANSACTIONS_DUE.parts(due) == (9, "t")
    for participant in (Participant(2, KEY), Participant(2, group="g")):
        key = transaction_rows.participant_key(10, participant)
        assert transaction_rows.participant_of(key) == participant
    used = TRANSACTIONAL_PRODUCERS_DUE.key(9, 7)
    assert TRANSACTIONAL_PRODUCERS_DUE.parts(used) == (9, 7)
    assert OPEN_FIRSTS.parts(OPEN_FIRSTS.key(KEY, 5)) == (KEY, 5)
    pending = PENDING_OFFSETS.key("g", 7, KEY)
    assert PENDING_OFFSETS.parts(pending) == ("g", 7, KEY)
    tracked = PENDING_BY_PARTITION.key("g", KEY, 7)
    assert transaction_rows.pending_by_partition_of_pending(pending) == tracked
    assert PENDING_BY_PARTITION.parts(tracked) == ("g", KEY, 7)
    assert [transaction_rows.producer_id_of_key(key) for key in (used, tracked)] == [7, 7]


@pytest.mark.parametrize("index", [0, (1 << 32) - 1])
def test_all_of_a_queue_lies_in_its_ranges(index: int) -> None:
    of_queue = [
        OPEN_TRANSACTIONS.key((Q, index), (1 << 63) - 1),
        OPEN_FIRSTS.key((Q, index), (1 << 64) - 1),
        ABORTED.key((Q, index), (1 << 64) - 1),
    ]
    ranges = list(swept_ranges(Q))
    for key in of_queue:
        assert sum(start <= key < end for start, end in ranges) == 1
        other = key[:16] + b"\xff" + key[17:]
        assert not any(start <= other < end for start, end in ranges)


def test_a_partition_says_where_its_earliest_open_transaction_begins() -> None:
    """After the count of producers, which says so; a partition without any has no more bytes."""
    row = Partition()
    plain = row.encode()
    assert plain[-2:] == b"\0\0"
    row.first_open, row.any_aborted = 5, True
    assert row.encode() == plain[:-2] + bytes.fromhex("6000 0000000000000005")
    row.producers, row.spilled = (b"\0" * 7 + b"\7" + b"\0\3" + b"\0",), 2
    data = row.encode()
    assert data == plain[:-2] + bytes.fromhex("e001 0000000000000005 0000000000000007 0003 00 0002")
    again = rows.decode_partition(data)
    assert (again.first_open, again.any_aborted, again.spilled) == (5, True, 2)
    assert again.producers == row.producers
    row.first_open = -1
    assert rows.decode_partition(row.encode()).first_open == -1
