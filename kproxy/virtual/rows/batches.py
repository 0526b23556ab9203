"""Rows of batches: where each lies in the log, by partition and last offset.

They are made by hand, for one is made of each batch that comes, and one is read of each that goes.
"""

import struct
from typing import NamedTuple

from kproxy.protocol.batch import BatchHeader
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import QueueId

_BATCH_KEY = struct.Struct(">c16sIQ")
_BATCH = struct.Struct(">QIIiQQqqB")
_BATCH_KIND = RowKind.BATCH.letter


def batch_key(queue_id: QueueId, index: int, last_offset: int) -> bytes:
    """Return a batch's key by its last offset: a seek to an offset finds the batch that has it."""
    return _BATCH_KEY.pack(_BATCH_KIND, queue_id, index, last_offset)


def batch_key_offset(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


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


def appended(
    place: tuple[int, int, int], header: BatchHeader, log_offset: int, size_through: int,
    through_ms: int, *, opened: bool, routed: bool = False, number: int = 0,
) -> bytes:  # fmt: skip
    """Return the row of a batch that lies where it came. `opened`: a transaction may be open."""
    data = encode_batch(
        *place, header.last_offset_delta, log_offset, size_through, header.max_timestamp,
        through_ms, False,
    )  # fmt: skip
    if opened:
        return with_transaction(data, header, routed=routed, number=number)
    return data + ROUTED if routed else with_number(data, number)


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
