"""Rows of share groups (KIP-932): which records of a queue partition are done, for each group.

A *share partition* is a queue partition for one share group. Its rows lie beside the records, in
the queue partition's shard. The group's own shard has a row for each queue that the group reads.

A record's state and how often it was delivered are one byte. The states of 256 offsets are a row.
An ACQUIRED record is never written: who holds it until when is known to the owner's memory alone.
"""

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from kproxy.virtual.forms import later_form
from kproxy.virtual.row_kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId

_FORM = 1
_SHARE = struct.Struct(">BQQIQqq")
_PARTITION = struct.Struct(">16sI")
_LENGTH = struct.Struct(">H")
_CHUNK = struct.Struct(">Q")
_OWED = struct.Struct(">B16sIqIBB")
_PLACE = struct.Struct(">QI")
_POSITION = struct.Struct(">BQIq")
_AIMED = struct.Struct(">B16sIQ")
_STREAM = struct.Struct(">B16sI")
_COUNT = struct.Struct(">I")

CHUNK = 256
"""Offsets in a row of states."""
EMPTY_CHUNK = bytes(CHUNK)


class RecordState(IntEnum):
    """As Kafka's `RecordState`, with its numbers."""

    AVAILABLE = 0
    ACQUIRED = 1  # in memory alone
    ACKNOWLEDGED = 2
    ARCHIVED = 4


STATE_BITS = 0b111
COUNT_SHIFT = 3
COUNT_MAX = 31
"""Deliveries that are counted; a group's limit is below it."""

TERMINAL = bytes(
    byte & STATE_BITS in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED) for byte in range(256)
)
"""A table for `bytes.translate`: 1 where nothing changes any more."""


def state_byte(state: RecordState, count: int) -> int:
    return state | min(count, COUNT_MAX) << COUNT_SHIFT


NOWHERE = -1


class SharePartition(NamedTuple):
    """The row of a share partition.

    What lies before `start` is done; what lies from `end` on was never delivered. `done`: how many
    records between them are terminal. `since_ms`: where it is 0 or more, the first record not
    older than that is still to be looked for, and `start` means nothing.
    """

    start: int
    end: int
    done: int
    epoch: int  # of its initialisation, or its last reset
    made_ms: int
    since_ms: int = NOWHERE

    def encode(self) -> bytes:
        return _SHARE.pack(_FORM, *self)


def decode_share(data: bytes) -> SharePartition:
    """Raises ValueError for a form of a later kproxy."""
    form, *values = _SHARE.unpack(data)
    if form != _FORM:
        raise later_form("a row of kind S", form)
    return SharePartition(*values)


def share_key(key: PartitionKey, group: str) -> bytes:
    return RowKind.SHARE_PARTITION + _PARTITION.pack(*key) + group.encode()


def share_of(key: bytes) -> tuple[PartitionKey, str]:
    """(queue partition, group) of a key of kind SHARE_PARTITION."""
    queue_id, index = _PARTITION.unpack_from(key, 1)
    return (QueueId(queue_id), index), key[1 + _PARTITION.size :].decode()


def share_in(
    get: Callable[[bytes], bytes | None], key: PartitionKey, group: str
) -> SharePartition | None:
    """The share partition, by what gets rows."""
    data = get(share_key(key, group))
    return None if data is None else decode_share(data)


# -- states of records


def states_key(key: PartitionKey, group: str, chunk: int) -> bytes:
    """Of offsets from 256 * chunk on; absent: all are available, and never were delivered."""
    return states_prefix(key, group) + _CHUNK.pack(chunk)


def states_prefix(key: PartitionKey, group: str) -> bytes:
    name = group.encode()
    return b"".join((RowKind.SHARE_STATES, _PARTITION.pack(*key), _LENGTH.pack(len(name)), name))


def states(
    get: Callable[[bytes], bytes | None], key: PartitionKey, group: str, start: int, end: int
) -> bytearray:
    """The states of start <= offset < end, by what gets rows."""
    first = start // CHUNK
    last = (end + CHUNK - 1) // CHUNK
    prefix = states_prefix(key, group)
    found = bytearray().join(
        get(prefix + _CHUNK.pack(chunk)) or EMPTY_CHUNK for chunk in range(first, last)
    )
    return found[start - first * CHUNK : end - first * CHUNK]


# -- dead letters that are owed


