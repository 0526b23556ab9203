"""The index of a shard's batches, made again from the log below the X of the published rows.

Below X an append is not judged again, for the state that judged it is gone; its place is counted on
from the partition's `Anchor`, past those that have a `v` row. A MARKER takes an offset in each
partition that it names, but those whose bits are set in its `v` row. The batches of a FORWARD, a
SHIP, a LATER or a DUE are counted as an append is; the latter two may have several for one
partition, so there an anchor says which of them it is. From X on the fold goes on as always.
"""

import struct
from collections.abc import Iterable, Iterator

from kproxy.protocol.batch import BatchHeader, read_header
from kproxy.virtual.commands.delays import Due, Later, key_of
from kproxy.virtual.commands.envelope import COPIED, Envelope, Kind
from kproxy.virtual.commands.records import Compact, Replace
from kproxy.virtual.commands.shares import is_passed_on
from kproxy.virtual.commands.transactions import Marker
from kproxy.virtual.fold import copied_header, copied_location, remove_batch
from kproxy.virtual.folds.carried import ALONE, DELAYS, carried
from kproxy.virtual.folds.delays import (
    file_at,
    note_waiting,
    remove_waiting,
    waiting_of,
)
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import delays as delay_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import NOT_SAID, Batch, transaction_of
from kproxy.virtual.rows.idle import IDLE_DUE, IDLE_MS
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import ABORTED
from kproxy.virtual.snapshot import NUMBER_AT
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_COUNTER = struct.Struct(">qqqqQ")  # an anchor, and the offset that the partition ends at
_ROWS_AT_ONCE = 1000
_IDLE = IDLE_MS.encode()
_COPIES = (Kind.COPY, Kind.REPLACE)
_CARRYING = (*ALONE, Kind.SHIP, *DELAYS)
_LOG_OFFSET = (1 << NUMBER_AT) - 1


