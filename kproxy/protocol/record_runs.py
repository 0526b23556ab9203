"""A reader of a batch's records, some at a time, over a buffer that holds one record.

For whoever passes on, counts or looks for records: a batch may have as many as it likes, and unpack
to as much. Compaction and splitting hold a batch as a whole (`protocol.records`).
"""

from collections.abc import Iterator

from kproxy.protocol.batch import HEADER_BYTES, BatchHeader
from kproxy.protocol.codecs import PIECE_BYTES, unpack
from kproxy.protocol.records import (
    HEAD_BYTES,
    MORE,
    NO_HEADERS,
    OUTSIDE,
    RECORD_BYTES_MIN,
    TIME_BEYOND,
    TIME_MAX,
    TOO_LONG,
    Body,
    parse_run,
)
from kproxy.protocol.varint import Malformed, read_varlong

RUN_RECORDS = 4096
"""Records that are told at a time."""
RECORD_BYTES_MAX = 32 << 20
"""A record that is held as a whole has no more."""


def body_runs(
    header: BatchHeader, batch: bytes | memoryview, *, headers: bool | frozenset[bytes]
) -> Iterator[list[Body]]:
    """Yield all records of a batch, some at a time, in memory that does not grow with the batch.

    Only one record has a bound: a longer one than `RECORD_BYTES_MAX` has no key and no bytes at
    all. Raise Malformed behind the last run that could be told.
    """
    left, last, data, position = header.record_count, -1, b"", 0
    pieces = _slices(unpack(bytes(batch[HEADER_BYTES:]), header.codec))
    ended = False
    while left:
        count = min(left, RUN_RECORDS)
        found, position = parse_run(header, data, position, count, headers, last, whole=ended)
        if not found:
            if ended:
                raise Malformed(TOO_LONG)
            rest = data[position:]
            wanted = _wanted(rest)
            if wanted > RECORD_BYTES_MAX:
                record, data = _passed_over(header, rest, wanted, pieces, last)
                found = [record]
            else:
                data, ended = _filled(rest, wanted, pieces)
            position = 0
        if found:
            left, last = left - len(found), found[-1][0]
            yield found
    if position != len(data) or next(pieces, None) is not None:
        raise Malformed(MORE)


def _slices(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces of bounded length: uncompressed records and a snappy block come as one."""
    for piece in pieces:
        for at in range(0, len(piece), PIECE_BYTES):
            yield piece[at : at + PIECE_BYTES] if len(piece) > PIECE_BYTES else piece


def _wanted(data: bytes) -> int:
    """Return how many bytes the first record takes, as far as that is known."""
    if len(data) < HEAD_BYTES:
        return HEAD_BYTES
    length, at = read_varlong(data, 0, len(data))
    if length < RECORD_BYTES_MIN:
        raise Malformed(TOO_LONG)
    return max(length + at, HEAD_BYTES)


def _filled(data: bytes, wanted: int, pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """Return data with more behind it, of that many bytes at least; and whether it is the end."""
    parts, size = [data], len(data)
    while size < wanted:
        piece = next(pieces, None)
        if piece is None:
            return b"".join(parts), True
        parts.append(piece)
        size += len(piece)
    piece = next(pieces, b"")  # so that the end is seen, and a record's bytes are joined once
    return b"".join([*parts, piece]), not piece


def _passed_over(
    header: BatchHeader, data: bytes, size: int, pieces: Iterator[bytes], last: int
) -> tuple[Body, bytes]:
    """Return the first record of these data without what it holds, and the data behind it."""
    _, at = read_varlong(data, 0, len(data))
    time_ms, at = read_varlong(data, at + 1, len(data))
    delta, _ = read_varlong(data, at, len(data))
    if not last < delta <= header.last_offset_delta:
        raise Malformed(OUTSIDE)
    stamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + time_ms
    if abs(stamp) >= TIME_MAX:
        raise Malformed(TIME_BEYOND)
    while len(data) < size:
        size -= len(data)
        data = next(pieces, b"")
        if not data:
            raise Malformed(TOO_LONG)
    return (delta, stamp, None, b"", NO_HEADERS), data[size:]
