"""The packing of a batch's records with Kafka's codecs.

It unpacks a piece at a time, so the content of a small batch that claims much is never in memory
as a whole, and refuses a batch that unpacks to more than the limit. gzip is the standard
library's; lz4, zstandard and cramjam (snappy) are the usual bindings.
"""

import zlib
from collections.abc import Iterator
from itertools import islice

import cramjam
import lz4.frame  # type: ignore[import-untyped]  # it ships no types
import zstandard

from kproxy.protocol.batch import CODEC_ZSTD, CODECS
from kproxy.protocol.varint import Malformed

UNPACKED_BYTES_MAX = 256 << 20
PIECE_BYTES = 256 << 10
SNAPPY_RATIO_MAX = 22  # its longest copy is 64 bytes, told in three
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2  # version, least version to read it
_XERIAL_BLOCK_BYTES = 32 << 10
LEVELS = {"gzip": -1, "lz4": 9, "zstd": 3}
"""Kafka's defaults."""
_LEVELS_BEST = {"gzip": 9, "lz4": 12, "zstd": 19}


class TooLarge(Malformed):
    """A batch that holds more than is looked at."""


class Unfit(Exception):
    """Records that no packing makes small enough."""


def memory_of(batch_bytes: int) -> int:
    """Return the most memory to go through a batch of so many bytes: for snappy, a whole block."""
    unpacked = min(UNPACKED_BYTES_MAX, SNAPPY_RATIO_MAX * batch_bytes)
    return 2 * batch_bytes + max(unpacked, 3 * PIECE_BYTES)


def unpack(data: bytes, codec: int) -> Iterator[bytes]:
    """Yield a batch's records in pieces, none empty. Raise Malformed, also if they are many."""
    total = 0
    try:
        for piece in _pieces(data, codec):
            total += len(piece)
            if total >= UNPACKED_BYTES_MAX:
                raise TooLarge(f"the records unpack to {UNPACKED_BYTES_MAX} bytes or more")
            if piece:
                yield piece
    except Malformed:
        raise
    except Exception as error:  # each binding has exceptions of its own
        raise Malformed(f"the {CODECS[codec]} records do not decompress: {error}") from error


def held_while_unpacked(data: bytes, codec: int) -> int:
    """Return how many bytes `unpack` holds between two pieces: the window, or a whole block.

    The sender chooses that: a few kilobytes of zstd may ask for 128 MiB.
    """
    try:
        match CODECS[codec]:
            case "snappy":
                return max(map(cramjam.snappy.decompress_raw_len, _snappy_parts(data)), default=0)
            case "lz4":
                return _lz4_block_bytes(data)
            case "zstd":
                return int(zstandard.get_frame_parameters(data).window_size)
            case _:
                return 0
    except Exception:  # each binding has exceptions of its own
        return 0


_BLOCKS_MAX = 4096
"""The blocks that are counted, in some milliseconds: a batch of a megabyte may have 350,000."""


def unpacked_most(data: bytes, codec: int) -> int:
    """Return how many bytes records may unpack to, by what their blocks say of themselves.

    It unpacks nothing. 0: the blocks are not sound. `UNPACKED_BYTES_MAX`: they are very many.
    """
    sizes: Iterator[int]
    try:
        match CODECS[codec]:
            case "none":
                return len(data)
            case "gzip":
                return int.from_bytes(data[-4:], "little")
            case "snappy":
                sizes = map(cramjam.snappy.decompress_raw_len, _snappy_parts(data))
            case "lz4":
                sizes = _lz4_sizes(data)
            case _:
                sizes = _zstd_sizes(data)
        most = sum(islice(sizes, _BLOCKS_MAX))
        return most if next(sizes, None) is None else UNPACKED_BYTES_MAX
    except Exception:  # each binding has exceptions of its own
        return 0


def _lz4_sizes(data: bytes) -> Iterator[int]:
    """Yield the most that each block unpacks to."""
    flags, block = data[4], _lz4_block_bytes(data)
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    while size := int.from_bytes(data[at : at + 4], "little") & 0x7FFF_FFFF:
        at += 4 + size + (4 if flags & 0x10 else 0)
        yield block


def _lz4_block_bytes(data: bytes) -> int:
    return 1 << 8 + 2 * (data[5] >> 4 & 7)


_ZSTD_BLOCK_BYTES = 128 << 10  # the largest block, unpacked
_ZSTD_RLE = 1


def _zstd_sizes(data: bytes) -> Iterator[int]:
    """Yield the most that each block unpacks to."""
    flags = data[4]
    at = 5 + (not flags & 0x20) + (0, 1, 2, 4)[flags & 3]
    at += ((1 if flags & 0x20 else 0), 2, 4, 8)[flags >> 6]
    last = False
    while not last:
        block = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = bool(block & 1) or at + 3 >= len(data), block >> 1 & 3, block >> 3
        at += 3 + (1 if kind == _ZSTD_RLE else size)
        yield size if kind <= _ZSTD_RLE else _ZSTD_BLOCK_BYTES


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
    return map(_snappy_block, _snappy_parts(data))


def _snappy_parts(data: bytes) -> Iterator[bytes]:
    """Yield raw snappy, or the blocks of xerial's framing that Java clients write."""
    if not data.startswith(_XERIAL_MAGIC):
        yield data
        return
    position = _XERIAL_HEADER_BYTES
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > len(data) - position:
            raise Malformed("a snappy block is longer than its batch")
        yield data[position : position + size]
        position += size


def _snappy_block(data: bytes) -> bytes:
    """Unpack a block. Its stated length is allocated: no more than it can hold."""
    length = cramjam.snappy.decompress_raw_len(data)
    if length > min(UNPACKED_BYTES_MAX, SNAPPY_RATIO_MAX * len(data)):
        raise Malformed(f"{len(data)} bytes of snappy cannot unpack to {length}")
    return bytes(cramjam.snappy.decompress_raw(data))


def pack(data: bytes, codec: int, level: int | None = None) -> bytes:
    """Pack records as batches carry them, by a codec of CODECS; snappy as Java's clients do."""
    name = CODECS[codec]
    if level is None:
        level = LEVELS.get(name, 0)
    match name:
        case "none":
            return data
        case "gzip":
            gzip = zlib.compressobj(level, wbits=31)
            return gzip.compress(data) + gzip.flush()
        case "snappy":
            return _xerial(data)
        case "lz4":
            return bytes(
                lz4.frame.compress(
                    data, compression_level=level, block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                    block_linked=False, store_size=False,
                )
            )  # fmt: skip
        case _:
            return zstandard.ZstdCompressor(level=level).compress(data)


def packings(codec: int) -> Iterator[tuple[int, int | None]]:
    """Yield the codecs to try, with their levels; None: the usual one."""
    yield codec, None
    if codec:
        yield 0, None
    if (best := _LEVELS_BEST.get(CODECS[codec])) is not None:
        yield codec, best
    if codec and codec != CODEC_ZSTD:
        yield CODEC_ZSTD, _LEVELS_BEST["zstd"]


def _xerial(data: bytes) -> bytes:
    packed = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        packed += [len(block).to_bytes(4, "big"), block]
    return b"".join(packed)
