"""Rows: all the state that one decision reads, as one value, and their binary forms.

`virtual.rows.kinds` lists the kinds of rows. This module makes and reads their keys and values;
those of groups are in `virtual.rows.groups`, those of producers in `virtual.rows.producers`.

A row that will grow names its form in one byte. The form is the highest byte of a number of our own
that never needs it: the log start of a partition, the segment of a batch, the time of a committed
offset; for a producer the high half of the number of batches. In a queue's row it follows the
numbers. A number that a client chooses must not hold the form, because it may be anything. An
unknown form was written by a later release and is refused.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kproxy.protocol.batch import BatchHeader
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.producers import producer_end
from kproxy.virtual.types import LogOffset, PartitionKey, QueueId

_QUEUE = struct.Struct(">16siiQQ")
_PARTITION_KEY = struct.Struct(">c16sI")
_PRODUCER_KEY = struct.Struct(">c16sIq")
_BATCH_KEY = struct.Struct(">c16sIQ")
_PARTITION = struct.Struct(">QQQqQH")
_ENDS = struct.Struct(">QQ")  # its beginning
NEXT_OFFSET = slice(8, 16)  # in a `p` row
_SPILLED = struct.Struct(">H")
_SPILLED_BY_TIME = struct.Struct(">I")
_ANY_SPILLED = 0x8000  # in the number of producers in a `p` row: how many are not ends the row
_ANY_OPEN = 0x4000  # transactions with records: the first offset of the earliest follows
_ANY_ABORTED = 0x2000
_ANY_ROUTES = 0x1000
_BY_TIME = 0x0800  # the number of those not in the row takes 32 bits
_PRODUCERS = 0x07FF
SPILLED_MAX, SPILLED_MAX_BY_TIME = 0xFFFF, 0xFFFF_FFFF
"""Producers of a partition that have rows of their own, without and with `Partition.by_time`."""
_FIRST_OPEN = struct.Struct(">q")
_BATCH = struct.Struct(">QIIiQQqqB")
_COMPACTION = struct.Struct(">QQQQqQQ")
_OFFSET = struct.Struct(">qiq")
_ORDERED_OFFSET = struct.Struct(">qiqQ")
_DUE = struct.Struct(">cQ16sI")
_ASSIGNMENT = struct.Struct(">qi")

_TERM = struct.Struct(">BQQ")

TOMBSTONE_INDEX = 0xFFFFFFFF
"""The index in a `c` row that means the note of a deleted queue, to be forgotten."""
TOMBSTONE_KEPT_MS = 24 * 3600 * 1000  # by then no late command can speak of a deleted queue
_KEPT = 1 << 60
HIDDEN = 1 << 30
"""The bit in a hidden partition's index: its records wait for the one without it."""
_HIDDEN_AT, _HIDDEN_BIT = 17, 0x40  # the same in a key


_QUEUE_KIND = RowKind.QUEUE.letter  # `.letter`: plain bytes, for what is done for each batch
_NAME_KIND = RowKind.NAME.letter
_PARTITION_KIND = RowKind.PARTITION.letter
_PRODUCER_KIND = RowKind.PRODUCER.letter
_BATCH_KIND = RowKind.BATCH.letter
_COMPACTION_KIND = RowKind.COMPACTION.letter
_OFFSET_KIND = RowKind.OFFSET.letter
_LIVE_BYTES_KIND = RowKind.LIVE_BYTES.letter
_RETENTION_DUE_KIND = RowKind.RETENTION_DUE.letter
_RETENTION_ENTRY_KIND = RowKind.RETENTION_ENTRY.letter
_PRODUCERS_DUE_KIND = RowKind.PRODUCERS_DUE.letter
_UNPUBLISHED_KIND = RowKind.UNPUBLISHED.letter


def name_of(key: bytes) -> str:
    """Return the queue name or group of a key that has nothing else: QUEUE, ANNOUNCE, GROUP."""
    return key[1:].decode()


def queue_id_of(key: bytes) -> QueueId:
    """Return the queue of a key that begins with its id."""
    return QueueId(key[1:17])


def queue_key(name: str) -> bytes:
    return _QUEUE_KIND + name.encode()


def name_key(queue_id: QueueId) -> bytes:
    return _NAME_KIND + queue_id


def partition_key(queue_id: QueueId, index: int) -> bytes:
    return _PARTITION_KEY.pack(_PARTITION_KIND, queue_id, index)


def producer_key(queue_id: QueueId, index: int, producer_id: int) -> bytes:
    return _PRODUCER_KEY.pack(_PRODUCER_KIND, queue_id, index, producer_id)


