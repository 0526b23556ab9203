"""A reader of records inside a batch: for look-ups by time, for compaction, and to check them.

Never on the produce or fetch path of queues that do not ask for it.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from kproxy import native
from kproxy.protocol.batch import (
    CODEC_MASK,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from kproxy.protocol.codecs import TooLarge, Unfit, pack, packings, unpack
from kproxy.protocol.varint import Malformed, read_varlong

HEAD_BYTES = 31  # a record's length, attributes, time and offset deltas at most
_CRC = struct.Struct(">I")
_CRC_AT = 17
TOO_LONG = "a record is longer than its batch"
OUTSIDE = "a record lies outside its batch"
MORE = "there is more in the batch than its records"


def record_times(batch: bytes) -> Iterator[tuple[int, int]]:
    """Yield (offset delta, timestamp in milliseconds) of each record. Raise Malformed."""
    header = read_header(batch)
    stamp = header.max_timestamp if header.is_log_append_time else None
    pieces = unpack(batch[HEADER_BYTES:], header.codec)
    data, position = b"", 0
    for _ in range(header.record_count):
        while len(data) - position < HEAD_BYTES and (piece := next(pieces, None)):
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


def unpacked(batch: bytes | memoryview, bytes_max: int | None = None) -> bytes:
    """Return the records of a batch that is looked into as a whole.

    Raise Malformed, or its TooLarge: they are more than is looked at.
    """
    header, most = read_header(batch), max(bytes_max or INSPECTED_BYTES_MAX, len(batch))
    if header.record_count > INSPECTED_RECORDS_MAX:
        raise TooLarge(f"the batch has more than {INSPECTED_RECORDS_MAX} records")
    parts, size = [], 0
    for piece in unpack(bytes(batch[HEADER_BYTES:]), header.codec):
        size += len(piece)
        if size > most:
            raise TooLarge(f"the records unpack to more than {most} bytes")
        parts.append(piece)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def keyed_records(header: BatchHeader, data: bytes) -> Iterator[KeyedRecord]:
    """Yield all records of a batch, from what it unpacks to.

    Raise Malformed: they do not fit the header, or each other.
    """
    stamp = header.max_timestamp if header.is_log_append_time else None
    position, last = 0, -1
    for _ in range(header.record_count):
        record, position = _keyed(data, position, header.base_timestamp, stamp)
        if not last < record.offset_delta <= header.last_offset_delta:
            raise Malformed(OUTSIDE)
        last = record.offset_delta
        yield record
    if position != len(data):
        raise Malformed(MORE)


def _keyed(
    data: bytes, position: int, base_timestamp: int, stamp: int | None
) -> tuple[KeyedRecord, int]:
    """Return the record at a position, and the position behind it. Raise Malformed."""
    end = len(data)
    length, at = read_varlong(data, position, end)
    after = at + length
    if length < 3 or after > end:
        raise Malformed(TOO_LONG)
    time_delta, at = read_varlong(data, at + 1, after)
    offset_delta, at = read_varlong(data, at, after)
    key_bytes, at = read_varlong(data, at, after)
    key = None
    if key_bytes >= 0:
        key, at = data[at : at + key_bytes], at + key_bytes
    if at > after:
        raise Malformed(TOO_LONG)
    value_bytes, at = read_varlong(data, at, after)
    if at + max(0, value_bytes) > after:
        raise Malformed(TOO_LONG)
    time_ms = base_timestamp + time_delta if stamp is None else stamp
    return KeyedRecord(offset_delta, time_ms, key, value_bytes >= 0, data[position:after]), after


Body = tuple[int, int, bytes | None, bytes, dict[bytes, bytes | None]]
"""A record: offset delta, time, key, its bytes from the key on, and its headers, the last of each
name, where they were asked for."""
NO_HEADERS: dict[bytes, bytes | None] = {}
_NO_NAMES: frozenset[bytes] = frozenset()
TIME_MAX = 1 << 61  # ms: so that the time between any two records fits 64 bits
TIME_BEYOND = "a record's time is beyond all bounds"


def bodies(header: BatchHeader, data: bytes, *, headers: bool | frozenset[bytes]) -> list[Body]:
    """Return all records of a batch, from what it unpacks to. Raise Malformed.

    `headers`: whether they are wanted, or of which names: a batch may have millions.
    """
    found, position = parse_run(header, data, 0, header.record_count, headers)
    if position != len(data):
        raise Malformed(MORE)
    return found


def parse_run(
    header: BatchHeader, data: bytes, position: int, count: int,
    headers: bool | frozenset[bytes], last: int = -1, *, whole: bool = True,
) -> tuple[list[Body], int]:  # fmt: skip
    """Return so many records from a position on, and where they end. Raise Malformed.

    `last`: the offset delta of the one before. `whole`: there is nothing behind the data; else
    records that are not there as a whole are left.
    """
    stamp = header.max_timestamp if header.is_log_append_time else None
    if abs(header.base_timestamp if stamp is None else stamp) >= TIME_MAX:
        raise Malformed(TIME_BEYOND)
    wanted = _NO_NAMES if headers is False else None if headers is True else headers
    heads_end = len(data) if whole else len(data) - HEAD_BYTES
    found: list[Body] = []
    try:
        position = _parse(header, stamp, data, position, heads_end, count, wanted, last, found)
    except IndexError:
        raise Malformed(TOO_LONG) from None
    if whole and len(found) < count:
        raise Malformed(TOO_LONG)
    return found, position


def _parse(
    header: BatchHeader, stamp: int | None, data: bytes, position: int, heads_end: int, count: int,
    names: frozenset[bytes] | None, last: int, found: list[Body],
) -> int:  # fmt: skip
    """Read numbers of one byte or two, as most are, in place. Raise Malformed, IndexError."""
    base_ms, most, end = header.base_timestamp, header.last_offset_delta, len(data)
    add, more, no = found.append, read_varlong, NO_HEADERS
    for _ in range(count):
        if position >= heads_end:
            break
        length, at = data[position], position + 1
        if length < 0x80:
            length = length >> 1 ^ -(length & 1)
        elif (high := data[at]) < 0x80:
            length, at = (length & 0x7F | high << 7) >> 1 ^ -(length & 1), at + 1
        else:
            length, at = more(data, position, end)
        after = at + length
        if length < RECORD_BYTES_MIN or after > end:
            return _before_cut(position, length, cut=heads_end < end)
        time_ms, at = data[at + 1], at + 2
        if time_ms < 0x80:
            time_ms = time_ms >> 1 ^ -(time_ms & 1)
        else:
            time_ms, at = more(data, at - 1, after)
            if abs(time_ms) >= TIME_MAX:
                raise Malformed(TIME_BEYOND)
        delta, at = data[at], at + 1
        if delta < 0x80:
            delta = delta >> 1 ^ -(delta & 1)
        elif (high := data[at]) < 0x80:
            delta, at = (delta & 0x7F | high << 7) >> 1 ^ -(delta & 1), at + 1
        else:
            delta, at = more(data, at - 1, after)
        if not last < delta <= most:
            raise Malformed(OUTSIDE)
        last, begin = delta, at
        size, at = data[at], at + 1
        if size < 0x80:
            size = size >> 1 ^ -(size & 1)
        else:
            size, at = more(data, begin, after)
        key = None
        if size >= 0:
            key, at = data[at : at + size], at + size
        size, at = data[at], at + 1
        if size < 0x80:
            size = size >> 1 ^ -(size & 1)
        elif (high := data[at]) < 0x80:
            size, at = (size & 0x7F | high << 7) >> 1 ^ -(size & 1), at + 1
        else:
            size, at = more(data, at - 1, after)
        if size > 0:
            at += size
        if at >= after:
            raise Malformed(TOO_LONG)
        named = no if at + 1 == after and not data[at] else _headers(data, at, after, names) or no
        add((delta, base_ms + time_ms if stamp is None else stamp, key, data[begin:after], named))
        position = after
    return position


def _before_cut(position: int, length: int, *, cut: bool) -> int:
    """Return where a record that is not there as a whole begins. Raise Malformed: it should be."""
    if length < RECORD_BYTES_MIN or not cut:
        raise Malformed(TOO_LONG)
    return position


def header_bytes(count: int, data: bytes) -> list[bytes]:
    """Return what each of so many records has from the number of its headers on. Raise Malformed.

    Less is looked at than by `bodies`: for who wants to know whether they all say the same.
    """
    found = native.header_bytes(count, data)
    if found is not None:
        return found
    try:
        return _header_bytes(count, data)
    except IndexError:
        raise Malformed(TOO_LONG) from None


def _header_bytes(count: int, data: bytes) -> list[bytes]:
    position, end = 0, len(data)
    found: list[bytes] = []
    add, more = found.append, read_varlong
    for _ in range(count):
        length, at = data[position], position + 1
        if length < 0x80:
            length >>= 1
        elif (high := data[at]) < 0x80:
            length, at = (length & 0x7F | high << 7) >> 1, at + 1
        else:
            length, at = more(data, position, end)
        after = at + length
        if length < RECORD_BYTES_MIN or after > end:
            raise Malformed(TOO_LONG)
        at += 1
        while data[at] > 0x7F:  # the time
            at += 1
        at += 1
        while data[at] > 0x7F:  # the offset
            at += 1
        at += 1
        for _ in _KEY_AND_VALUE:
            size = data[at]
            if size < 0x80:
                size, at = size >> 1 ^ -(size & 1), at + 1
            elif (high := data[at + 1]) < 0x80:
                size, at = (size & 0x7F | high << 7) >> 1 ^ -(size & 1), at + 2
            else:
                size, at = more(data, at, after)
            if size > 0:
                at += size
        if at >= after:
            raise Malformed(TOO_LONG)
        add(data[at:after])
        position = after
    if position != end:
        raise Malformed(MORE)
    return found


_KEY_AND_VALUE = (0, 1)


def headers_in(data: bytes, wanted: frozenset[bytes] | None = None) -> dict[bytes, bytes | None]:
    """Return the last value of each name, of what `header_bytes` gives. Raise Malformed.

    `wanted`: of these names alone: a record may have a million.
    """
    try:
        return _headers(data, 0, len(data), wanted)
    except IndexError:
        raise Malformed(_HEADERS_TOO_LONG) from None


RECORD_BYTES_MIN = 6  # attributes, deltas, key, value, number of headers


def _headers(
    data: bytes, at: int, after: int, wanted: frozenset[bytes] | None = None
) -> dict[bytes, bytes | None]:
    """Return the last value of each name that is wanted; None: of all.

    Raise Malformed: they do not end where the record does.
    """
    more = read_varlong
    count, at = more(data, at, after)
    if not 0 <= count <= after - at:
        raise Malformed(_HEADERS_TOO_LONG)
    found: dict[bytes, bytes | None] = {}
    for _ in range(count):
        size = data[at]
        if size < 0x80:
            size, at = size >> 1 ^ -(size & 1), at + 1
        else:
            size, at = more(data, at, after)
        if size < 0:
            raise Malformed(_HEADERS_TOO_LONG)
        name, at = data[at : at + size], at + size
        size = data[at]
        if size < 0x80:
            size, at = size >> 1 ^ -(size & 1), at + 1
        else:
            size, at = more(data, at, after)
        if wanted is None or name in wanted:
            found[name] = data[at : at + size] if size >= 0 else None
        if size > 0:
            at += size
        if at > after:
            raise Malformed(_HEADERS_TOO_LONG)
    if at != after:
        raise Malformed("a record is longer than what it holds")
    return found


_HEADERS_TOO_LONG = "a record's headers are longer than it"


def with_records(
    header: BatchHeader, records: list[bytes], latest_ms: int, most: int | None = None
) -> bytes:
    """Return a batch with some of its records, one or more, in their order, at their offsets.

    `records`: their `data`; `latest_ms`: their largest time. As Kafka's cleaner writes it: base
    offset, last offset delta and base timestamp stay. Raise Unfit: it has more than `most` bytes,
    however it is packed.
    """
    data = b"".join(records)
    head = header._replace(max_timestamp=latest_ms, record_count=len(records))
    for codec, level in packings(header.codec):
        made = repacked(head, data, codec, level)
        if most is None or len(made) <= most:
            return made
    raise Unfit(f"{len(records)} records take more than {most} bytes, however they are packed")


def without_producer(header: BatchHeader, batch: bytes) -> bytes:
    """Return a batch with its records as they are, of no producer and no transaction."""
    attributes = header.attributes & ~TRANSACTIONAL
    head = header._replace(
        attributes=attributes, producer_id=-1, producer_epoch=-1, base_sequence=-1
    )
    return _made(head, batch[HEADER_BYTES:])


def repacked(header: BatchHeader, data: bytes, codec: int, level: int | None) -> bytes:
    """Return a batch with its records, as they are unpacked, packed by another codec."""
    attributes = header.attributes & ~CODEC_MASK | codec
    return _made(header._replace(attributes=attributes), pack(data, codec, level))


def _made(header: BatchHeader, body: bytes) -> bytes:
    """Return a batch of this header and these records, with its length and its CRC."""
    made = bytearray(HEADER_BYTES + len(body))
    HEADER.pack_into(made, 0, *header._replace(length=len(made) - LOG_OVERHEAD_BYTES))
    made[HEADER_BYTES:] = body
    _CRC.pack_into(made, _CRC_AT, crc32c(memoryview(made)[CRC_FROM:]))
    return bytes(made)
