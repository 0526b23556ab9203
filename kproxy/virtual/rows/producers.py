"""The memory of a partition for idempotent producers, in its `p` row or in one `k` row each.

A row of its own says as well when the producer was used, where it is remembered by time: a byte
that no id begins with, and the time, come before all else.
"""

import struct
from typing import NamedTuple

from kproxy.virtual.rows.forms import later_form

_PRODUCER = struct.Struct(">qhB")  # id, epoch, form and number of batches
_ID_AND_EPOCH = struct.Struct(">qh")  # begin it
_SENT = struct.Struct(">iiqq")
_LAST_SEQUENCE = struct.Struct(">i")  # begins what is remembered of a batch
_EPOCH = struct.Struct(">h")
_TIME = struct.Struct(">BQ")
_FORMS = 0x80  # no producer's id begins so: it is not negative
_BY_TIME = 0x81
_PRODUCER_ID_BYTES = 8
BATCHES_REMEMBERED = 5  # as Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN


class BatchMetadata(NamedTuple):
    """A batch that a producer is remembered for."""

    last_sequence: int
    last_delta: int  # records less one
    base_offset: int
    time_ms: int  # its largest timestamp: what Kafka answers a repetition with


_NO_BATCH = BatchMetadata(-1, -1, -1, -1)


class ProducerState(NamedTuple):
    """The memory of one partition for one idempotent producer, newest batch last.

    Without batches only its epoch is known: its next sequence is 0.
    """

    epoch: int
    batches: tuple[BatchMetadata, ...]

    @property
    def newest(self) -> BatchMetadata:
        """All -1 where it has no batch, as Kafka shows such a producer."""
        return self.batches[-1] if self.batches else _NO_BATCH


def decode_producer(data: bytes) -> ProducerState:
    form = data[_PRODUCER.size - 1] >> 4
    if form:
        raise later_form("a row of kind k", form)
    _, epoch, count = _PRODUCER.unpack_from(data)
    starts = range(_PRODUCER.size, _PRODUCER.size + count * _SENT.size, _SENT.size)
    return ProducerState(
        epoch, tuple(BatchMetadata._make(_SENT.unpack_from(data, at)) for at in starts)
    )


def with_time(data: bytes, used_ms: int) -> bytes:
    """Return the row of its own that a producer gets; 0: it is not remembered by time."""
    return _TIME.pack(_BY_TIME, used_ms) + data if used_ms else data


def used_ms_of(data: bytes) -> int:
    """Return when a producer with a row of its own was used last, or later; 0: it does not say."""
    return int(_TIME.unpack_from(data)[1]) if data[0] == _BY_TIME else 0


def without_time(data: bytes) -> bytes:
    """Return a row of its own in the form of a partition's row. Raise ValueError for a later
    form."""
    if data[0] < _FORMS:
        return data
    if data[0] != _BY_TIME:
        raise later_form("a row of kind k", data[0])
    return data[_TIME.size :]


def producer_end(data: bytes, start: int) -> int:
    """Return where the row of a producer ends that starts there, among others."""
    _, _, count = _PRODUCER.unpack_from(data, start)
    return start + _PRODUCER.size + int(count) * _SENT.size


def producer_id_of(data: bytes) -> int:
    """Return the producer id of a row, be that a row of its own."""
    return int.from_bytes(without_time(data)[:_PRODUCER_ID_BYTES], "big")


def producer_start(producer_id: int) -> bytes:
    """Return what the row of this producer, and of no other, starts with."""
    return producer_id.to_bytes(_PRODUCER_ID_BYTES, "big")


def producer_newest(data: bytes) -> tuple[int, int]:
    """Return (epoch, last sequence) without decoding the rest: all that most batches are judged by.

    -1 is the last sequence of a producer without batches.
    """
    (epoch,) = _EPOCH.unpack_from(data, _PRODUCER_ID_BYTES)
    if len(data) == _PRODUCER.size:
        return epoch, -1
    (last_sequence,) = _LAST_SEQUENCE.unpack_from(data, len(data) - _SENT.size)
    return epoch, last_sequence


def producer_cleared(producer_id: int, epoch: int) -> bytes:
    """Return the row of a producer of which only the epoch is known."""
    return _PRODUCER.pack(producer_id, epoch, 0)


def producer_with(
    data: bytes | None, producer_id: int, epoch: int, sent: tuple[int, int, int, int]
) -> bytes:
    """Return the row of a producer, None if it is new, with one batch more and no more than five.

    `sent`: what a `BatchMetadata` has.
    """
    kept = b""
    if data is not None and data.startswith(_ID_AND_EPOCH.pack(producer_id, epoch)):
        kept = data[_PRODUCER.size :][(1 - BATCHES_REMEMBERED) * _SENT.size :]
    count = len(kept) // _SENT.size + 1
    return _PRODUCER.pack(producer_id, epoch, count) + kept + _SENT.pack(*sent)
