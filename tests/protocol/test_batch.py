import gzip

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kproxy.common.errors import Code
from kproxy.protocol import codecs
from kproxy.protocol.batch import BadBatch, check, place, read_header, stamped
from kproxy.protocol.codecs import unpack
from kproxy.protocol.records import record_times
from kproxy.protocol.varint import Malformed, read_uvarint, read_varlong, uvarint
from tests.wire import batch, record, varlong

LIMIT = 1_000_000


def refusal(data: bytes | None, version: int = 9, limit: int = LIMIT) -> Code:
    with pytest.raises(BadBatch) as caught:
        check(data, limit, version)
    return caught.value.code


def test_a_sound_batch_is_accepted() -> None:
    header = check(batch(b"a", b"b"), LIMIT, 9)
    assert (header.record_count, header.last_offset_delta, header.producer_id) == (2, 1, -1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, Code.INVALID_RECORD),
        (b"", Code.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), Code.INVALID_RECORD),
        (batch(b"a")[:-1], Code.INVALID_RECORD),
        (batch(b"a", crc=1), Code.CORRUPT_MESSAGE),
        (batch(b"a", count=2), Code.INVALID_RECORD),
        (batch(b"a", count=0), Code.INVALID_RECORD),
        (batch(b"a", count=5, last_delta=4), Code.INVALID_RECORD),
        (batch(b"", count=2, last_delta=1), Code.INVALID_RECORD),
        (batch(b"a", last_delta=7), Code.INVALID_RECORD),
        (batch(b"a", last_delta=-1), Code.INVALID_RECORD),
        (batch(b"a", magic=1), Code.INVALID_RECORD),
        (batch(b"a", magic=0), Code.INVALID_RECORD),
        (batch(b"a", attributes=0x20), Code.INVALID_RECORD),
        (batch(b"a", attributes=7), Code.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(b"a", producer_id=5, sequence=-1, epoch=0), Code.INVALID_RECORD),
    ],
    ids=[
        "nothing",
        "empty",
        "two",
        "cut short",
        "a CRC that is another's",
        "more counted",
        "none counted",
        "no room for so many",
        "an empty one counted twice",
        "deltas too many",
        "a delta below 0",
        "magic 1",
        "magic 0",
        "a control batch",
        "codec 7",
        "no sequence",
    ],  # the same in all processes: a batch has the time in it
)
def test_bad_batches_are_refused_with_kafkas_code(data: bytes | None, code: Code) -> None:
    assert refusal(data) == code


def test_zstd_needs_produce_7() -> None:
    assert refusal(batch(b"a", attributes=4), version=6) == Code.UNSUPPORTED_COMPRESSION_TYPE
    assert check(batch(b"a", attributes=4), LIMIT, 7)


def test_a_batch_over_the_limit_is_too_large() -> None:
    data = batch(b"x" * 100)
    assert refusal(data, limit=len(data) - 1) == Code.MESSAGE_TOO_LARGE
    assert check(data, len(data), 9)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    refusal(noise)


def test_placing_keeps_the_crc() -> None:
    data = bytearray(batch(b"a", b"b"))
    size = len(data)
    data = bytearray(7) + data
    place(data, 7, size, 123456789012, 3)
    del data[:7]
    header = check(bytes(data), LIMIT, 9)
    assert (header.base_offset, header.leader_epoch) == (123456789012, 3)


def test_log_append_time_is_stamped_with_a_sound_crc() -> None:
    header = check(stamped(batch(b"a", b"b"), 42), LIMIT, 9)
    assert (header.is_log_append_time, header.max_timestamp) == (True, 42)
    assert [time for _, time in record_times(stamped(batch(b"a", b"b"), 42))] == [
        42,
        42,
    ]


def test_a_stamp_that_a_producer_set_is_taken_off() -> None:
    header = check(stamped(batch(b"a", attributes=0x08, times=(77,)), None), LIMIT, 9)
    assert (header.is_log_append_time, header.max_timestamp) == (False, 77)


def packed(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.compress(data)
    if codec == 2:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == 3:
        return lz4.frame.compress(data)
    if codec == 4:
        return zstandard.compress(data)
    return data


@pytest.mark.parametrize("codec", range(5))
def test_record_times_in_every_codec(codec: int) -> None:
    times = (1000, 3000, 2000)
    plain = b"".join(record(i, b"v" * 50, time_delta=t - times[0]) for i, t in enumerate(times))
    data = batch(b"", b"", b"", times=times, attributes=codec, packed=packed(codec, plain))
    assert list(record_times(data)) == [(0, 1000), (1, 3000), (2, 2000)]


def test_snappy_as_java_frames_it() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"hello"))
    framed = b"\x82SNAPPY\x00" + bytes(8) + len(block).to_bytes(4, "big") + block
    assert b"".join(unpack(framed, 2)) == b"hello"


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_bombs_are_refused(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "UNPACKED_BYTES_MAX", 10_000)
    with pytest.raises(Malformed):
        list(unpack(packed(codec, bytes(1_000_000)), codec))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_garbage_does_not_decompress(codec: int) -> None:
    with pytest.raises(Malformed):
        list(unpack(b"\xff" * 100, codec))


@given(st.integers(0, 2**32 - 1))
def test_uvarint_round_trip(value: int) -> None:
    data = uvarint(value)
    assert read_uvarint(data, 0, len(data)) == (value, len(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_round_trip(value: int) -> None:
    data = varlong(value)
    assert read_varlong(data, 0, len(data)) == (value, len(data))


def test_header_survives() -> None:
    header = read_header(batch(b"a", producer_id=9, epoch=1, sequence=5))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 5)


@pytest.mark.parametrize("piece_bytes", [1, 50, 1 << 18])
@pytest.mark.parametrize("codec", range(5))
def test_records_are_unpacked_a_piece_at_a_time(
    codec: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "PIECE_BYTES", piece_bytes)
    times = tuple(range(1000, 1100))
    plain = b"".join(record(i, b"v" * (i * 7 % 200), time_delta=i) for i in range(100))
    data = batch(*[b""] * 100, times=times, attributes=codec, packed=packed(codec, plain))
    assert list(record_times(data)) == [(i, time) for i, time in enumerate(times)]
    if codec not in (0, 2):
        assert max(map(len, unpack(packed(codec, plain), codec))) <= max(piece_bytes, 300)
    with pytest.raises(Malformed):
        list(record_times(data[:-3] if codec == 0 else data[:61] + packed(codec, plain[:-3])))


def test_a_block_of_snappy_that_lies_about_its_length_is_refused() -> None:
    with pytest.raises(Malformed, match="cannot unpack"):
        list(unpack(b"\x80\x80\x80\x40" + b"x" * 100, 2))
