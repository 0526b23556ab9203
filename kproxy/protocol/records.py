"""Reads records inside a batch: for look-ups by time, for compaction, and to check them.

Never on the produce or fetch path of queues that do not ask for it.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from kproxy.protocol.batch import (
    CODEC_MASK,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    read_header,
)
from kproxy.protocol.codecs import pack, unpack
from kproxy.protocol.varint import Malformed, read_varlong

_HEAD_BYTES = 31  # a record's length, attributes, time and offset deltas at most
_CRC = struct.Struct(">I")
_CRC_AT = 17
_TOO_LONG = "a record is longer than its batch"


def record_times(batch: bytes) -> Iterator[tuple[int, int]]:
    """(offset delta, timestamp in milliseconds) of each record. Raises Malformed."""
    header = read_header(batch)
    stamp = header.max_timestamp if header.is_log_append_time else None
    pieces = unpack(batch[HEADER_BYTES:], header.codec)
    data, position = b"", 0
    for _ in range(header.record_count):
        while len(data) - position < _HEAD_BYTES and (piece := next(pieces, None)):
            data, position = data[position:] + piece, 0
        length, position = read_varlong(data, position, len(data))
        after = position + length
        if length < 3:
            raise Malformed("a record is shorter than its head")
        time_delta, at = read_varlong(data, position + 1, min(after, len(data)))
        offset_delta, _ = read_varlong(data, at, min(after, len(data)))
        while after > len(data):
            after -= len(data)
            data = next(pieces, b"")
            if not data:
                raise Malformed("a record is longer than its batch")
        yield offset_delta, header.base_timestamp + time_delta if stamp is None else stamp
        position = after


class KeyedRecord(NamedTuple):
    """A record as compaction needs it."""

    offset_delta: int
    time_ms: int
    key: bytes | None
    has_value: bool
    data: bytes  # all of it, as it lies in the unpacked batch


INSPECTED_BYTES_MAX, INSPECTED_RECORDS_MAX = 32 << 20, 200_000
"""A batch that is looked into as a whole unpacks to no more, and has no more records."""


def unpacked(batch: bytes | memoryview) -> bytes:
    """The records of a batch that is looked into as a whole.

    Raises Malformed, of which TooLarge: they are more than is looked at.
    """
    header, most = read_header(batch), max(INSPECTED_BYTES_MAX, len(batch))
    if header.record_count > INSPECTED_RECORDS_MAX:
        raise TooLarge(f"the batch has more than {INSPECTED_RECORDS_MAX} records")
    parts, size = [], 0
    for piece in unpack(bytes(batch[HEADER_BYTES:]), header.codec):
        size += len(piece)
        if size > most:
            raise TooLarge(f"the records unpack to more than {most} bytes")
        parts.append(piece)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class TooLarge(Malformed):
    """A batch that holds more than is looked at."""


def keyed_records(header: BatchHeader, data: bytes) -> Iterator[KeyedRecord]:
    """All records of a batch, from what it unpacks to.

    Raises Malformed: they do not fit the header, or each other.
    """
    stamp = header.max_timestamp if header.is_log_append_time else None
    position, last = 0, -1
    for _ in range(header.record_count):
        record, position = _keyed(data, position, header.base_timestamp, stamp)
        if not last < record.offset_delta <= header.last_offset_delta:
            raise Malformed("a record lies outside its batch")
        last = record.offset_delta
        yield record
    if position != len(data):
        raise Malformed("there is more in the batch than its records")


def _keyed(
    data: bytes, position: int, base_timestamp: int, stamp: int | None
) -> tuple[KeyedRecord, int]:
    """The record at a position, and the position behind it. Raises Malformed."""
    end = len(data)
    length, at = read_varlong(data, position, end)
    after = at + length
    if length < 3 or after > end:
        raise Malformed(_TOO_LONG)
    time_delta, at = read_varlong(data, at + 1, after)
    offset_delta, at = read_varlong(data, at, after)
    key_bytes, at = read_varlong(data, at, after)
    key = None
    if key_bytes >= 0:
        key, at = data[at : at + key_bytes], at + key_bytes
    if at > after:
        raise Malformed(_TOO_LONG)
    value_bytes, at = read_varlong(data, at, after)
    if at + max(0, value_bytes) > after:
        raise Malformed(_TOO_LONG)
    time_ms = base_timestamp + time_delta if stamp is None else stamp
    return KeyedRecord(offset_delta, time_ms, key, value_bytes >= 0, data[position:after]), after


def with_records(header: BatchHeader, records: list[bytes], latest_ms: int) -> bytes:
    """A batch with some of its records, in their order, at their offsets. At least one is left.

    `records`: their `data`; `latest_ms`: their largest time. As Kafka's cleaner writes it: base
    offset, last offset delta and base timestamp stay.
    """
    body = pack(b"".join(records), header.codec)
    return _made(header._replace(max_timestamp=latest_ms, record_count=len(records)), body)


def repacked(header: BatchHeader, data: bytes, codec: int, level: int | None) -> bytes:
    """A batch with its records, as they are unpacked, packed by another codec."""
    attributes = header.attributes & ~CODEC_MASK | codec
    return _made(header._replace(attributes=attributes), pack(data, codec, level))


def _made(header: BatchHeader, body: bytes) -> bytes:
    """A batch of this header and these records, with its length and its CRC."""
    made = bytearray(HEADER_BYTES + len(body))
    HEADER.pack_into(made, 0, *header._replace(length=len(made) - LOG_OVERHEAD_BYTES))
    made[HEADER_BYTES:] = body
    _CRC.pack_into(made, _CRC_AT, crc32c(memoryview(made)[CRC_FROM:]))
    return bytes(made)
