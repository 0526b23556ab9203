"""Rows as an owner publishes them, and a shard's state made from them again.

All of a shard's published rows stand for one log offset, X: together they are the state there. The
index of batches is not published: it is read from the log, which still holds every live batch.
Below X an append is not judged again, for the state that judged it is gone; its place is counted on
from the partition's `Anchor`, past those that have a `v` row. A MARKER takes an offset in each
partition that it names, but those whose bits are set in its `v` row. The batches of a FORWARD, a
SHIP, a LATER or a DUE are counted as an append is; the latter two may have several for one
partition, so there an anchor says which of them it is. From X on the fold goes on as always.
"""

import json
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from kproxy.protocol.batch import BatchHeader, read_header
from kproxy.virtual.commands.delays import Due
from kproxy.virtual.commands.envelope import COPIED, Envelope, Kind
from kproxy.virtual.commands.records import Compact, Replace
from kproxy.virtual.commands.shares import is_passed_on
from kproxy.virtual.fold import copied_header, copied_location, remove_batch
from kproxy.virtual.folds.carried import DELAYS, carried
from kproxy.virtual.folds.delays import file_at, remove_waiting
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows import delays as delay_rows
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.delays import WAITING_BATCHES
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Batch
from kproxy.virtual.rows.transactions import (
    ABORTED,
    TRANSACTIONAL_PRODUCERS,
    TRANSACTIONAL_PRODUCERS_DUE,
    TRANSACTIONS,
)
from kproxy.virtual.state import Kv, State
from kproxy.virtual.types import PartitionKey

AS_OF_KEY = rows.CHECKPOINT_KEY
"""The published row that says X: the checkpoint of all of them."""

_ANCHOR = struct.Struct(">qqqq")
_COUNTER = struct.Struct(">qqqqQ")  # an anchor, and the offset that the partition ends at
_AS_OF = struct.Struct(">BQ")
_FORM = 1
_OFFSET_END = (1 << 63) - 1
_ROWS_AT_ONCE = 1000
_REMEMBERED_MAX = 10_000
_COPIES = (Kind.COPY, Kind.REPLACE)
_CARRYING = (Kind.APPEND, Kind.FORWARD, Kind.SHIP, *DELAYS)
_NUMBER_AT = 53  # above a log offset, which stays below: which of several batches
_LOG_OFFSET = (1 << _NUMBER_AT) - 1


class Anchor(NamedTuple):
    """The oldest live batch that still lies where it was appended, and what comes before it."""

    log_offset: int
    base_offset: int
    size_before: int
    max_time_through_ms: int
    number: int = 0  # `Batch.number`

    def encode(self) -> bytes:
        at = self.log_offset | self.number << _NUMBER_AT
        return _ANCHOR.pack(at, self.base_offset, self.size_before, self.max_time_through_ms)


class RowsDisagree(Exception):
    """The published rows and the log do not fit together: something was lost."""


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
    batch = rows.decode_batch(data)
    if batch.copied:
        return None
    base_offset = rows.batch_key_offset(key) - batch.last_delta
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
        end = rows.batch_key(*partition, _OFFSET_END)
        whole = True
        first = next(self._kv.walk(rows.batch_key(*partition, offset), end), None)
        if first is None:
            return
        anchor = _anchor(*first)
        if anchor is not None:
            yield anchor
            return
        while whole:
            passed = 0
            scanned = self._kv.scan(rows.batch_key(*partition, offset), end)
            for found, data in islice(scanned, _ROWS_AT_ONCE):
                anchor = _anchor(found, data)
                if anchor is not None:
                    yield anchor
                    return
                offset, passed = rows.batch_key_offset(found) + 1, passed + 1
            whole = passed == _ROWS_AT_ONCE
            if whole:
                self._remember(key, offset)
                yield None

    def _passed(self, key: bytes, partition: PartitionKey) -> int:
        """Return the offset before which all batches are copies, as far as it is known."""
        passed = self._passed_to.get(key, 0)
        if passed:
            there = self._kv.get(rows.batch_key(*partition, passed - 1))
            if there is None or not rows.decode_batch(there).copied:
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
    partition = rows.partition_of_offset(offset_key)
    return rows.offset_by_queue_key(*partition, rows.group_of_offset(offset_key))


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


