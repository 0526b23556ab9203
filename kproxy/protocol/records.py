"""Records inside a batch, for look-ups by time; never on the produce or fetch path.

Decompression is bounded: a batch that unpacks to more than the limit is refused, not unpacked.
gzip is the standard library's; lz4, zstandard and cramjam (snappy) are the usual bindings.
"""

import zlib
from collections.abc import Iterator

import cramjam
import lz4.frame  # type: ignore[import-untyped]  # it ships no types
import zstandard

from kproxy.protocol.batch import CODECS, HEADER_BYTES, read_header
from kproxy.protocol.varint import Malformed, read_varlong

UNPACKED_BYTES_MAX = 256 << 20
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


def record_times(batch: bytes) -> Iterator[tuple[int, int]]:
    """(offset delta, timestamp in milliseconds) of each record. Raises Malformed."""
    header = read_header(batch)
    data = unpack(batch[HEADER_BYTES:], header.codec)
    position, end = 0, len(data)
    for _ in range(header.record_count):
        length, position = read_varlong(data, position, end)
        after = position + length
        if length < 3 or after > end:
            raise Malformed("a record is longer than its batch")
        time_delta, at = read_varlong(data, position + 1, after)
        offset_delta, _ = read_varlong(data, at, after)
        time_ms = header.max_timestamp if header.is_log_append_time else None
        yield offset_delta, header.base_timestamp + time_delta if time_ms is None else time_ms
        position = after


def unpack(data: bytes, codec: int) -> bytes:
    """Decompress a batch's records. Raises Malformed, also above UNPACKED_BYTES_MAX."""
    try:
        match CODECS[codec]:
            case "none":
                return data
            case "gzip":
                return _bounded(zlib.decompressobj(wbits=31).decompress(data, UNPACKED_BYTES_MAX))
            case "snappy":
                return _unpack_snappy(data)
            case "lz4":
                unpacker = lz4.frame.LZ4FrameDecompressor()
                return _bounded(unpacker.decompress(data, UNPACKED_BYTES_MAX))
            case _:
                with zstandard.ZstdDecompressor().stream_reader(data) as reader:
                    return _bounded(reader.read(UNPACKED_BYTES_MAX))
    except Malformed:
        raise
    except Exception as error:  # each binding has exceptions of its own
        raise Malformed(f"the {CODECS[codec]} records do not decompress: {error}") from error


def _bounded(data: bytes) -> bytes:
    if len(data) >= UNPACKED_BYTES_MAX:
        raise Malformed(f"the records unpack to {UNPACKED_BYTES_MAX} bytes or more")
    return data


def _unpack_snappy(data: bytes) -> bytes:
    """Raw snappy, or the framing of xerial's library that Java clients write."""
    if not data.startswith(_XERIAL_MAGIC):
        return _unpack_snappy_block(data)
    blocks, position, total = [], _XERIAL_HEADER_BYTES, 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > len(data) - position:
            raise Malformed("a snappy block is longer than its batch")
        block = _unpack_snappy_block(data[position : position + size])
        total += len(block)
        if total > UNPACKED_BYTES_MAX:
            raise Malformed(f"the records unpack to more than {UNPACKED_BYTES_MAX} bytes")
        blocks.append(block)
        position += size
    return b"".join(blocks)


def _unpack_snappy_block(data: bytes) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) > UNPACKED_BYTES_MAX:
        raise Malformed(f"the records unpack to more than {UNPACKED_BYTES_MAX} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))
