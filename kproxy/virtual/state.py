"""A shard's state as the fold sees it: rows behind a bounded cache, changes gathered for one write.

Everything in it has been applied, and was durable before that. Readers may answer from it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from typing import Protocol, TypeVar

from kproxy.protocol.batch import BatchHeader
from kproxy.virtual.commands.envelope import COPY_BYTES, Envelope
from kproxy.virtual.counts import Counts
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import routes as route_rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import INDEX_BYTES, PUBLISHED_BYTES, RowKind
from kproxy.virtual.rows.queues import Batch, Committed, Compaction, Partition, Queue, StoredBatch
from kproxy.virtual.rows.routes import ROUTES
from kproxy.virtual.rows.transactions import ABORTED, PENDING_BY_PARTITION, PENDING_COUNT_KEY
from kproxy.virtual.schema import decode_count, encode_count
from kproxy.virtual.types import PartitionKey, QueueId

Key = TypeVar("Key")
Row = TypeVar("Row")


class Kv(Protocol):
    """An ordered map of bytes: RocksDB in a worker, a dict in a test."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield pairs with start <= key < end, in key order, as they stood when the scan began."""
        ...

    def walk(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield as `scan`, if few are wanted; one at a time."""
        ...

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        """Put all, or with None delete, at once."""
        ...


_EMPTY = Partition().encode()
_COUNTED_MAX = 200  # rows of batches, for what they take together
_SHIPPED_TO_MAX = 10_000
_OFFSET_END = (1 << 64) - 1  # behind every batch of a partition


class State:
    """Rows by key. `drain` gives the changes since the last one, to be written in one piece."""

    def __init__(self, kv: Kv, rows_cached_max: int = 50_000) -> None:
        self.kv = kv
        self._rows_cached_max = rows_cached_max
        self._changes: dict[bytes, bytes | None] = {}
        self._partitions: dict[PartitionKey, Partition] = {}
        self._dirty_partitions: dict[PartitionKey, Partition] = {}
        self._queues: dict[str, Queue] = {}
        self._names: dict[QueueId, str] = {}
        self._producers: dict[bytes, bytes | None] = {}
        self._segments: dict[int, int] = {}  # live bytes, changed since the last write
        self._last_segment = (-1, 0)  # live bytes of the one that changed last
        self._pending_offsets = -1  # not looked at yet
        self.counts = Counts()
        self.forgotten_early = 0  # producers, by their number, since who tells of them took it
        self.queue_changes = 0
        self.touched: set[PartitionKey] = set()
        self.routed: set[PartitionKey] = set()
        """Partitions with routes that have changed since who passes on took them from here."""
        self.shipped_to: set[PartitionKey] = set()
        """Partitions of compacted queues that routes or dead letters came to: no row says so."""
        self.unpublished: set[bytes] | None = None  # keys of changed rows, where any are published
        self.filed: dict[int, tuple[bytes, bytes]] = {}
        """The lowest and the highest key of each index filed since its looker took it from here."""

    @property
    def cached(self) -> int:
        """The number of rows held in memory."""
        found = len(self._partitions) + len(self._queues) + len(self._names)
        return found + len(self._producers)

    def close(self) -> None:
        """Let go of what is cached: who held this may go on to do so."""
        for cache in (self._partitions, self._dirty_partitions, self._queues, self._names):
            cache.clear()
        self._producers.clear()

    # -- reading and changing single rows

    def get(self, key: bytes) -> bytes | None:
        if key in self._changes:
            return self._changes[key]
        return self.kv.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        self._changes[key] = value

    def file(self, key: bytes, value: bytes = b"") -> None:
        """Put a row into an index of what is to be done: who looks there is told where."""
        self._changes[key] = value
        low, high = self.filed.get(key[0], (key, key))
        self.filed[key[0]] = (min(low, key), max(high, key))

    def put_all(self, changes: dict[bytes, bytes | None]) -> None:
        """Put each as `put` does, or `file`."""
        for key, value in changes.items():
            if value is not None and key[0] in INDEX_BYTES:
                self.file(key, value)
            else:
                self._changes[key] = value

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield pairs with start <= key < end, with unwritten changes; for few: it gathers them."""
        changes = self._changes
        changed = {key: value for key, value in changes.items() if start <= key < end}
        found = {key: value for key, value in self.kv.scan(start, end) if key not in changed}
        found |= {key: value for key, value in changed.items() if value is not None}
        yield from sorted(found.items())

    def some(self, start: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first pairs with start <= key < end, with changes not written yet."""
        changes = self._changes
        changed = sorted(key for key in changes if start <= key < end)
        found: list[tuple[bytes, bytes]] = []
        stored = ((k, v) for k, v in self.kv.scan(start, end) if k not in changes)
        pending = ((key, value) for key in changed if (value := changes[key]) is not None)
        for pair in merge(stored, pending):
            found.append(pair)
            if len(found) == count:
                break
        return found

    def keys_of(self, kind: RowKind) -> "Keys":
        return Keys(self, self.kv, sorted(key for key in self._changes if key[0] == kind.byte))

    def producer(self, key: bytes) -> bytes | None:
        """Return a producer's own row: looked up before its batch is in line, and in the fold."""
        try:
            return self._producers[key]
        except KeyError:
            row = self.get(key)
            self._cache(self._producers, key, row)
            return row

    def put_producer(self, key: bytes, row: bytes | None) -> None:
        """Put a producer as `put` does."""
        self._changes[key] = row
        self._cache(self._producers, key, row)

    def partition(self, key: PartitionKey) -> Partition | None:
        row = self._partitions.get(key)
        if row is None and (row := self._dirty_partitions.get(key)) is None:
            data = self.get(rows.partition_key(*key))
            if data is not None:
                row = rows.decode_partition(data)
                self._cache(self._partitions, key, row)
        return row

    def put_partition(self, key: PartitionKey, row: Partition) -> None:
        self._dirty_partitions[key] = row
        self.touched.add(key)
        if row.any_routes:
            self.routed.add(key)
        if self._partitions.get(key) is not row:
            self._cache(self._partitions, key, row)

    def put_quietly(self, key: PartitionKey, row: Partition) -> None:
        """Put as `put_partition` does: the change is nothing to the partition's readers."""
        told = key in self.touched
        self.put_partition(key, row)
        if not told:
            self.touched.discard(key)

    def add_partitions(self, queue_id: QueueId, indices: list[int]) -> None:
        """Add empty partitions, maybe thousands: they are cached once somebody asks for them."""
        self.counts.partitions += len(indices)
        changes, touch, empty = self._changes, self.touched.add, _EMPTY
        cached, dirty = self._partitions, self._dirty_partitions
        for index in indices:
            key = (queue_id, index)
            changes[rows.partition_key(*key)] = empty
            touch(key)
            if key in cached or key in dirty:  # the row that an id stood for before is gone
                cached.pop(key, None)
                dirty.pop(key, None)

    def add_batch(
        self, key: PartitionKey, row: Partition, header: BatchHeader, place: LogLocation,
        log_offset: int, look_ms: int | None, *, routed: bool = False, number: int = 0,
    ) -> None:  # fmt: skip
        """Add a batch that kproxy made at the next offsets. (APPEND, the hot path, does so inline.)

        `look_ms`: when to look at the partition's retention, where it was empty; None: never.
        `routed`: it comes from another queue, and no route passes it on. `number`: how many of this
        envelope the partition has got before it.
        """
        if row.next_offset == row.log_start and look_ms is not None:
            self.file(rows.retention_due_key(look_ms, *key))  # it has records again
        last_offset = row.next_offset + header.last_offset_delta
        row.next_offset = last_offset + 1
        row.size += place.length
        if header.max_timestamp > row.max_time_ms:
            row.max_time_ms, row.max_time_offset = header.max_timestamp, last_offset
        batch = rows.encode_batch(
            *place, header.last_offset_delta, log_offset, row.size, header.max_timestamp,
            row.max_time_ms, False,
        )  # fmt: skip
        if row.first_open >= 0:
            batch = rows.with_transaction(batch, header, routed=routed, number=number)
        else:
            batch = batch + rows.ROUTED if routed else rows.with_number(batch, number)
        self.put(rows.batch_key(*key, last_offset), batch)
        self.put_partition(key, row)
        self.count_live(place)

    def note_shipped(self, key: PartitionKey, queue: Queue | None) -> None:
        """Note that a queue has got something that no producer has sent to it.

        `queue`: None where another shard has its row, and whether it is compacted is not known.
        """
        if queue is None or rows.compacts(queue.configs):
            if len(self.shipped_to) < _SHIPPED_TO_MAX:
                self.shipped_to.add(key)

    def drop_partition(self, key: PartitionKey) -> None:
        self.counts.partitions -= 1
        self._dirty_partitions.pop(key, None)
        self._partitions.pop(key, None)
        self.touched.add(key)
        self.put(rows.partition_key(*key), None)
        if self.get(compaction_key := rows.compaction_key(*key)) is not None:
            self.put(compaction_key, None)

    def drop_hidden(self, key: PartitionKey) -> None:
        """Drop as `drop_partition` does one that no reader knows: it is not counted."""
        self._dirty_partitions.pop(key, None)
        self._partitions.pop(key, None)
        self.put(rows.partition_key(*key), None)

    def queue(self, name: str) -> Queue | None:
        row = self._queues.get(name)
        if row is None and (data := self.get(rows.queue_key(name))) is not None:
            row = rows.decode_queue(name, data)
            self._cache(self._queues, name, row)
        return row

    def name(self, queue_id: QueueId) -> str | None:
        name = self._names.get(queue_id)
        if name is None and (data := self.get(rows.name_key(queue_id))) is not None:
            name = data.decode()
            self._cache(self._names, queue_id, name)
        return name

    def queue_by_id(self, queue_id: QueueId) -> Queue | None:
        name = self.name(queue_id)
        return None if name is None else self.queue(name)

    def put_queue(self, queue: Queue) -> None:
        self.queue_changes += 1
        if queue.changed_at == queue.created_at:
            self.counts.queues += 1
        self._cache(self._queues, queue.name, queue)
        self.put(rows.queue_key(queue.name), queue.encode())
        self.put(rows.name_key(queue.queue_id), queue.name.encode())

    def drop_queue(self, queue: Queue) -> None:
        self.queue_changes += 1
        self.counts.queues -= 1
        self._queues.pop(queue.name, None)
        self._names.pop(queue.queue_id, None)
        self.put(rows.queue_key(queue.name), None)
        self.put(rows.name_key(queue.queue_id), None)

    def batch_at(self, key: PartitionKey, last_offset: int) -> Batch | None:
        data = self.get(rows.batch_key(*key, last_offset))
        return None if data is None else rows.decode_batch(data)

    def passed_on(self, key: PartitionKey) -> int | None:
        """Return the offset before which all routes have passed on all; None: it has none.

        For readers between two writes.
        """
        row = self.partition(key)
        if row is None or not row.any_routes:
            return None
        found = self.kv.walk(*ROUTES.range(key))
        return min((route_rows.decode_route(data).landed for _, data in found), default=None)

    def compaction(self, key: PartitionKey) -> Compaction:
        data = self.get(rows.compaction_key(*key))
        return rows.NOT_COMPACTED if data is None else rows.decode_compaction(data)

    def committed(self, group: str, key: PartitionKey) -> Committed | None:
        data = self.get(rows.offset_key(group, *key))
        return None if data is None else rows.decode_committed(data)

    def is_owners(self, envelope: Envelope) -> bool:
        """Return whether the sender of a command that only the shard's owner sends still is that.

        It may have stood still for long, and gone on with what lay in its sockets.
        """
        data = self.get(rows.TERM_KEY)
        return data is None or rows.decode_term(data).writer == envelope.writer

    @property
    def pending_offsets(self) -> int:
        """The number of offsets that wait for the end of a transaction."""
        if self._pending_offsets < 0:
            data = self.get(PENDING_COUNT_KEY)
            self._pending_offsets = 0 if data is None else decode_count(data)
        return self._pending_offsets

    def any_pending(self, group: str, key: PartitionKey | None = None) -> bool:
        """Return whether an offset of a group, or of one partition of it, waits so."""
        if not self.pending_offsets:
            return False
        parts = (group,) if key is None else (group, key)
        return bool(self.some(*PENDING_BY_PARTITION.range(*parts), 1))

    def count_pending(self, change: int) -> None:
        count = self.pending_offsets + change
        self._pending_offsets = count
        self.put(PENDING_COUNT_KEY, encode_count(count))

    def aborted(
        self, key: PartitionKey, start: int, end: int
    ) -> Iterator[tuple[int, transaction_rows.Aborted]]:
        """Yield (marker's offset, transaction) of aborted ones that matter to this stretch.

        For readers between two writes; in the order of markers, as in Kafka's transaction index.
        """
        for found, value in self.kv.walk(*transaction_rows.aborted_range(key, start)):
            aborted = ABORTED.decode(value)
            if aborted.first_offset < end:
                yield ABORTED.parts(found)[1], aborted
            if aborted.last_stable >= end:
                return

    def count_live(self, location: LogLocation | Batch) -> None:
        """Count a batch that lies here from now on."""
        self._count(location.segment, location.length + COPY_BYTES)

    def count_dead(self, location: LogLocation | Batch) -> None:
        """Count out a batch that lies here and is not needed here any more."""
        self._count(location.segment, -location.length - COPY_BYTES)

    def _count(self, segment: int, change: int) -> None:
        last, live = self._last_segment
        live = (live if segment == last else self.live_bytes(segment)) + change
        self._segments[segment] = live
        self.counts.bytes += change
        self._last_segment = (segment, live)

    def live_bytes(self, segment: int) -> int:
        """Return what copying a segment's live batches forward would write; 0: it has none.

        Each counts with what frames it: where batches are small, a log of nothing but live ones
        would seem mostly dead, and be copied for ever.
        """
        if segment in self._segments:
            return self._segments[segment]
        data = self.kv.get(rows.segment_key(segment))
        return 0 if data is None else rows.decode_live_bytes(data)

    # -- scans, for readers between two writes

    def batches(self, key: PartitionKey, offset: int, end: int) -> Iterator[tuple[int, Batch]]:
        """Yield (last offset, batch) from the one with `offset` on, last offset below `end`."""
        start = rows.batch_key(*key, offset)
        for found, value in self.kv.scan(start, rows.batch_key(*key, end)):
            yield rows.batch_key_offset(found), rows.decode_batch(value)

    def stored_batches(self, key: PartitionKey, offset: int, end: int) -> Iterator[StoredBatch]:
        """Yield as `batches`, for readers: few, and of one partition at a time.

        Nothing is looked for behind the batch that ends at `end`: there may be no row near.
        """
        stored, last = rows.stored_batch, rows.batch_key(*key, end - 1)
        for row in self.kv.walk(rows.batch_key(*key, offset), rows.batch_key(*key, end)):
            yield stored(*row)
            if row[0] == last:
                return

    def stored_spans(
        self, key: PartitionKey, offset: int, end: int
    ) -> Iterator[tuple[StoredBatch, int]]:
        """Yield (batch, its last offset) from the one with `offset` to the last before `end`.

        So nothing lies between them, or behind the last of them and before `end`.
        """
        stored, last_offset = rows.stored_batch, rows.batch_key_offset
        found = self.kv.walk(rows.batch_key(*key, offset), rows.batch_key(*key, _OFFSET_END))
        for row in found:
            batch, last = stored(*row), last_offset(row[0])
            if batch[0] >= end:
                return
            yield batch, last
            if last >= end - 1:  # there may be no row near
                return

    def first_batch(
        self, key: PartitionKey, wanted: Callable[[Batch], bool]
    ) -> tuple[int, Batch] | None:
        """Return the first live batch for which `wanted` holds, as it does for all after it."""
        row = self.partition(key)
        if row is None:
            return None
        low, high, best = row.log_start, row.next_offset, None
        while low < high:
            middle = (low + high) // 2
            found = next(self.batches(key, middle, row.next_offset), None)
            if found is None:
                high = middle
                continue
            last_offset, batch = found
            if wanted(batch):
                best, high = found, min(middle, last_offset - batch.last_delta)
            else:
                low = last_offset + 1
        return best

    def live_size(self, key: PartitionKey) -> int:
        """Return the bytes of a partition's batches from its log start on."""
        row = self.partition(key)
        found = self.first_batch(key, lambda batch: True)
        if row is None or found is None:
            return 0
        done = self.compaction(key)
        if found[0] < done.clean_end:
            return self.clean_bytes(key, row) + row.size - done.size_through
        return row.size - found[1].size_through + found[1].length

    def live_size_about(self, key: PartitionKey) -> int:
        """Return `live_size` with one look: what compaction took of the middle counts as there."""
        row = self.partition(key)
        if row is None or row.log_start == row.next_offset:
            return 0
        start, end = rows.batch_key(*key, row.log_start), rows.batch_key(*key, row.next_offset)
        for _, data in self.kv.walk(start, end):
            first = rows.decode_batch(data)
            return row.size - first.size_through + first.length
        return 0

    def clean_bytes(self, key: PartitionKey, row: Partition) -> int:
        """Return the bytes that compaction left, from the log start on: after a trim, about."""
        done = self.compaction(key)
        if row.log_start == done.log_start:
            return done.clean_bytes
        found = self.batches(key, row.log_start, done.clean_end)
        lengths = [batch.length for _, batch in islice(found, _COUNTED_MAX)]
        return sum(lengths) if len(lengths) < _COUNTED_MAX else done.clean_bytes

    # -- writing

    @property
    def changed(self) -> int:
        """The number of rows that the next `drain` gives, about."""
        return len(self._changes) + len(self._dirty_partitions)

    def drain(self) -> dict[bytes, bytes | None]:
        """Return everything changed since the last call, encoded."""
        changes = self._changes
        for (queue_id, index), row in self._dirty_partitions.items():
            changes[rows.partition_key(queue_id, index)] = row.encode()
        for segment, count in self._segments.items():
            changes[rows.segment_key(segment)] = rows.encode_live_bytes(count)
        self._changes = {}
        self._dirty_partitions = {}
        self._segments = {}
        if self.unpublished is not None:
            self._note_unpublished(changes, self.unpublished)
        return changes

    def _note_unpublished(self, changes: dict[bytes, bytes | None], noted: set[bytes]) -> None:
        for key in list(changes):
            if key[0] in PUBLISHED_BYTES and key not in noted:
                noted.add(key)
                changes[rows.unpublished_key(key)] = b""

    def take_touched(self) -> set[PartitionKey]:
        """Return the partitions whose readers may have something new since the last call."""
        touched, self.touched = self.touched, set()
        return touched

    def _cache(self, cache: dict[Key, Row], key: Key, value: Row) -> None:
        """Keep a row. The oldest make room; an unwritten one is found without the cache."""
        if len(cache) >= self._rows_cached_max:
            for old in list(islice(cache, max(1, self._rows_cached_max // 8))):
                del cache[old]
        cache[key] = value


class Keys:
    """The keys of one kind of row, with changes not written yet, for many looks of one command.

    Changes are gathered once, for there may be thousands. A row that is put later is not seen.
    """

    def __init__(self, state: State, kv: Kv, changed: list[bytes]) -> None:
        """Note the changes; `changed`: those put or deleted and not written yet, in their order."""
        self._state, self._kv, self._changed = state, kv, changed

    def between(self, start: bytes, end: bytes, *, bounded: bool = False) -> Iterator[bytes]:
        """Yield keys with start <= key < end. No other rows are walked before it is done.

        `bounded`: RocksDB steps over no deleted rows behind `end`, but takes longer to begin.
        """
        low, high = bisect_left(self._changed, start), bisect_left(self._changed, end)
        read = self._kv.scan if bounded else self._kv.walk
        stored = (key for key, _ in read(start, end))
        last = b""
        for key in merge(stored, self._changed[low:high]):
            if key != last and self._state.get(key) is not None:
                yield key
            last = key
