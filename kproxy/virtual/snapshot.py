"""Rows as an owner publishes them, and as a rebuild takes them in.

All of a shard's published rows stand for one log offset, X: together they are the state there. The
index of batches is not published: `virtual.reindex` reads it from the log, which still holds every
live batch. A partition's row is published with its `Anchor`, from which its batches are counted.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from kproxy.virtual.changes import Kv
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import (
    TRANSACTIONAL_PRODUCERS,
    TRANSACTIONAL_PRODUCERS_DUE,
    TRANSACTIONS,
)
from kproxy.virtual.types import PartitionKey

AS_OF_KEY = rows.CHECKPOINT_KEY
"""The published row that says X: the checkpoint of all of them."""

_ANCHOR = struct.Struct(">qqqq")
_AS_OF = struct.Struct(">BQ")
_FORM = 1
_OFFSET_END = (1 << 63) - 1
_ROWS_AT_ONCE = 1000
_REMEMBERED_MAX = 10_000
NUMBER_AT = 53  # above a log offset, which stays below: which of several batches


class Anchor(NamedTuple):
    """The oldest live batch that still lies where it was appended, and what comes before it."""

    log_offset: int
    base_offset: int
    size_before: int
    max_time_through_ms: int
    number: int = 0  # `Batch.number`

    def encode(self) -> bytes:
        at = self.log_offset | self.number << NUMBER_AT
        return _ANCHOR.pack(at, self.base_offset, self.size_before, self.max_time_through_ms)


def encode_as_of(log_offset: int) -> bytes:
    return _AS_OF.pack(_FORM, log_offset)


def decode_as_of(data: bytes) -> int:
    """Decode what rows are as of. Raise ValueError for rows of a later kproxy."""
    form, log_offset = _AS_OF.unpack(data)
    if form != _FORM:
        raise ValueError(f"the published rows have form {form}; this kproxy reads form {_FORM}")
    return int(log_offset)


def _anchor(key: bytes, data: bytes) -> Anchor | None:
    """Return what a batch's row says, unless the batch is a copy."""
    batch = batch_rows.decode_batch(data)
    if batch.copied:
        return None
    base_offset = batch_rows.batch_key_offset(key) - batch.last_delta
    size_before = batch.size_through - batch.length
    return Anchor(
        batch.log_offset, base_offset, size_before, batch.max_time_through_ms, batch.number
    )


class Anchors:
    """A search for partitions' anchors, which remembers up to where all batches are copies.

    A copy stays one, so what was passed over once is not looked at again.
    """

    def __init__(self, kv: Kv) -> None:
        self._kv = kv
        self._passed_to: OrderedDict[bytes, int] = OrderedDict()

    def encode(self, key: bytes, value: bytes) -> bytes:
        """Return a row's published form; the rows are as of X."""
        if not RowKind.PARTITION.of(key):
            return value
        for anchor in self._look(key, value):
            if anchor is not None:
                return anchor.encode() + value
        return _ANCHOR.pack(-1, 0, 0, 0) + value

    def look_ahead(self, keys: Iterable[bytes]) -> Iterator[None]:
        """Pass over the copies of partitions that may have many; a rest is due at each step.

        Twice: what was copied in the meantime is little then.
        """
        long = []
        for key in keys:
            if RowKind.PARTITION.of(key) and (value := self._kv.get(key)) is not None:
                log_start, next_offset = rows.partition_ends(value)
                if next_offset - log_start > _ROWS_AT_ONCE:
                    long.append((key, value))
            yield
        for key, value in long * 2:
            for _ in self._look(key, value):
                yield

    def _look(self, key: bytes, value: bytes) -> Iterator[Anchor | None]:
        """Yield steps of a look for a partition's anchor; the last one has it, if there is one."""
        partition, (log_start, _) = rows.partition_of(key), rows.partition_ends(value)
        offset = max(log_start, self._passed(key, partition))
        end = batch_rows.batch_key(*partition, _OFFSET_END)
        whole = True
        first = next(self._kv.walk(batch_rows.batch_key(*partition, offset), end), None)
        if first is None:
            return
        anchor = _anchor(*first)
        if anchor is not None:
            yield anchor
            return
        while whole:
            passed = 0
            scanned = self._kv.scan(batch_rows.batch_key(*partition, offset), end)
            for found, data in islice(scanned, _ROWS_AT_ONCE):
                anchor = _anchor(found, data)
                if anchor is not None:
                    yield anchor
                    return
                offset, passed = batch_rows.batch_key_offset(found) + 1, passed + 1
            whole = passed == _ROWS_AT_ONCE
            if whole:
                self._remember(key, offset)
                yield None

    def _passed(self, key: bytes, partition: PartitionKey) -> int:
        """Return the offset before which all batches are copies, as far as it is known."""
        passed = self._passed_to.get(key, 0)
        if passed:
            there = self._kv.get(batch_rows.batch_key(*partition, passed - 1))
            if there is None or not batch_rows.decode_batch(there).copied:
                return 0  # it was trimmed, or is another partition by now
        return passed

    def _remember(self, key: bytes, passed: int) -> None:
        self._passed_to[key] = passed
        self._passed_to.move_to_end(key)
        if len(self._passed_to) > _REMEMBERED_MAX:
            self._passed_to.popitem(last=False)