class Owed(NamedTuple):
    """A run of archived records that the dead-letter queue is to have."""

    key: PartitionKey
    first: int
    records: int
    deliveries: int  # of each
    cause: int  # `share_commands.Cause`
    group: str

    def encode(self) -> bytes:
        numbers = (self.first, self.records, self.deliveries, self.cause)
        return _OWED.pack(_FORM, *self.key, *numbers) + self.group.encode()


def decode_owed(data: bytes) -> Owed:
    """Raises ValueError for a form of a later kproxy."""
    form, queue_id, index, first, records, deliveries, cause = _OWED.unpack_from(data)
    if form != _FORM:
        raise later_form("a row of kind L", form)
    group = data[_OWED.size :].decode()
    return Owed((QueueId(queue_id), index), first, records, deliveries, cause, group)


def owed_key(log_offset: int, number: int) -> bytes:
    """`log_offset`: of the SHARE that archived them; `number`: which of its runs."""
    return RowKind.DEAD_LETTER + _PLACE.pack(log_offset, number)


def place_of_owed(key: bytes) -> tuple[int, int]:
    """(log offset, number) of a key of kind DEAD_LETTER."""
    return _PLACE.unpack_from(key, 1)


# -- records passed on from one queue to another


class Position(NamedTuple):
    """How far a stream has come in its source's shard: these only grow."""

    log_offset: int
    number: int
    offset: int  # the last record's, in the source

    def encode(self) -> bytes:
        return _POSITION.pack(_FORM, *self)


def decode_position(data: bytes) -> Position:
    """Raises ValueError for a form of a later kproxy."""
    form, *values = _POSITION.unpack(data)
    if form != _FORM:
        raise later_form("a row of kind M", form)
    return Position(*values)


def forwarded_key(target: PartitionKey, stream: int, source: PartitionKey, group: str) -> bytes:
    """The last position that the target has taken of a stream."""
    return b"".join(
        (
            RowKind.FORWARDED, _PARTITION.pack(*target), _STREAM.pack(stream, *source),
            group.encode(),
        )
    )  # fmt: skip


def source_of_forwarded(key: bytes) -> QueueId:
    """Return the source of a key of kind FORWARDED."""
    _, queue_id, _ = _STREAM.unpack_from(key, 1 + _PARTITION.size)
    return QueueId(queue_id)


def target_key(source: PartitionKey, group: str) -> bytes:
    """Where the dead letters of a share partition go."""
    return RowKind.FORWARD_TARGET + _PARTITION.pack(*source) + group.encode()


class Aimed(NamedTuple):
    """The target of a share partition's dead letters, and the log offset that it stands at."""

    target: PartitionKey
    log_offset: int

    def encode(self) -> bytes:
        return _AIMED.pack(_FORM, *self.target, self.log_offset)


def decode_aimed(data: bytes) -> Aimed:
    """Raises ValueError for a form of a later kproxy."""
    form, queue_id, index, log_offset = _AIMED.unpack(data)
    if form != _FORM:
        raise later_form("a row of kind W", form)
    return Aimed((QueueId(queue_id), index), log_offset)


def aimed_in(
    get: Callable[[bytes], bytes | None], source: PartitionKey, group: str
) -> Aimed | None:
    """Where they go, by what gets rows."""
    data = get(target_key(source, group))
    return None if data is None else decode_aimed(data)


def queue_ranges(queue_id: QueueId) -> Iterator[tuple[bytes, bytes]]:
    """The keys that begin with a queue: what goes with it."""
    for kind in (
        RowKind.SHARE_PARTITION, RowKind.SHARE_STATES, RowKind.FORWARDED, RowKind.FORWARD_TARGET
    ):  # fmt: skip
        yield kind + queue_id, kind + queue_id + b"\xff" * 5


# -- in the group's shard


def share_queue_key(group: str, queue_id: QueueId) -> bytes:
    return share_queue_prefix(group) + queue_id


def share_queue_prefix(group: str) -> bytes:
    name = group.encode()
    return RowKind.SHARE_QUEUE + _LENGTH.pack(len(name)) + name


def share_queues_range(group: str) -> tuple[bytes, bytes]:
    prefix = share_queue_prefix(group)
    return prefix, prefix + b"\xff" * 17


def queue_of_share(key: bytes) -> QueueId:
    """The queue of a key of kind SHARE_QUEUE."""
    return QueueId(key[-16:])


def encode_initialised(partitions: int) -> bytes:
    return _COUNT.pack(partitions)


def decode_initialised(data: bytes) -> int:
    """How many of a queue's partitions the group has share partitions of."""
    (partitions,) = _COUNT.unpack(data)
    return int(partitions)
