"""The anchors of batches in a partition's published form; local rows made of published ones."""

import json
from collections.abc import Iterator

from kproxy.virtual import snapshot
from kproxy.virtual.reindex import Reindex
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.offsets import Committed
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.transactions import (
    ABORTED,
    PENDING_BY_PARTITION,
    PENDING_OFFSETS,
    TRANSACTIONAL_PRODUCERS,
    TRANSACTIONAL_PRODUCERS_DUE,
    TRANSACTIONS,
    Aborted,
    PendingOffset,
    Transaction,
    TransactionalProducer,
    TransactionState,
)
from kproxy.virtual.snapshot import Anchors, RowCapture
from kproxy.virtual.state import State
from kproxy.virtual.types import QueueId
from tests.fakes import DictKv

PARTITION = (QueueId(b"q" * 16), 0)
KEY = rows.partition_key(*PARTITION)
BATCHES, COPIED = 20_000, 15_000


class Counted(DictKv):
    """Counts what is read by scans."""

    read = 0

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for pair in super().scan(start, end):
            self.read += 1
            yield pair


def stored(batches: int, copied: int) -> Counted:
    kv = Counted()
    kv.write(
        {
            batch_rows.batch_key(*PARTITION, last_offset): Batch(
                7, last_offset * 300, 200, 0, last_offset, (last_offset + 1) * 200, 1, 1,
                last_offset < copied,
            ).encode()
            for last_offset in range(batches)
        }
    )  # fmt: skip
    row = Partition()
    row.next_offset, row.size = batches, batches * 200
    kv.write({KEY: row.encode()})
    return kv


def trim(kv: Counted, log_start: int, *, swept: bool) -> bytes:
    row = rows.decode_partition(kv.rows[KEY])
    row.log_start = log_start
    kv.write({KEY: row.encode()})
    if swept:
        kv.write({batch_rows.batch_key(*PARTITION, offset): None for offset in range(log_start)})
    return kv.rows[KEY]


def test_copies_are_passed_over_in_steps_and_once() -> None:
    """FAULT: each publication of a partition read all of its copies in one turn of the loop."""
    kv = stored(BATCHES, COPIED)
    anchors, most = Anchors(kv), 0
    before = kv.read
    for _ in anchors.look_ahead([KEY]):
        most, before = max(most, kv.read - before), kv.read
    assert most <= 1000
    assert kv.read < COPIED + 2000
    kv.read = 0
    capture = RowCapture(kv, {KEY}, anchors)
    assert not capture.take_some(1)
    assert kv.read <= 1000
    assert capture.taken == {KEY: Anchors(kv).encode(KEY, kv.rows[KEY])}


def test_passed_over_rows_are_not_believed_of_another_partition() -> None:
    kv = stored(BATCHES, COPIED)
    anchors = Anchors(kv)
    list(anchors.look_ahead([KEY]))
    for log_start, swept in ((100, False), (100, True), (COPIED - 1, True), (COPIED + 5, True)):
        value = trim(kv, log_start, swept=swept)
        assert anchors.encode(KEY, value) == Anchors(kv).encode(KEY, value)
    other = stored(3000, 1)
    kv.rows = (
        other.rows
    )  # the same id again: nothing of the sort happens, and nothing would be lost
    kv.write({})
    value = kv.rows[KEY]
    assert anchors.encode(KEY, value) == Anchors(kv).encode(KEY, value)


def test_index_rows_of_transactions_are_made_of_published_ones() -> None:
    transaction = Transaction(7, timeout_ms=10, start_ms=5, update_ms=9)
    key = TRANSACTIONS.key("t")
    for state in TransactionState:
        row = transaction._replace(state=state)
        made = dict(snapshot.decode(key, TRANSACTIONS.encode(row)))
        assert made == {
            key: TRANSACTIONS.encode(row),
            transaction_rows.transaction_due_key(row, "t"): b"",
        }
    assert dict(snapshot.decode(key, None)) == {key: None}
    key, value = (
        TRANSACTIONAL_PRODUCERS.key(7),
        TRANSACTIONAL_PRODUCERS.encode(TransactionalProducer(3, 10, 9)),
    )
    due = TRANSACTIONAL_PRODUCERS_DUE.key(9, 7)
    assert dict(snapshot.decode(key, value)) == {key: value, due: b""}
    assert dict(snapshot.decode(key, None)) == {key: None}
    key = PENDING_OFFSETS.key("g", 7, PARTITION)
    value = PendingOffset(False, 1, Committed(5, -1, 9, "")).encode()
    tracked = PENDING_BY_PARTITION.key("g", PARTITION, 7)
    assert dict(snapshot.decode(key, value)) == {key: value, tracked: b""}
    assert dict(snapshot.decode(key, None)) == {key: None, tracked: None}


def test_aborted_transactions_of_trimmed_records_are_swept_after_a_rebuild_too() -> None:
    """The note that the TRIM left is not published, and these rows are."""
    state = State(DictKv())
    trimmed, whole, gone = ((QueueId(bytes([i]) * 16), i) for i in (1, 2, 3))
    for key in (trimmed, whole, gone):
        for marker_offset in range(0, 3000, 2):
            aborted = ABORTED.key(key, marker_offset)
            state.put(aborted, ABORTED.encode(Aborted(7, marker_offset, marker_offset)))
    for key, log_start in ((trimmed, 5), (whole, 0)):
        row = Partition()
        row.log_start, row.next_offset, row.any_aborted = log_start, 3000, True
        state.put_partition(key, row)
    state.kv.write(state.drain())
    for _ in Reindex(state, 0, 1).finish():
        state.kv.write(state.drain())
    notes = dict(state.kv.scan(*RowKind.SWEEP_PARTITION.range()))
    assert [json.loads(note) for note in notes.values()] == [[trimmed[0].hex(), trimmed[1]]]
    assert set(notes) == set(state.filed[RowKind.SWEEP_PARTITION.byte])


def test_many_dropped_assignments_are_filed_in_several_steps_of_a_rebuild() -> None:
    """FAULT: all rows of them were gone over in one turn of the loop."""
    state = State(DictKv())
    for number in range(2500):
        queue_id = QueueId(number.to_bytes(16, "big"))
        state.put(rows.assignment_key(queue_id), rows.encode_assignment(5, 0))
    state.kv.write(state.drain())
    written = []
    for _ in Reindex(state, 0, 1).finish():
        changes = state.drain()
        written.append(len(changes))
        state.kv.write(changes)
    assert max(written) <= 1000
    assert sum(written) == 2500
