"""The memory that a passage keeps of a batch between two cuts."""

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard

from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.protocol.codecs import held_while_unpacked, pack
from kproxy.routes.batch_reading import Reading
from kproxy.routes.reading import KEPT_RECORDS_MAX, Kept
from tests.wire import keyed, record

ZEROS = bytes(8 << 20)


def windowed(data: bytes, log: int) -> bytes:
    wanted = zstandard.ZstdCompressionParameters(window_log=log, compression_level=3)
    packing = zstandard.ZstdCompressor(compression_params=wanted).compressobj()
    return packing.compress(data) + packing.flush()


def reading(codec: int, packed: bytes) -> Reading:
    data = keyed((None, b"v"), codec=codec)
    return Reading(0, read_header(data), data[:HEADER_BYTES] + packed, headers=False)


@pytest.mark.parametrize(("codec", "packed", "held"), [
    (4, windowed(ZEROS, 27), 1 << 27), (4, windowed(ZEROS, 20), 1 << 20),
    (2, bytes(cramjam.snappy.compress_raw(ZEROS)), len(ZEROS)), (2, pack(ZEROS, 2), 32 << 10),
    (3, lz4.frame.compress(ZEROS, block_size=lz4.frame.BLOCKSIZE_MAX4MB), 4 << 20),
    (1, pack(ZEROS, 1), 0), (0, ZEROS, 0), (2, b"\xff", 0), (3, b"", 0), (4, b"no frame", 0),
])  # fmt: skip
def test_codec_says_what_its_unpacking_holds(codec: int, packed: bytes, held: int) -> None:
    assert held_while_unpacked(packed, codec) == held


def test_batch_that_holds_very_much_is_not_kept_but_read_again() -> None:
    """FAULT: each of 8 partitions kept 128 MiB of a batch of 146 KB, of 32 in a shard."""
    kept = Kept()
    kept.room = KEPT_RECORDS_MAX
    few = windowed(record(0, b"v"), 20)
    kept.keep((1, 0), reading(4, few))
    assert kept.take((1, 0), 0) is not None
    kept.keep((1, 0), reading(4, windowed(record(0, b"v"), 27)))
    assert kept.take((1, 0), 0) is None
