"""Single rows of a shard behind a bounded cache: partitions, producers, queues, offsets."""

from itertools import islice
from typing import TypeVar

from kproxy.virtual.changes import Changes, Kv
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.counts import Counts
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.idle import IDLE_DUE, idle_ms_of
from kproxy.virtual.rows.offsets import Committed
from kproxy.virtual.rows.queues import Compaction, Partition, Queue
from kproxy.virtual.rows.transactions import PENDING_BY_PARTITION, PENDING_COUNT_KEY
from kproxy.virtual.schema import decode_count, encode_count
from kproxy.virtual.types import PartitionKey, QueueId

Key = TypeVar("Key")
Row = TypeVar("Row")
_EMPTY = Partition().encode()


class CachedRows(Changes):
    """Rows as values. A write encodes each changed partition once."""

    def __init__(self, kv: Kv, rows_cached_max: int = 50_000) -> None:
        super().__init__(kv)
        self._rows_cached_max = rows_cached_max
        self._partitions: dict[PartitionKey, Partition] = {}
        self._dirty_partitions: dict[PartitionKey, Partition] = {}
        self._queues: dict[str, Queue] = {}
        self._names: dict[QueueId, str] = {}
        self._producers: dict[bytes, bytes | None] = {}
        self._pending_offsets = -1  # not looked at yet
        self.counts = Counts()
        self.shared = False
        """Whether others learn of this shard by what is published."""
        self.queue_changes = 0
        self.touched: set[PartitionKey] = set()
        self.routed: set[PartitionKey] = set()
        """Partitions with routes that have changed since who passes on took them from here."""

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

    def add_partition(self, key: PartitionKey) -> Partition:
        """Add an empty partition that gets its first records at once, and return its row."""
        self.counts.partitions += 1
        row = Partition()
        self.put_partition(key, row)
        return row

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
        if queue.queue_id in self._names:  # others are cached once somebody asks for them
            self._names[queue.queue_id] = queue.name
        self.put(rows.queue_key(queue.name), queue.encode())
        self._announce(queue.name, queue.changed_at)
        self.put(rows.name_key(queue.queue_id), queue.name.encode())
        if queue.configs and idle_ms_of(queue.configs) >= 0:
            self.file(IDLE_DUE.key(0, (queue.queue_id, 0)))

    def drop_queue(self, queue: Queue, log_offset: int) -> None:
        self.queue_changes += 1
        self.counts.queues -= 1
        self._queues.pop(queue.name, None)
        self._names.pop(queue.queue_id, None)
        self.put(rows.queue_key(queue.name), None)
        self.put(rows.name_key(queue.queue_id), None)
        self._announce(queue.name, log_offset)

    def _announce(self, name: str, log_offset: int) -> None:
        if self.shared:
            self.put(rows.announce_key(name), encode_count(log_offset))

    def void(self, log_offset: int) -> None:
        """Note that what lies there had no effect: a rebuild does not judge it again."""
        if self.shared:
            self.put(rows.no_effect_key(log_offset), b"")

    def sweep_later(self, log_offset: int, queue_id: QueueId, partition: int) -> None:
        """Leave a note for the sweeper: partition -1 is a whole queue that is gone."""
        key = rows.sweep_key(log_offset) if partition == -1 else rows.trimmed_key(log_offset)
        self.file(key, rows.sweep_note(queue_id, partition))

    def batch_at(self, key: PartitionKey, last_offset: int) -> Batch | None:
        data = self.get(batch_rows.batch_key(*key, last_offset))
        return None if data is None else batch_rows.decode_batch(data)

    def compaction(self, key: PartitionKey) -> Compaction:
        data = self.get(rows.compaction_key(*key))
        return rows.NOT_COMPACTED if data is None else rows.decode_compaction(data)

    def committed(self, group: str, key: PartitionKey) -> Committed | None:
        data = self.get(offset_rows.offset_key(group, *key))
        return None if data is None else offset_rows.decode_committed(data)

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

    def _cache(self, cache: dict[Key, Row], key: Key, value: Row) -> None:
        """Keep a row. The oldest make room; an unwritten one is found without the cache."""
        if len(cache) >= self._rows_cached_max:
            for old in list(islice(cache, max(1, self._rows_cached_max // 8))):
                del cache[old]
        cache[key] = value