def producers_range(queue_id: QueueId, index: int) -> tuple[bytes, bytes]:
    """Return the keys of all producers of a partition with rows of their own: start and end."""
    start = _PARTITION_KEY.pack(_PRODUCER_KIND, queue_id, index)
    return start, start + b"\xff" * 8


def producers_due_key(used_ms: int, key: PartitionKey) -> bytes:
    """Return a key without a value: no producer of a partition was used before, as far as known."""
    return _DUE.pack(_PRODUCERS_DUE_KIND, used_ms, *key)


def producers_due_end(time_ms: int) -> bytes:
    """Return where the keys end that were filed at this time or before."""
    return _PRODUCERS_DUE_KIND + max(0, time_ms + 1).to_bytes(8, "big")


def producers_due_of(key: bytes) -> tuple[int, PartitionKey]:
    """Return (time in ms, partition) of a key of kind PRODUCERS_DUE."""
    return retention_due_of(key)


def batch_key(queue_id: QueueId, index: int, last_offset: int) -> bytes:
    """Return a batch's key by its last offset: a seek to an offset finds the batch that has it."""
    return _BATCH_KEY.pack(_BATCH_KIND, queue_id, index, last_offset)


def is_hidden(key: bytes) -> bool:
    """Return whether a key of kind PARTITION is of a partition that no reader knows."""
    return bool(key[_HIDDEN_AT] & _HIDDEN_BIT)


def compaction_key(queue_id: QueueId, index: int) -> bytes:
    return _PARTITION_KEY.pack(_COMPACTION_KIND, queue_id, index)


def partition_of(key: bytes) -> PartitionKey:
    """Return the queue partition that a key of kind `p`, `b`, `r` or `t` belongs to."""
    return QueueId(key[1:17]), int.from_bytes(key[17:21], "big")


