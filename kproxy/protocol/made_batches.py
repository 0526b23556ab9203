"""Makes batches of kproxy's own: records with headers, not packed."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from kproxy.protocol.batch import CRC_FROM, HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC
from kproxy.protocol.codecs import Unfit, pack, packings
from kproxy.protocol.varint import Malformed, read_varlong, uvarint, varlong

_CRC = struct.Struct(">I")
_CRC_AT = 17
_LOG_APPEND_TIME = 0x08
_TOO_LONG = "a record is longer than it says"
_NONE = b"\x01"  # the length of what is null


class Content(NamedTuple):
    """The content of a record, its headers as they lie."""

    key: bytes | None = None
    value: bytes | None = None
    headers: int = 0
    header_bytes: bytes = b""


def content_of(record: bytes) -> Content:
    """Return the content of a record, from its bytes (`KeyedRecord.data`). Raise Malformed."""
    end = len(record)
    _, at = read_varlong(record, 0, end)
    _, at = read_varlong(record, at + 1, end)
    _, at = read_varlong(record, at, end)
    return content_of_body(record, at)


def content_of_body(body: bytes, at: int = 0) -> Content:
    """Return the content of a record from its bytes from the key on. Raise Malformed."""
    end = len(body)
    key, at = _field(body, at, end)
    value, at = _field(body, at, end)
    headers, at = read_varlong(body, at, end)
    if headers < 0:
        raise Malformed(_TOO_LONG)
    return Content(key, value, headers, body[at:])


def body_of(content: Content, more: Sequence[bytes]) -> bytes:
    """Return a record from its key on, with these headers behind its own."""
    return b"".join(
        (
            _sized(content.key), _sized(content.value), varlong(content.headers + len(more)),
            content.header_bytes, *more,
        )
    )  # fmt: skip


def _field(record: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varlong(record, at, end)
    if size < 0:
        return None, at
    if at + size > end:
        raise Malformed(_TOO_LONG)
    return record[at : at + size], at + size


def _sized(data: bytes | None) -> bytes:
    return _NONE if data is None else varlong(len(data)) + data


def header(name: str, value: str | bytes) -> bytes:
    """Return one header of a record."""
    return _sized(name.encode()) + _sized(value.encode() if isinstance(value, str) else value)


def record(offset_delta: int, content: Content, more: Sequence[bytes]) -> bytes:
    """Return a record with these headers behind its own; its time is the batch's."""
    body = b"\0\0" + varlong(offset_delta) + body_of(content, more)
    return varlong(len(body)) + body


_TAIL = struct.Struct(">hiqqqhii")  # a record batch's header, from its attributes on
_HEAD = struct.Struct(">qiibI")
_PRODUCER, _PRODUCER_AT = struct.Struct(">qhi"), 43  # id, epoch, base sequence
_LENGTH_MORE = HEADER_BYTES - LOG_OVERHEAD_BYTES  # bytes that a length counts beside the records


def batch_of_bodies(
    bodies: Sequence[tuple[bytes, int]], codec: int = 0, stamp_ms: int | None = None,
    *, mixed: bool = False, level: int | None = None,
) -> bytes:  # fmt: skip
    """Return a batch of records that are there from their keys on: (bytes, time in ms) of each.

    One to each of many queues is what this is for. `stamp_ms`: its time, of type LogAppendTime;
    where it is `mixed`, its largest one alone, whatever its records have.
    """
    first_ms = last_ms = bodies[0][1]
    if len(bodies) == 1:
        body = bodies[0][0]
        data = uvarint(2 * len(body) + 6) + b"\0\0\0" + body
    else:
        parts: list[bytes] = []
        for delta, (body, time_ms) in enumerate(bodies):
            if time_ms > last_ms:
                last_ms = time_ms
            head = b"\0" + varlong(time_ms - first_ms) + varlong(delta)
            parts += (uvarint(2 * (len(head) + len(body))), head, body)
        data = b"".join(parts)
    if codec:
        data = pack(data, codec, level)
    count = len(bodies)
    if stamp_ms is not None:
        last_ms = stamp_ms
        codec |= 0 if mixed else _LOG_APPEND_TIME
    tail = _TAIL.pack(codec, count - 1, first_ms, last_ms, -1, -1, -1, count)
    crc = crc32c(data, crc32c(tail))
    return b"".join((_HEAD.pack(0, len(data) + _LENGTH_MORE, 0, MAGIC, crc), tail, data))


def of_producer(batch: bytes, producer_id: int, epoch: int, sequence: int = 0) -> bytes:
    """Return a batch as one of an idempotent producer; of none, where all are -1."""
    made = bytearray(batch)
    _PRODUCER.pack_into(made, _PRODUCER_AT, producer_id, epoch, sequence)
    _CRC.pack_into(made, _CRC_AT, crc32c(memoryview(made)[CRC_FROM:]))
    return bytes(made)


Cut = tuple[int, int, bytes]
"""A record that was cut out of its batch: its offset, its time in ms, its bytes from the key on."""


def gapped_batch(records: Sequence[Cut], codec: int = 0) -> bytes:
    """Return a batch of records at their offsets, ascending, with gaps where these are."""
    base, first_ms, _ = records[0]
    last_ms = before_ms = first_ms
    stamp = b"\0\0"  # no attributes, and the time of the record before
    parts: list[bytes] = []
    for offset, time_ms, body in records:
        if time_ms != before_ms:
            before_ms, last_ms = time_ms, max(last_ms, time_ms)
            stamp = b"\0" + varlong(time_ms - first_ms)
        head = stamp + uvarint(2 * (offset - base))
        parts += (uvarint(2 * (len(head) + len(body))), head, body)
    data = b"".join(parts)
    if codec:
        data = pack(data, codec)
    last, count = records[-1][0] - base, len(records)
    tail = _TAIL.pack(codec, last, first_ms, last_ms, -1, -1, -1, count)
    crc = crc32c(data, crc32c(tail))
    return b"".join((_HEAD.pack(base, len(data) + _LENGTH_MORE, 0, MAGIC, crc), tail, data))


def fitted(bodies: Sequence[tuple[bytes, int]], codec: int, most: int) -> bytes:
    """Return a batch of records of at most `most` bytes, as `batch_of_bodies` makes it.

    Packed again, records may take more than they did: the level was the client's. So it tries the
    codec, none, the codec at its best and zstandard at its best. Raise Unfit.
    """
    for one, level in packings(codec):
        made = batch_of_bodies(bodies, one, level=level)
        if len(made) <= most:
            return made
    raise Unfit(f"{len(bodies)} records take more than {most} bytes, however they are packed")


def batch(records: Sequence[bytes], time_ms: int, *, log_append_time: bool = False) -> bytes:
    """Return a batch of records, all of this time."""
    body = b"".join(records)
    count = len(records)
    made = bytearray(HEADER_BYTES + len(body))
    HEADER.pack_into(
        made, 0, 0, len(made) - LOG_OVERHEAD_BYTES, 0, MAGIC, 0,
        _LOG_APPEND_TIME if log_append_time else 0, count - 1, time_ms, time_ms, -1, -1, -1, count,
    )  # fmt: skip
    made[HEADER_BYTES:] = body
    _CRC.pack_into(made, _CRC_AT, crc32c(memoryview(made)[CRC_FROM:]))
    return bytes(made)