def decode(key: bytes, data: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the local rows that a published one stands for, in the place of an earlier one's."""
    if RowKind.PARTITION.of(key):
        if data is None:
            counter, row = None, None
        else:
            anchor, row = data[: _ANCHOR.size], data[_ANCHOR.size :]
            there = _ANCHOR.unpack(anchor)[0] >= 0
            counter = anchor + row[rows.NEXT_OFFSET] if there else None
        yield rows.counter_key(key), counter
        yield key, row
        if row is not None and rows.remembers_by_time(row):
            yield rows.producers_due_key(0, rows.partition_of(key)), b""
        return
    yield key, data
    if RowKind.OFFSET.of(key):
        yield _tracked_key(key), None if data is None else b""
    elif RowKind.PENDING_OFFSET.of(key):
        tracked = transaction_rows.pending_by_partition_of_pending(key)
        yield tracked, None if data is None else b""
    elif data is not None and (due := _due_key(key, data)) is not None:
        # An earlier one is left behind: who looks finds that it is not the row's.
        yield due, b""


def _due_key(key: bytes, data: bytes) -> bytes | None:
    """Return when to look at what a published row is of; None if there is nothing to look for."""
    if RowKind.GROUP.of(key):
        return group_rows.group_due_key(group_rows.decode_group(data).look_ms, rows.name_of(key))
    if RowKind.TRANSACTION.of(key):
        row = TRANSACTIONS.decode(data)
        return transaction_rows.transaction_due_key(row, TRANSACTIONS.parts(key)[0])
    if RowKind.TRANSACTIONAL_PRODUCER.of(key):
        used_ms = TRANSACTIONAL_PRODUCERS.decode(data).used_ms
        return TRANSACTIONAL_PRODUCERS_DUE.key(used_ms, transaction_rows.producer_id_of_key(key))
    return None


def names(kv: Kv) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows by id of all queues; made last, for a name may have had several."""
    for key, data in kv.scan(*RowKind.QUEUE.range()):
        name = rows.name_of(key)
        yield rows.name_key(rows.decode_queue(name, data).queue_id), name.encode()


def _tracked_key(offset_key: bytes) -> bytes:
    partition = offset_rows.partition_of_offset(offset_key)
    return offset_rows.offset_by_queue_key(*partition, offset_rows.group_of_offset(offset_key))


class RowCapture:
    """The published forms of many rows as of one moment, taken while the fold goes on.

    A row that is about to change is taken first. (RocksDB's snapshots would do, but `rocksdict`
    0.3.29 iterates over a snapshot as if there were none.)
    """

    def __init__(self, kv: Kv, keys: set[bytes], anchors: Anchors) -> None:
        self._kv = kv
        self._left = keys
        self._anchors = anchors
        self.taken: dict[bytes, bytes | None] = {}

    def before_write(self, changes: Iterable[bytes]) -> None:
        """Take the rows with these keys, which are about to be written."""
        left = self._left
        if left:
            for key in changes:
                if key in left:
                    left.discard(key)
                    self._take(key)

    def take_some(self, count: int) -> bool:
        """Take up to `count` more; whether there are any left."""
        for _ in range(min(count, len(self._left))):
            self._take(self._left.pop())
        return bool(self._left)

    def _take(self, key: bytes) -> None:
        value = self._kv.get(key)
        self.taken[key] = None if value is None else self._anchors.encode(key, value)
