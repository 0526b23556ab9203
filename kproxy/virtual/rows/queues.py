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

from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.producers import producer_end
from kproxy.virtual.schema import Keys, Rows
from kproxy.virtual.types import LogOffset, PartitionKey, QueueId

_QUEUE = struct.Struct(">16siiQQ")
_PARTITION_KEY = struct.Struct(">c16sI")
_PRODUCER_KEY = struct.Struct(">c16sIq")
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
_COMPACTION = struct.Struct(">QQQQqQQ")
_DUE = struct.Struct(">cQ16sI")
_ASSIGNMENT = struct.Struct(">qi")

TOMBSTONE_INDEX = 0xFFFFFFFF
"""The index in a `c` row that means the note of a deleted queue, to be forgotten."""
TOMBSTONE_KEPT_MS = 24 * 3600 * 1000  # by then no late command can speak of a deleted queue
_KEPT = 1 << 60
HIDDEN = 1 << 30
"""The bit in a hidden partition's index: its records wait for the one without it."""
_HIDDEN_AT, _HIDDEN_BIT = 17, 0x40  # the same in a key


_PARTITION_KIND = RowKind.PARTITION.letter
_PRODUCER_KIND = RowKind.PRODUCER.letter
_LIVE_BYTES_KIND = RowKind.LIVE_BYTES.letter
_RETENTION_DUE_KIND = RowKind.RETENTION_DUE.letter
_UNPUBLISHED_KIND = RowKind.UNPUBLISHED.letter


def name_of(key: bytes) -> str:
    """Return the queue name or group of a key that has nothing else: QUEUE, ANNOUNCE, GROUP."""
    return key[1:].decode()


def raw_name_of(key: bytes) -> bytes:
    """Return the same in UTF-8."""
    return key[1:]


def queue_id_of(key: bytes) -> QueueId:
    """Return the queue of a key that begins with its id."""
    return QueueId(key[1:17])


queue_key = Keys(RowKind.QUEUE, "T").key
name_key = Keys(RowKind.NAME, "16s").key
compaction_key = Keys(RowKind.COMPACTION, "16sI")
sweep_key = Keys(RowKind.SWEEP_QUEUE, "Q").key
trimmed_key = Keys(RowKind.SWEEP_PARTITION, "Q").key
no_effect_key = Keys(RowKind.NO_EFFECT, "Q").key
"""The log offsets, without a value, of what had no effect. A MARKER's value has a bit for each
partition that it left as it was."""
pending_assignment_key = Keys(RowKind.PENDING_ASSIGNMENT, "16s").key
assignment_key = Keys(RowKind.ASSIGNMENT, "16s").key
announce_key = Keys(RowKind.ANNOUNCE, "T").key
retention_entry_key = Keys(RowKind.RETENTION_ENTRY, "16sI")
"""The time under which a partition was filed last: it may be filed twice."""
producers_due_key = Keys(RowKind.PRODUCERS_DUE, "QP")
"""The times and partitions, without a value: no producer was used before, as far as is known."""


def segment_key(segment: int) -> bytes:
    return _LIVE_BYTES_KIND + segment.to_bytes(8, "big")


def segment_of(key: bytes) -> int:
    return int.from_bytes(key[1:], "big")


def partition_key(queue_id: QueueId, index: int) -> bytes:
    return _PARTITION_KEY.pack(_PARTITION_KIND, queue_id, index)


def producer_key(queue_id: QueueId, index: int, producer_id: int) -> bytes:
    return _PRODUCER_KEY.pack(_PRODUCER_KIND, queue_id, index, producer_id)


def producers_range(queue_id: QueueId, index: int) -> tuple[bytes, bytes]:
    """Return the keys of all producers of a partition with rows of their own: start and end."""
    start = _PARTITION_KEY.pack(_PRODUCER_KIND, queue_id, index)
    return start, start + b"\xff" * 8


def producers_due_end(time_ms: int) -> bytes:
    """Return where the keys end that were filed at this time or before."""
    return RowKind.PRODUCERS_DUE + max(0, time_ms + 1).to_bytes(8, "big")


def is_hidden(key: bytes) -> bool:
    """Return whether a key of kind PARTITION is of a partition that no reader knows."""
    return bool(key[_HIDDEN_AT] & _HIDDEN_BIT)


def partition_of(key: bytes) -> PartitionKey:
    """Return the queue partition that a key of kind `p`, `b`, `r` or `t` belongs to."""
    return QueueId(key[1:17]), int.from_bytes(key[17:21], "big")


def sweep_note(queue_id: QueueId, partition: int) -> bytes:
    """Return the value of a row for the sweeper."""
    return json.dumps([queue_id.hex(), partition]).encode()


def encode_live_bytes(count: int) -> bytes:
    return count.to_bytes(9, "big", signed=True)


def decode_live_bytes(data: bytes) -> int:
    """Decode live bytes. A row of 8 bytes counted records alone: its segment is kept."""
    return int.from_bytes(data, "big", signed=True) + (_KEPT if len(data) == 8 else 0)


def retention_due_key(time_ms: int, queue_id: bytes, index: int) -> bytes:
    """Return a key without a value: look at a partition for what its retention no longer keeps."""
    return _DUE.pack(_RETENTION_DUE_KIND, max(0, time_ms), queue_id, index)


def retention_due_of(key: bytes) -> tuple[int, PartitionKey]:
    """Return (time in ms, partition) of a key of kind RETENTION_DUE or PRODUCERS_DUE."""
    time_ms, partition = producers_due_key.parts(key)
    return time_ms, partition


producers_due_of = retention_due_of


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
    """The claim that holds, by its log offset, and whose it is."""

    claim: int
    writer: int

    def encode(self) -> bytes:
        return _TERMS.encode(self)


_TERMS = Rows(RowKind.TERM, "", Term, "QQ")
decode_term = _TERMS.decode


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
        numbers = self.partitions, self.wanted, self.created_at, self.changed_at
        return _QUEUE.pack(self.queue_id, *numbers) + configs


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
        name=name, queue_id=QueueId(queue_id), partitions=partitions, wanted=wanted,
        created_at=LogOffset(created_at),
        changed_at=LogOffset(created_at if changed_at == created_at else changed_at),
        configs=configs, unasked=configs is not _NO_CONFIGS and not configs,
    )  # fmt: skip


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
            self.log_start, self.next_offset, self.size, self.max_time_ms, self.max_time_offset,
            count,
        )  # fmt: skip
        if not producers and not tail:
            return head + opened if opened else head
        return b"".join((head, opened, *producers, tail))


def decode_partition(data: bytes) -> Partition:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    if data[0]:
        raise later_form("a row of kind p", data[0])
    row = Partition()
    row.log_start, row.next_offset, row.size, *times, count = _PARTITION.unpack_from(data)
    row.max_time_ms, row.max_time_offset = times
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
