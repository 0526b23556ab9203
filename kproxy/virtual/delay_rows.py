"""Rows of records that wait until they are due.

They lie in a *hidden partition* beside the one that they are for: batches with offsets of their
own, of which no reader knows. The largest timestamp of such a batch is when it is due, so that the
log alone says so. A batch of type CreateTime is *mixed*: each of its records is due at its own
time, the first of them when the batch is.

- A WAITING row for each such batch, by partition and time: who delivers them reads them in order.
- A DELAY row beside the partition: how many wait.
- A DELAY_DUE row in the index, and the DELAY_ENTRY that says which one is a partition's.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kproxy.virtual.forms import later_form
from kproxy.virtual.row_kinds import RowKind
from kproxy.virtual.rows import HIDDEN
from kproxy.virtual.types import PartitionKey, QueueId

_FORM = 1
_WAITING = struct.Struct(">c16sIQQ")
_PARTITION = struct.Struct(">c16sI")
_DUE = struct.Struct(">cQ16sI")
_DELAY = struct.Struct(">BQQqq")

Get = Callable[[bytes], bytes | None]


def hidden(key: PartitionKey) -> PartitionKey:
    """The partition where what is for this one waits."""
    return key[0], key[1] | HIDDEN


def shown(key: PartitionKey) -> PartitionKey:
    """The partition that what waits in this one is for."""
    return key[0], key[1] & ~HIDDEN


def waiting_key(key: PartitionKey, due_ms: int, last_offset: int) -> bytes:
    """Without a value. Of a partition that readers know; the offset is the hidden one's."""
    return _WAITING.pack(RowKind.WAITING.letter, *key, due_ms, last_offset)


def waiting_of(key: bytes) -> tuple[int, int]:
    """(due in ms, last offset) of a key of kind WAITING."""
    _, _, _, due_ms, last_offset = _WAITING.unpack(key)
    return due_ms, last_offset


def waiting_range(key: PartitionKey, due_ms: int = 0, offset: int = 0) -> tuple[bytes, bytes]:
    """The keys of all that waits for a partition and is not due before: start and end.

    `offset`: of what is due just then, what lies before that is left out.
    """
    end = _PARTITION.pack(RowKind.WAITING.letter, *key) + b"\xff" * 17
    return waiting_key(key, due_ms, offset), end


def delay_due_key(due_ms: int, key: PartitionKey) -> bytes:
    """Without a value: look at a partition for what is due."""
    return _DUE.pack(RowKind.DELAY_DUE.letter, due_ms, *key)


def delay_due_of(key: bytes) -> tuple[int, PartitionKey]:
    """(time in ms, partition) of a key of kind DELAY_DUE."""
    _, due_ms, queue_id, index = _DUE.unpack(key)
    return due_ms, (QueueId(queue_id), index)


def delay_entry_key(key: PartitionKey) -> bytes:
    """The time under which a partition is filed: others of its rows in the index are stale."""
    return _PARTITION.pack(RowKind.DELAY_ENTRY.letter, *key)


def encode_entry(due_ms: int) -> bytes:
    return due_ms.to_bytes(8, "big")


def decode_entry(data: bytes) -> int:
    return int.from_bytes(data, "big")


def delay_key(key: PartitionKey) -> bytes:
    return _PARTITION.pack(RowKind.DELAY.letter, *key)


class Waiting(NamedTuple):
    """What waits for a partition. `due_ms`: of what came last with the fixed delay `delay_ms`."""

    records: int
    batches: int
    delay_ms: int
    due_ms: int

    def encode(self) -> bytes:
        return _DELAY.pack(_FORM, *self)


NOTHING = Waiting(0, 0, 0, 0)


def waiting_in(get: Get, key: PartitionKey) -> Waiting:
    """By what gets rows. Raises ValueError for a form of a later kproxy."""
    data = get(delay_key(key))
    return NOTHING if data is None else decode_waiting(data)


def decode_waiting(data: bytes) -> Waiting:
    """Raises ValueError for a form of a later kproxy."""
    form, *values = _DELAY.unpack(data)
    if form != _FORM:
        raise later_form("a row of kind Z", form)
    return Waiting(*values)


def queue_ranges(queue_id: QueueId) -> Iterator[tuple[bytes, bytes]]:
    """Where the rows of a queue lie that is gone, for the sweeper."""
    for kind in (RowKind.WAITING, RowKind.DELAY_ENTRY):
        start = kind + queue_id
        yield start, start + b"\xff" * 21
