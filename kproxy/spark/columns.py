"""Record batches as columns of Arrow: those of Spark's Kafka source, with headers."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from kproxy.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from kproxy.protocol.codecs import unpack
from kproxy.protocol.varint import Malformed, read_varlong

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int, headers array<struct<key string, value binary>>"
)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ARROW = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()),
        ("partition", pa.int32()), ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")), ("timestampType", pa.int32()),
        ("headers", _HEADERS),
    ]
)  # fmt: skip
_ROWS, _BYTES = 10_000, 8 << 20
_UNPACKED_MAX = 1 << 30
_OVERHEAD = 12  # the base offset and the length, in front of what the length counts
_TIME_MAX = 1 << 53  # ms: so that it is a number of microseconds
Headers = list[tuple[str, bytes | None]] | None
Record = tuple[int, int, bytes | None, bytes | None, Headers]
"""Offset delta, timestamp delta, key, value, headers."""


class Columns:
    """The rows that are not yet given to Spark."""

    def __init__(self) -> None:
        self._columns: tuple[list[Any], ...] = tuple([] for _ in _ARROW)
        self._bytes = 0

    def full(self) -> bool:
        return len(self._columns[0]) >= _ROWS or self._bytes >= _BYTES

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(
        self, header: BatchHeader, records: list[Record], queues: list[str], partition: int
    ) -> None:
        """Add records of one batch; `queues`: the queue of each."""
        keys, values, topics, partitions, offsets, times, kinds, headers = self._columns
        base, time = header.base_offset, header.base_timestamp
        topics += queues
        partitions += [partition] * len(records)
        if header.is_log_append_time:
            kinds += [1] * len(records)
            times += [header.max_timestamp] * len(records)
        else:
            kinds += [0] * len(records)
            times += [time + record[1] for record in records]
        for delta, _, key, value, said in records:
            offsets.append(base + delta)
            keys.append(key)
            values.append(value)
            headers.append(said)
            self._bytes += len(value or b"") + len(key or b"")
            if said:
                self._bytes += sum(len(name) + len(data or b"") for name, data in said)

    def taken(self) -> pa.RecordBatch:
        """Return the rows, and keep none."""
        columns, self._columns, self._bytes = self._columns, tuple([] for _ in _ARROW), 0
        arrays = []
        for field, values in zip(_ARROW, columns, strict=True):
            if field.name == "timestamp":
                if values and not -_TIME_MAX <= min(values) <= max(values) <= _TIME_MAX:
                    values = [min(max(ms, -_TIME_MAX), _TIME_MAX) for ms in values]
                times = pa.array(values, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
                arrays.append(times.cast(field.type))
            else:
                arrays.append(pa.array(values, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def batches(data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the record batches that a Fetch brought, without one that is cut off."""
    at, view = 0, memoryview(data)
    while len(data) - at >= HEADER_BYTES:
        header = read_header(view, at)
        end = at + _OVERHEAD + header.length
        if end > len(data):
            return
        yield header, view[at:end]
        at = end


def records(header: BatchHeader, batch: memoryview, start: int, end: int) -> list[Record]:
    """Return the records at offsets from `start` on, before `end`. Raises Malformed."""
    pieces: list[bytes] = []
    size = 0
    for piece in unpack(bytes(batch[HEADER_BYTES:]), header.codec):
        size += len(piece)
        if size > _UNPACKED_MAX:
            raise Malformed(f"a batch unpacks to more than {_UNPACKED_MAX >> 20} MiB")
        pieces.append(piece)
    data = b"".join(pieces)
    try:
        found = _parsed(data, header.record_count)
    except IndexError:
        raise Malformed("a record is longer than its batch") from None
    low, high = start - header.base_offset, end - header.base_offset
    if low > 0 or high <= header.last_offset_delta:
        return [record for record in found if low <= record[0] < high]
    return found


def aborts(batch: memoryview) -> bool:
    """Return whether a control batch ends a transaction by aborting it."""
    data = bytes(batch[HEADER_BYTES:])
    ((_, _, key, _, _),) = _parsed(data, 1)
    return key is not None and key[2:4] == b"\0\0"


def _parsed(data: bytes, count: int) -> list[Record]:
    """Read numbers of one byte in place, as most are. Raises Malformed, IndexError."""
    more, end, at = read_varlong, len(data), 0
    found: list[Record] = []
    add = found.append
    for _ in range(count):
        size = data[at]
        if size < 0x80:
            size, at = size >> 1, at + 1
        else:
            size, at = more(data, at, end)
        after = at + size
        if after > end or size < 0:
            raise Malformed("a record is longer than its batch")
        time = data[at + 1]
        if time < 0x80:
            time, at = time >> 1 ^ -(time & 1), at + 2
        else:
            time, at = more(data, at + 1, after)
        delta = data[at]
        if delta < 0x80:
            delta, at = delta >> 1, at + 1
        else:
            delta, at = more(data, at, after)
        key, at = _field(data, at, after)
        value, at = _field(data, at, after)
        add((delta, time, key, value, None if data[at] == 0 else _headers(data, at, after)))
        at = after
    return found


def _field(data: bytes, at: int, after: int) -> tuple[bytes | None, int]:
    size = data[at]
    if size < 0x80:
        size, at = size >> 1 ^ -(size & 1), at + 1
    else:
        size, at = read_varlong(data, at, after)
    if size < 0:
        return None, at
    if at + size > after:
        raise Malformed("a record is longer than what it holds")
    return data[at : at + size], at + size


def _headers(data: bytes, at: int, after: int) -> Headers:
    count, at = read_varlong(data, at, after)
    if not 0 <= count <= after - at:
        raise Malformed("a record has more headers than bytes")
    found = []
    for _ in range(count):
        name, at = _field(data, at, after)
        value, at = _field(data, at, after)
        found.append(((name or b"").decode(errors="replace"), value))
    return found