class RowsDisagree(Exception):
    """The published rows and the log do not fit together: something was lost."""


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
        elif kind == Kind.COMPACT and not self._void(log_offset):
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

    def void(self, log_offset: int, envelope: Envelope) -> None:
        """Note that the published rows know nothing of an envelope, though it is below X.

        They were published before the log lost its end, and this came then.
        """
        value = b""
        if envelope.kind == Kind.MARKER:
            value = b"\xff" * ((len(Marker.decode(envelope).partitions) + 7) // 8)
        if envelope.kind in (*_COPIES, *_CARRYING, Kind.COMPACT, Kind.MARKER):
            self._state.put(rows.no_effect_key(log_offset), value)

    def _delayed(self, log_offset: int, envelope: Envelope, location: LogLocation) -> None:
        if envelope.kind == Kind.DUE:
            due = Due.decode(envelope)
            for last_offset in due.removed:
                remove_waiting(self._state, delay_rows.hidden(due.key), last_offset)
        by_key = False
        if envelope.kind == Kind.LATER and (gone := Later.decode(envelope).gone) is not None:
            by_key = True
            self._forget_waiting((envelope.queue_id, envelope.partition), [one for one, _ in gone])
        numbers: dict[PartitionKey, int] = {}
        for key, batch, place in carried(self._state, log_offset, envelope, location):
            numbers[key] = number = numbers.get(key, -1) + 1
            digest = b""
            if key[1] & rows.HIDDEN and (named := key_of(batch)) is not None:
                digest = delay_rows.digest_of(named)
                if by_key:
                    self._forget_waiting(delay_rows.shown(key), [digest])
            self._count_on(key, log_offset, read_header(batch), place, number=number, digest=digest)

    def _forget_waiting(self, key: PartitionKey, digests: Iterable[bytes]) -> None:
        """Remove what waits under keys that another record replaces, or cancels."""
        for digest in digests:
            last_offset = waiting_of(self._state, key, digest)
            if last_offset is not None:
                remove_waiting(self._state, delay_rows.hidden(key), last_offset)

    def _marker(self, log_offset: int, envelope: Envelope, location: LogLocation) -> None:
        """Count on a MARKER: all partitions share its batch; a `v` row has those that took none.

        An empty one: none did.
        """
        void = self._state.get(rows.no_effect_key(log_offset)) if self._any_void else None
        if void == b"":
            return
        found = carried(self._state, log_offset, envelope, location)
        for number, (key, batch, place) in enumerate(found):
            if void is None or not void[number >> 3] & 1 << (number & 7):
                self._count_on(key, log_offset, read_header(batch), place)

    def _count_on(
        self, key: PartitionKey, log_offset: int, header: BatchHeader, location: LogLocation,
        *, routed: bool = False, number: int = 0, digest: bytes = b"",
    ) -> None:  # fmt: skip
        """Count a batch that took the next offsets of its partition, of which it got `number`
        before it by the same envelope."""
        counter_key = rows.counter_key(rows.partition_key(*key))
        data = self._state.get(counter_key)
        if data is None:
            return
        at, base_offset, size, through_ms, end_offset = _COUNTER.unpack(data)
        if log_offset < at & _LOG_OFFSET or (
            log_offset == at & _LOG_OFFSET and number < at >> NUMBER_AT
        ):
            return
        last_offset = base_offset + header.last_offset_delta
        size += location.length
        through_ms = max(through_ms, header.max_timestamp)
        # Nothing else lies there: a copy comes behind it. A Batch is not made of it on the way.
        row = batch_rows.appended(
            location, header, log_offset, size, through_ms,
            opened=header.is_transactional, routed=routed, number=number,
        )  # fmt: skip
        self._state.count_live(location)
        self._state.put(batch_rows.batch_key(*key, last_offset), row)
        at = log_offset | (number + 1) << NUMBER_AT
        counted = _COUNTER.pack(at, last_offset + 1, size, through_ms, end_offset)
        self._state.put(counter_key, counted)
        if key[1] & rows.HIDDEN:
            self._waits(key, header, last_offset, digest)

    def _waits(
        self, key: PartitionKey, header: BatchHeader, last_offset: int, digest: bytes
    ) -> None:
        """Note that a batch waits until it is due."""
        due_ms = header.max_timestamp
        note_waiting(self._state, delay_rows.shown(key), due_ms, last_offset, digest)

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
            transaction=transaction_of(header) if header.is_transactional else NOT_SAID,
        )  # fmt: skip
        before = self._state.batch_at(key, last_offset)
        if before is not None:
            self._state.count_dead(before)
        self._state.count_live(batch)
        self._state.put(batch_rows.batch_key(*key, last_offset), batch.encode())
        if key[1] & rows.HIDDEN:
            named = key_of(memoryview(envelope.body)[COPIED.size :])
            digest = b"" if named is None else delay_rows.digest_of(named)
            self._waits(key, header, last_offset, digest)
        self._look_soon(key)

    def finish(
        self, rolled_back: dict[PartitionKey, tuple[int, int]] | None = None
    ) -> Iterator[None]:
        """Finish once all of the log below X was seen and written; each step has changes to write.

        Raise RowsDisagree. `rolled_back`: the log has lost its end; the partitions of which it
        lacks something end where it says, and are put there, with what their rows said.
        """
        for number, (key, data) in enumerate(
            self._state.kv.scan(*RowKind.REBUILD_COUNTER.range()), 1
        ):
            _, counted, size, _, end_offset = _COUNTER.unpack(data)
            partition = rows.partition_of(key)
            if rolled_back is not None and counted < end_offset:
                rolled_back[partition] = counted, end_offset
                self._roll_back(partition, counted, size)
            elif counted != end_offset:
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
        yield from self._look_for_idle()
        yield from self._sweep_aborted()

    def _roll_back(self, key: PartitionKey, next_offset: int, size: int) -> None:
        row = self._state.partition(key)
        if row is not None:
            row.next_offset, row.size = max(row.log_start, next_offset), size
            self._state.put_partition(key, row)

    def _look_for_idle(self) -> Iterator[None]:
        """File queues that are deleted once nobody uses them: that index is not published."""
        for number, (_, data) in enumerate(self._state.kv.scan(*RowKind.QUEUE.range()), 1):
            if _IDLE in data:
                queue = rows.decode_queue("", data)
                self._state.file(IDLE_DUE.key(0, (queue.queue_id, 0)))
            if number % _ROWS_AT_ONCE == 0:
                yield
        yield

    def _sweep_aborted(self) -> Iterator[None]:
        """Note for the sweeper where aborted transactions lie before the log start.

        The note that the TRIM left is not published.
        """
        noted = None
        for number, (key, _) in enumerate(self._state.kv.scan(*RowKind.ABORTED.range()), 1):
            partition = rows.partition_of(key)
            if partition != noted and (row := self._state.partition(partition)) is not None:
                if ABORTED.parts(key)[1] < row.log_start:
                    # No TRIM leaves a note with a key like that.
                    note_key = rows.trimmed_key(0) + rows.partition_key(*partition)
                    self._state.file(note_key, rows.sweep_note(*partition))
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
