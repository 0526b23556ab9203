"""Rows of committed offsets, by group and partition. COMMIT is hot: they are made by hand."""

import struct
from typing import NamedTuple

from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId

_OFFSET = struct.Struct(">qiq")
_ORDERED_OFFSET = struct.Struct(">qiqQ")
_OFFSET_KIND = RowKind.OFFSET.letter


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