class Reindex:
    """A search for the live batches of the log below X."""

    def __init__(self, state: State, now_ms: int, look_within_ms: int) -> None:
        """Begin; `state` has the published rows, all of them.

        When partitions are due for a look at their retention is not published: they are spread over
        the time from now that is given.
        """
        self._state = state
        self._now_ms = now_ms
        self._look_within_ms = look_within_ms
        self._any_void = next(state.kv.scan(*RowKind.NO_EFFECT.range()), None) is not None

    def apply(self, log_offset: int, envelope: Envelope, location: LogLocation) -> None:
        """Note where a live batch lies; of anything else nothing is needed."""
        kind = envelope.kind
        if kind in _COPIES:
            if not self._void(log_offset):
                self._copy((envelope.queue_id, envelope.partition), envelope, location)
        elif kind == Kind.COMPACT:
            key = (envelope.queue_id, envelope.partition)
            for last_offset, generation in Compact.decode(envelope).removed:
                remove_batch(self._state, key, last_offset, generation)
        elif kind == Kind.MARKER:
            self._marker(log_offset, envelope, location)
        elif kind in _CARRYING and not self._void(log_offset):
            if kind in DELAYS:
                self._delayed(log_offset, envelope, location)
                return
            routed = kind == Kind.SHIP or (kind == Kind.FORWARD and not is_passed_on(envelope))
            for key, batch, place in carried(self._state, log_offset, envelope, location):
                self._count_on(key, log_offset, read_header(batch), place, routed=routed)

    def _delayed(self, log_offset: int, envelope: Envelope, location: LogLocation) -> None:
        if envelope.kind == Kind.DUE:
            due = Due.decode(envelope)
            for last_offset in due.removed:
                remove_waiting(self._state, delay_rows.hidden(due.key), last_offset)
        numbers: dict[PartitionKey, int] = {}
        for key, batch, place in carried(self._state, log_offset, envelope, location):
            numbers[key] = number = numbers.get(key, -1) + 1
            self._count_on(key, log_offset, read_header(batch), place, number=number)

    def _marker(self, log_offset: int, envelope: Envelope, location: LogLocation) -> None:
        """Count on a MARKER: all partitions share its batch; a `v` row has those that took none."""
        void = self._state.get(rows.no_effect_key(log_offset)) if self._any_void else None
        found = carried(self._state, log_offset, envelope, location)
        for number, (key, batch, place) in enumerate(found):
            if void is None or not void[number >> 3] & 1 << (number & 7):
                self._count_on(key, log_offset, read_header(batch), place)

    def _count_on(
        self, key: PartitionKey, log_offset: int, header: BatchHeader, location: LogLocation,
        *, routed: bool = False, number: int = 0,
    ) -> None:  # fmt: skip
        """Count a batch that took the next offsets of its partition, of which it got `number`
        before it by the same envelope."""
        counter_key = rows.counter_key(rows.partition_key(*key))
        data = self._state.get(counter_key)
        if data is None:
            return
        at, base_offset, size, through_ms, end_offset = _COUNTER.unpack(data)
        if log_offset < at & _LOG_OFFSET or (
            log_offset == at & _LOG_OFFSET and number < at >> _NUMBER_AT
        ):
            return
        last_offset = base_offset + header.last_offset_delta
        size += location.length
        through_ms = max(through_ms, header.max_timestamp)
        # Nothing else lies there: a copy comes behind it. A Batch is not made of it on the way.
        row = rows.encode_batch(
            *location, header.last_offset_delta, log_offset, size, header.max_timestamp,
            through_ms, False,
        )  # fmt: skip
        self._state.count_live(location)
        if header.is_transactional:
            row = rows.with_transaction(row, header, routed=routed, number=number)
        else:
            row = row + rows.ROUTED if routed else rows.with_number(row, number)
        self._state.put(rows.batch_key(*key, last_offset), row)
        at = log_offset | (number + 1) << _NUMBER_AT
        counted = _COUNTER.pack(at, last_offset + 1, size, through_ms, end_offset)
        self._state.put(counter_key, counted)
        if key[1] & rows.HIDDEN:
            self._waits(key, header, last_offset)

    def _waits(self, key: PartitionKey, header: BatchHeader, last_offset: int) -> None:
        """Note that a batch waits until it is due."""
        waiting = WAITING_BATCHES.key(delay_rows.shown(key), header.max_timestamp, last_offset)
        self._state.put(waiting, b"")

    def _void(self, log_offset: int) -> bool:
        return self._any_void and self._state.get(rows.no_effect_key(log_offset)) is not None

    def _copy(self, key: PartitionKey, envelope: Envelope, location: LogLocation) -> None:
        header = copied_header(envelope)
        last_offset = envelope.number + header.last_offset_delta
        _, generation = Replace.generations(envelope)
        row = self._state.partition(key)
        if row is None or not row.log_start <= last_offset < row.next_offset:
            return
        log_offset, size, through_ms = COPIED.unpack_from(envelope.body)
        batch = Batch(
            *copied_location(location),
            header.last_offset_delta, log_offset, size, header.max_timestamp, through_ms,
            copied=generation + 1, routed=Replace.is_routed(envelope),
            transaction=rows.transaction_of(header) if header.is_transactional else rows.NOT_SAID,
        )  # fmt: skip
        before = self._state.batch_at(key, last_offset)
        if before is not None:
            self._state.count_dead(before)
        self._state.count_live(batch)
        self._state.put(rows.batch_key(*key, last_offset), batch.encode())
        if key[1] & rows.HIDDEN:
            self._waits(key, header, last_offset)
        self._look_soon(key)

    def finish(self) -> Iterator[None]:
        """Finish once all of the log below X was seen and written; each step has changes to write.

        Raise RowsDisagree.
        """
        for number, (key, data) in enumerate(
            self._state.kv.scan(*RowKind.REBUILD_COUNTER.range()), 1
        ):
            _, counted, *_, end_offset = _COUNTER.unpack(data)
            partition = rows.partition_of(key)
            if counted != end_offset:
                raise RowsDisagree(
                    f"partition {partition[1]} of queue {partition[0].hex()} ends at {counted}"
                    f" in the log, at {end_offset} in its row"
                )
            self._state.put(key, None)
            self._look_soon(partition)
            if number % _ROWS_AT_ONCE == 0:
                yield
        forget_ms = self._now_ms + rows.TOMBSTONE_KEPT_MS
        assignments = self._state.kv.scan(*RowKind.ASSIGNMENT.range())
        for number, (key, data) in enumerate(assignments, 1):
            if not rows.decode_assignment(data)[1]:
                note = rows.retention_due_key(
                    forget_ms, rows.queue_id_of(key), rows.TOMBSTONE_INDEX
                )
                self._state.file(note)
            if number % _ROWS_AT_ONCE == 0:
                yield
        yield
        yield from self._sweep_aborted()

    def _sweep_aborted(self) -> Iterator[None]:
        """Note for the sweeper where aborted transactions lie before the log start.

        The note that the TRIM left is not published.
        """
        noted = None
        for number, (key, _) in enumerate(self._state.kv.scan(*RowKind.ABORTED.range()), 1):
            partition = rows.partition_of(key)
            if partition != noted and (row := self._state.partition(partition)) is not None:
                if ABORTED.parts(key)[1] < row.log_start:
                    note = json.dumps([partition[0].hex(), partition[1]]).encode()
                    # No TRIM leaves a note with a key like that.
                    note_key = rows.trimmed_key(0) + rows.partition_key(*partition)
                    self._state.file(note_key, note)
                noted = partition
            if number % _ROWS_AT_ONCE == 0:
                yield
        yield

    def _look_soon(self, key: PartitionKey) -> None:
        if key[1] & rows.HIDDEN:
            file_at(self._state, delay_rows.shown(key), 0)  # the next look sees what is due
            return
        spread_ms = int.from_bytes(key[0][-8:], "big") % self._look_within_ms
        self._state.file(rows.retention_due_key(self._now_ms + spread_ms, *key))
