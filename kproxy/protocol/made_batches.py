"""Makes batches of kproxy's own: records with headers, not packed."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from kproxy.protocol.batch import CRC_FROM, HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC
from kproxy.protocol.varint import Malformed, read_varlong, uvarint

_CRC = struct.Struct(">I")
_CRC_AT = 17
_LOG_APPEND_TIME = 0x08
_TOO_LONG = "a record is longer than it says"
_NONE = b"\x01"  # the length of what is null


class Content(NamedTuple):
    """What a record holds, its headers as they lie."""

    key: bytes | None = None
    value: bytes | None = None
    headers: int = 0
    header_bytes: bytes = b""


def content_of(record: bytes) -> Content:
    """The content of a record, from all of its bytes (`KeyedRecord.data`). Raises Malformed."""
    end = len(record)
    _, at = read_varlong(record, 0, end)
    _, at = read_varlong(record, at + 1, end)
    _, at = read_varlong(record, at, end)
    key, at = _field(record, at, end)
    value, at = _field(record, at, end)
    headers, at = read_varlong(record, at, end)
    if headers < 0:
        raise Malformed(_TOO_LONG)
    return Content(key, value, headers, record[at:])


def _field(record: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varlong(record, at, end)
    if size < 0:
        return None, at
    if at + size > end:
        raise Malformed(_TOO_LONG)
    return record[at : at + size], at + size


def _varlong(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def _sized(data: bytes | None) -> bytes:
    return _NONE if data is None else _varlong(len(data)) + data


def header(name: str, value: str) -> bytes:
    """One header of a record."""
    return _sized(name.encode()) + _sized(value.encode())


def record(offset_delta: int, content: Content, more: Sequence[bytes]) -> bytes:
    """A record with these headers behind its own; its time is the batch's."""
    body = b"".join(
        (
            b"\0\0", _varlong(offset_delta), _sized(content.key), _sized(content.value),
            _varlong(content.headers + len(more)), content.header_bytes, *more,
        )
    )  # fmt: skip
    return _varlong(len(body)) + body


def batch(records: Sequence[bytes], time_ms: int, *, log_append_time: bool = False) -> bytes:
    """A batch of records, all of this time."""
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