def batch_key_offset(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def offset_key(group: str, queue_id: QueueId, index: int) -> bytes:
    return offset_prefix(group) + queue_id + index.to_bytes(4, "big")


def offset_prefix(group: str) -> bytes:
    name = group.encode()
    return _OFFSET_KIND + len(name).to_bytes(2, "big") + name


def offset_range(group: str) -> tuple[bytes, bytes]:
    """Return where a group's committed offsets lie, for a scan."""
    prefix = offset_prefix(group)
    return prefix, prefix + b"\xff" * 21


def partition_of_offset(key: bytes) -> PartitionKey:
    """Return the queue partition that a key of kind `o` belongs to."""
    return QueueId(key[-20:-4]), int.from_bytes(key[-4:], "big")


def group_of_offset(key: bytes) -> str:
    """Return the group that a key of kind OFFSET belongs to."""
    return key[3:-20].decode()


def offsets_by_queue_range(queue_id: QueueId) -> tuple[bytes, bytes]:
    """Return the keys that say who has committed on a queue: start and end."""
    start = RowKind.OFFSET_BY_QUEUE + queue_id
    return start, start + b"\xff" * 5


def offset_by_queue_key(queue_id: QueueId, index: int, group: str) -> bytes:
    return RowKind.OFFSET_BY_QUEUE + queue_id + index.to_bytes(4, "big") + group.encode()


def group_of_offset_by_queue(key: bytes) -> str:
    return key[21:].decode()


def sweep_key(log_offset: int) -> bytes:
    return RowKind.SWEEP_QUEUE + log_offset.to_bytes(8, "big")


def trimmed_key(log_offset: int) -> bytes:
    return RowKind.SWEEP_PARTITION + log_offset.to_bytes(8, "big")


def segment_key(segment: int) -> bytes:
    return _LIVE_BYTES_KIND + segment.to_bytes(8, "big")


def encode_live_bytes(count: int) -> bytes:
    return count.to_bytes(9, "big", signed=True)


def decode_live_bytes(data: bytes) -> int:
    """Decode live bytes. A row of 8 bytes counted records alone: its segment is kept."""
    return int.from_bytes(data, "big", signed=True) + (_KEPT if len(data) == 8 else 0)


def no_effect_key(log_offset: int) -> bytes:
    """Return a key without a value: the append at this log offset had no effect."""
    return RowKind.NO_EFFECT + log_offset.to_bytes(8, "big")


def pending_assignment_key(queue_id: QueueId) -> bytes:
    return RowKind.PENDING_ASSIGNMENT + queue_id


def assignment_key(queue_id: QueueId) -> bytes:
    return RowKind.ASSIGNMENT + queue_id


def announce_key(name: str) -> bytes:
    return RowKind.ANNOUNCE + name.encode()


def retention_due_key(time_ms: int, queue_id: bytes, index: int) -> bytes:
    """Return a key without a value: look at a partition for what its retention no longer keeps."""
    return _DUE.pack(_RETENTION_DUE_KIND, max(0, time_ms), queue_id, index)


def retention_due_of(key: bytes) -> tuple[int, PartitionKey]:
    """Return (time in ms, partition) of a key of kind `c`."""
    _, time_ms, queue_id, index = _DUE.unpack(key)
    return time_ms, (QueueId(queue_id), index)


def retention_entry_key(queue_id: QueueId, index: int) -> bytes:
    """Return the time under which a partition was filed last: it may be filed twice."""
    return _PARTITION_KEY.pack(_RETENTION_ENTRY_KIND, queue_id, index)


def published_key(key: bytes) -> bytes:
    """Return the key of the row that a key of kind UNPUBLISHED speaks of."""
    return key[1:]


def counter_key(partition: bytes) -> bytes:
    """Return the key of a rebuild's counter, from the key of the partition's row."""
    return RowKind.REBUILD_COUNTER + partition[1:]


def unpublished_key(key: bytes) -> bytes:
    return _UNPUBLISHED_KIND + key


CHECKPOINT_KEY = RowKind.CHECKPOINT.letter
COMPARE_KEY = RowKind.COMPARE.letter
TERM_KEY = RowKind.TERM.letter


class Term(NamedTuple):
    """The `K` row: the claim that holds, by its log offset, and whose it is."""

    claim: int
    writer: int

    def encode(self) -> bytes:
        return _TERM.pack(1, *self)


def decode_term(data: bytes) -> Term:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    form, claim, writer = _TERM.unpack_from(data)
    if form != 1:
        raise later_form("a row of kind K", form)
    return Term(claim, writer)


def compacts(configs: Mapping[str, str]) -> bool:
    """Return whether a queue with these settings is compacted."""
    return "compact" in configs.get("cleanup.policy", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue's home row.

    `created_at` and `changed_at` are log offsets of its home shard. `partitions` can be used;
    `wanted` is more while other shards are still told of new ones.
    """

    name: str
    queue_id: QueueId
    partitions: int
    wanted: int
    created_at: LogOffset
    changed_at: LogOffset
    configs: dict[str, str] = field(default_factory=dict)
    unasked: bool = False
    """Whether it was made at a look-up or a first record, and nobody has said how it is to be. A
    route that would have made it gives it its settings. It has none till then."""

    def encode(self) -> bytes:
        """Encode a queue: an unasked one has empty settings, which an older kproxy reads."""
        configs = json.dumps(self.configs).encode() if self.configs or self.unasked else b""
        return (
            _QUEUE.pack(
                self.queue_id, self.partitions, self.wanted, self.created_at, self.changed_at
            )
            + configs
        )


_JSON = ord("{")
_NO_CONFIGS: dict[str, str] = {}  # for the many queues that have none; never changed in place


def decode_queue(name: str, data: bytes) -> Queue:
    """Decode a row; both its offsets are one object where they are equal, as of most queues."""
    queue_id, partitions, wanted, created_at, changed_at = _QUEUE.unpack_from(data)
    configs = _NO_CONFIGS
    if len(data) > _QUEUE.size:
        if data[_QUEUE.size] != _JSON:
            raise later_form("a row of kind q", data[_QUEUE.size])
        configs = json.loads(data[_QUEUE.size :])
    return Queue(
        name=name,
        queue_id=QueueId(queue_id),
        partitions=partitions,
        wanted=wanted,
        created_at=LogOffset(created_at),
        changed_at=LogOffset(created_at if changed_at == created_at else changed_at),
        configs=configs,
        unasked=configs is not _NO_CONFIGS and not configs,
    )


def encode_assignment(as_of: int, partitions: int) -> bytes:
    """Return the `h` row: log offset in the home shard, and the queue's partitions as of it."""
    return _ASSIGNMENT.pack(as_of, partitions)


def decode_assignment(data: bytes) -> tuple[int, int]:
    return _ASSIGNMENT.unpack(data)


class Partition:
    """A queue partition's row. Changed in place by the fold alone.

    `producers`: rows of those that came last, oldest use first. `spilled`: how many others have
    rows.
    `by_time`: those are remembered for a time (`virtual.producers`); never where there are none.
    `first_open`: the first offset of the earliest open transaction, -1 where none has records.
    `any_aborted`: whether it may have ABORTED rows. `any_routes`: whether it has ROUTE rows.
    """

    __slots__ = (
        "any_aborted", "any_routes", "by_time", "first_open", "log_start", "max_time_ms",
        "max_time_offset", "next_offset", "producers", "size", "spilled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.log_start = 0
        self.next_offset = 0
        self.size = 0  # bytes ever appended; a batch's index row has the sum up to it
        self.max_time_ms = -1
        self.max_time_offset = 0  # last offset of the first batch with that time
        self.producers: tuple[bytes, ...] = ()
        self.spilled = 0
        self.by_time = False
        self.first_open = -1
        self.any_aborted = False
        self.any_routes = False

    @property
    def last_stable(self) -> int:
        """The offset before which nothing is undecided: where read_committed ends."""
        if self.first_open < 0:
            return self.next_offset
        return max(self.log_start, self.first_open)

    def encode(self) -> bytes:
        producers = self.producers
        count = len(producers)
        tail = b""
        if self.spilled:
            count |= _ANY_SPILLED
            if self.by_time:
                count |= _BY_TIME
                tail = _SPILLED_BY_TIME.pack(self.spilled)
            else:
                tail = _SPILLED.pack(self.spilled)
        if self.any_aborted:
            count |= _ANY_ABORTED
        if self.any_routes:
            count |= _ANY_ROUTES
        opened = b""
        if self.first_open >= 0:
            count |= _ANY_OPEN
            opened = _FIRST_OPEN.pack(self.first_open)
        head = _PARTITION.pack(
            self.log_start,
            self.next_offset,
            self.size,
            self.max_time_ms,
            self.max_time_offset,
            count,
        )
        if not producers and not tail:
            return head + opened if opened else head
        return b"".join((head, opened, *producers, tail))


def decode_partition(data: bytes) -> Partition:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    if data[0]:
        raise later_form("a row of kind p", data[0])
    row = Partition()
    (
        row.log_start,
        row.next_offset,
        row.size,
        row.max_time_ms,
        row.max_time_offset,
        count,
    ) = _PARTITION.unpack_from(data)
    position = _PARTITION.size
    if count & _ANY_OPEN:
        (row.first_open,) = _FIRST_OPEN.unpack_from(data, position)
        position += _FIRST_OPEN.size
    row.any_aborted = bool(count & _ANY_ABORTED)
    row.any_routes = bool(count & _ANY_ROUTES)
    producers = []
    for _ in range(count & _PRODUCERS):
        end = producer_end(data, position)
        producers.append(data[position:end])
        position = end
    row.producers = tuple(producers)
    if count & _ANY_SPILLED:
        row.by_time = bool(count & _BY_TIME)
        width = _SPILLED_BY_TIME if row.by_time else _SPILLED
        (row.spilled,) = width.unpack_from(data, position)
    return row


def remembers_by_time(data: bytes) -> bool:
    """Return whether an encoded partition has producers with rows of their own that are."""
    *_, count = _PARTITION.unpack_from(data)
    return bool(count & _BY_TIME)


def partition_ends(data: bytes) -> tuple[int, int]:
    """Log start and next offset of an encoded partition. Raise ValueError as its decoding does."""
    if data[0]:
        raise later_form("a row of kind p", data[0])
    log_start, next_offset = _ENDS.unpack_from(data)
    return log_start, next_offset


class Batch(NamedTuple):
    """A batch's index row: where its bytes lie, and what is searched by."""

    segment: int
    position: int  # the batch's own, in the segment's file
    length: int
    last_delta: int  # last offset less base offset
    log_offset: int  # the APPEND's, also for a copy
    size_through: int  # the partition's size with this batch
    max_time_ms: int
    max_time_through_ms: int  # over this batch and all before it
    copied: int = 0  # 1: it lies further on than where it was appended; more: and was compacted
    routed: bool = False  # another queue has passed it on: no route passes it on again
    number: int = 0  # among the batches of its partition that one envelope has
    transaction: int = -2  # the producer whose transaction it is part of; NO_TRANSACTION, NOT_SAID

    @property
    def generation(self) -> int:
        """The number of times that compaction made it smaller: 1 to 254, then 1; 0: never."""
        return self.copied - 1 if self.copied else 0

    def encode(self) -> bytes:
        data = _BATCH.pack(*self[:-3])
        if self.transaction != NOT_SAID:
            return data + _WHOSE.pack(self.routed, self.number, self.transaction)
        if self.number:
            return data + _MORE.pack(self.routed, self.number)
        return data + ROUTED if self.routed else data


GENERATION_MAX = 254


class Compaction(NamedTuple):
    """The progress of a partition's compaction.

    A record without a value goes once all older ones of its key were gone for as long as
    `delete.retention.ms` says: those before `settled_end` are gone for so long.
    """

    clean_end: int  # no key has two values before this offset
    size_through: int  # the partition's size there, of all that was ever appended
    clean_bytes: int  # bytes that are left before it, from `log_start` on
    pending_end: int  # the `clean_end` of a pass
    pending_ms: int  # and when that was
    settled_end: int
    log_start: int  # as the pass found it

    def encode(self) -> bytes:
        return _COMPACTION.pack(*self)


NOT_COMPACTED = Compaction(0, 0, 0, 0, -1, 0, 0)


def decode_compaction(data: bytes) -> Compaction:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    if data[0]:
        raise later_form("a row of kind z", data[0])
    return Compaction._make(_COMPACTION.unpack(data))


StoredBatch = tuple[int, int, int, int]
"""A batch to be read: base offset, segment, position in its file, length. Plain, for one is made of
each batch that is fetched."""
_STORED = struct.Struct(">QIIi")  # a batch's row begins so
_LAST_OFFSET = struct.Struct(">Q")
_LAST_OFFSET_AT = _BATCH_KEY.size - _LAST_OFFSET.size


def stored_batch(key: bytes, data: bytes) -> StoredBatch:
    """Return the place of a batch's row. Raise ValueError as `decode_batch` does."""
    if data[0]:
        raise later_form("a row of kind b", data[0])
    segment, position, length, last_delta = _STORED.unpack_from(data)
    return _LAST_OFFSET.unpack_from(key, _LAST_OFFSET_AT)[0] - last_delta, segment, position, length


encode_batch = _BATCH.pack
"""A batch's row from the values of `Batch` in their order: without making one on the hot path."""

ROUTED = b"\1"
"""The end of the row of a batch that another queue has passed on."""
_MORE = struct.Struct(">?H")  # the same, and a batch's number


_WHOSE = struct.Struct(">?Hq")  # both, and whose transaction; an older kproxy passes over that
NO_TRANSACTION, NOT_SAID = -1, -2
"""A batch is part of none: it is plain, or a marker. Or its row does not say: no transaction was
open in its partition, or an older kproxy has written the row."""


def with_number(data: bytes, number: int) -> bytes:
    """Return the row of a batch that has a number: it is not the first its partition got at
    once."""
    return data + _MORE.pack(False, number) if number else data


def with_transaction(
    data: bytes, header: BatchHeader, *, routed: bool = False, number: int = 0
) -> bytes:
    """Return the row of a batch that came while a transaction was open in its partition."""
    return data + _WHOSE.pack(routed, number, transaction_of(header))


def transaction_of(header: BatchHeader) -> int:
    """Return the producer whose transaction a batch is part of."""
    is_part = header.is_transactional and not header.is_control
    return header.producer_id if is_part else NO_TRANSACTION


def decode_batch(data: bytes) -> Batch:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    if data[0]:
        raise later_form("a row of kind b", data[0])
    values, more = _BATCH.unpack_from(data), len(data) - _BATCH.size
    if more == _WHOSE.size:
        return Batch._make((*values, *_WHOSE.unpack_from(data, _BATCH.size)))
    if more > 1:
        return Batch._make((*values, *_MORE.unpack_from(data, _BATCH.size), NOT_SAID))
    return Batch._make((*values, more > 0, 0, NOT_SAID))


_COMMITTED_FORM_AT = 12  # in the time
_ORDERED = 1  # the form of a row that has a log offset
_ORDERED_TIME = _ORDERED << 56


class Committed(NamedTuple):
    """A group's committed offset of one queue partition.

    `log_offset`: of the commit that gave it; -1 where no earlier commit can still be waiting.
    """

    offset: int
    leader_epoch: int
    time_ms: int
    metadata: str
    log_offset: int = -1

    def encode(self) -> bytes:
        offset, leader_epoch, time_ms, metadata, log_offset = self
        if log_offset < 0:
            return _OFFSET.pack(offset, leader_epoch, time_ms) + metadata.encode()
        numbers = offset, leader_epoch, time_ms | _ORDERED_TIME, log_offset
        return _ORDERED_OFFSET.pack(*numbers) + metadata.encode()


def decode_committed(data: bytes) -> Committed:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    form = data[_COMMITTED_FORM_AT]
    if form == _ORDERED:
        offset, leader_epoch, time_ms, log_offset = _ORDERED_OFFSET.unpack_from(data)
        metadata = data[_ORDERED_OFFSET.size :].decode()
        return Committed(offset, leader_epoch, time_ms & ~_ORDERED_TIME, metadata, log_offset)
    if form:
        raise later_form("a row of kind o", form)
    offset, leader_epoch, time_ms = _OFFSET.unpack_from(data)
    return Committed(offset, leader_epoch, time_ms, data[_OFFSET.size :].decode())
