"""Reads records inside a batch, for look-ups by time; never on the produce or fetch path.

It decompresses a piece at a time, so the content of a small batch that claims much is never in
memory as a whole, and refuses a batch that decompresses to more than the limit. gzip is the
standard library's; lz4, zstandard and cramjam (snappy) are the usual bindings.
"""

import zlib
from collections.abc import Iterator

import cramjam
import lz4.frame  # type: ignore[import-untyped]  # it ships no types
import zstandard

from kproxy.protocol.batch import CODECS, HEADER_BYTES, read_header
from kproxy.protocol.varint import Malformed, read_varlong

UNPACKED_BYTES_MAX = 256 << 20
PIECE_BYTES = 256 << 10
SNAPPY_RATIO_MAX = 22  # its longest copy is 64 bytes, told in three
_HEAD_BYTES = 31  # a record's length, attributes, time and offset deltas at most
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


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


def memory_of(batch_bytes: int) -> int:
    """What it takes at most to go through a batch of so many bytes: of snappy, a whole block."""
    unpacked = min(UNPACKED_BYTES_MAX, SNAPPY_RATIO_MAX * batch_bytes)
    return 2 * batch_bytes + max(unpacked, 3 * PIECE_BYTES)


def unpack(data: bytes, codec: int) -> Iterator[bytes]:
    """A batch's records in pieces, none of them empty. Raises Malformed, also if they are many."""
    total = 0
    try:
        for piece in _pieces(data, codec):
            total += len(piece)
            if total >= UNPACKED_BYTES_MAX:
                raise Malformed(f"the records unpack to {UNPACKED_BYTES_MAX} bytes or more")
            if piece:
                yield piece
    except Malformed:
        raise
    except Exception as error:  # each binding has exceptions of its own
        raise Malformed(f"the {CODECS[codec]} records do not decompress: {error}") from error


def _pieces(data: bytes, codec: int) -> Iterator[bytes]:
    match CODECS[codec]:
        case "none":
            yield data
        case "gzip":
            gzip = zlib.decompressobj(wbits=31)
            while data and not gzip.eof:
                yield gzip.decompress(data, PIECE_BYTES)
                data = gzip.unconsumed_tail
            yield gzip.flush()
        case "snappy":
            yield from _snappy_blocks(data)
        case "lz4":
            frame = lz4.frame.LZ4FrameDecompressor()
            piece = frame.decompress(data, PIECE_BYTES)
            while piece:
                yield piece
                piece = b"" if frame.eof else frame.decompress(b"", PIECE_BYTES)
        case _:
            with zstandard.ZstdDecompressor().stream_reader(data) as reader:
                while piece := reader.read(PIECE_BYTES):
                    yield piece


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """Raw snappy, or the framing of xerial's library that Java clients write."""
    if not data.startswith(_XERIAL_MAGIC):
        yield _snappy_block(data)
        return
    position = _XERIAL_HEADER_BYTES
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > len(data) - position:
            raise Malformed("a snappy block is longer than its batch")
        yield _snappy_block(data[position : position + size])
        position += size


def _snappy_block(data: bytes) -> bytes:
    """What it says of its own length is allocated: no more than it can hold."""
    length = cramjam.snappy.decompress_raw_len(data)
    if length > min(UNPACKED_BYTES_MAX, SNAPPY_RATIO_MAX * len(data)):
        raise Malformed(f"{len(data)} bytes of snappy cannot unpack to {length}")
    return bytes(cramjam.snappy.decompress_raw(data))
