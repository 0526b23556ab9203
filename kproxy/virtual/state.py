"""A shard's state as the fold sees it: rows behind a bounded cache, changes gathered for one write.

Everything in it has been applied, and was durable before that. Readers may answer from it.
`virtual.changes` has rows as bytes, `virtual.cached_rows` single rows as values; here are batches,
what they take, and the write.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from kproxy.protocol.batch import BatchHeader
from kproxy.virtual.cached_rows import CachedRows
from kproxy.virtual.changes import Kv
from kproxy.virtual.commands.envelope import COPY_BYTES
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import routes as route_rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.batches import Batch, StoredBatch
from kproxy.virtual.rows.kinds import PUBLISHED_BYTES, RowKind
from kproxy.virtual.rows.queues import Partition, Queue
from kproxy.virtual.rows.routes import ROUTES
from kproxy.virtual.rows.transactions import ABORTED
from kproxy.virtual.types import PartitionKey
from kproxy.virtual.writers import Writers

_COUNTED_MAX = 200  # rows of batches, for what they take together
_SHIPPED_TO_MAX = 10_000
_OFFSET_END = (1 << 64) - 1  # behind every batch of a partition


class State(CachedRows):
    """Rows by key. `drain` gives the changes since the last one, to be written in one piece."""

    def __init__(self, kv: Kv, rows_cached_max: int = 50_000) -> None:
        super().__init__(kv, rows_cached_max)
        self._segments: dict[int, int] = {}  # live bytes, changed since the last write
        self._last_segment = (-1, 0)  # live bytes of the one that changed last
        self.forgotten_early = 0  # producers, by their number, since who tells of them took it
        self.shipped_to: set[PartitionKey] = set()
        """Partitions of compacted queues that routes or dead letters came to: no row says so."""
        self.writers = Writers(kv)
        self.unpublished: set[bytes] | None = None  # keys of changed rows, where any are published

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
        batch = batch_rows.appended(
            place, header, log_offset, row.size, row.max_time_ms,
            opened=row.first_open >= 0, routed=routed, number=number,
        )  # fmt: skip
        self.put(batch_rows.batch_key(*key, last_offset), batch)
        self.put_partition(key, row)
        self.count_live(place)

    def note_shipped(self, key: PartitionKey, queue: Queue | None) -> None:
        """Note that a queue has got something that no producer has sent to it.

        `queue`: None where another shard has its row, and whether it is compacted is not known.
        """
        if queue is None or rows.compacts(queue.configs):
            if len(self.shipped_to) < _SHIPPED_TO_MAX:
                self.shipped_to.add(key)

    def passed_on(self, key: PartitionKey) -> int | None:
        """Return the offset before which all routes have passed on all; None: it has none.

        For readers between two writes.
        """
        row = self.partition(key)
        if row is None or not row.any_routes:
            return None
        found = self.kv.walk(*ROUTES.range(key))
        return min(route_rows.landed_of(found), default=None)

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

    def live_segments(self) -> set[int]:
        """Return the segments with anything live, as of the rows."""
        found = self.kv.scan(*RowKind.LIVE_BYTES.range())
        return {rows.segment_of(key) for key, data in found if rows.decode_live_bytes(data)}

    def batches(self, key: PartitionKey, offset: int, end: int) -> Iterator[tuple[int, Batch]]:
        """Yield (last offset, batch) from the one with `offset` on, last offset below `end`."""
        start = batch_rows.batch_key(*key, offset)
        for found, value in self.kv.scan(start, batch_rows.batch_key(*key, end)):
            yield batch_rows.batch_key_offset(found), batch_rows.decode_batch(value)

    def stored_batches(self, key: PartitionKey, offset: int, end: int) -> Iterator[StoredBatch]:
        """Yield as `batches`, for readers: few, and of one partition at a time.

        Nothing is looked for behind the batch that ends at `end`: there may be no row near.
        """
        stored, last = batch_rows.stored_batch, batch_rows.batch_key(*key, end - 1)
        for row in self.kv.walk(
            batch_rows.batch_key(*key, offset), batch_rows.batch_key(*key, end)
        ):
            yield stored(*row)
            if row[0] == last:
                return

    def stored_spans(
        self, key: PartitionKey, offset: int, end: int
    ) -> Iterator[tuple[StoredBatch, int]]:
        """Yield (batch, its last offset) from the one with `offset` to the last before `end`.

        So nothing lies between them, or behind the last of them and before `end`.
        """
        stored, last_offset = batch_rows.stored_batch, batch_rows.batch_key_offset
        found = self.kv.walk(
            batch_rows.batch_key(*key, offset), batch_rows.batch_key(*key, _OFFSET_END)
        )
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
        start, end = (
            batch_rows.batch_key(*key, row.log_start),
            batch_rows.batch_key(*key, row.next_offset),
        )
        for _, data in self.kv.walk(start, end):
            first = batch_rows.decode_batch(data)
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
        if self.writers.changed:
            self.writers.drain(changes)
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
