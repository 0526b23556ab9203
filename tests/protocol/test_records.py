"""Records of a batch that is looked into as a whole: read, left out, packed anew."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.protocol import records as records_module
from kproxy.protocol.batch import CODECS, HEADER_BYTES, check, read_header
from kproxy.protocol.codecs import TooLarge, pack, unpack, unpacked_most
from kproxy.protocol.records import keyed_records, repacked, unpacked, with_records
from kproxy.protocol.varint import Malformed
from tests.wire import keyed

LIMIT = 1 << 20
FIELD = st.none() | st.binary(max_size=40)
PAIRS = st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=20)


@given(st.binary(max_size=200_000), st.sampled_from(range(len(CODECS))))
def test_packed_and_unpacked(data: bytes, codec: int) -> None:
    assert b"".join(unpack(pack(data, codec), codec)) == data


@given(PAIRS, st.sampled_from(range(len(CODECS))), st.data())
def test_some_records_are_left(
    pairs: list[tuple[bytes | None, bytes | None]], codec: int, data: st.DataObject
) -> None:
    body = keyed(*pairs, codec=codec)
    header = check(body, LIMIT, 9)
    found = list(keyed_records(header, unpacked(body)))
    assert [(r.offset_delta, r.key, r.has_value) for r in found] == [
        (i, key, value is not None) for i, (key, value) in enumerate(pairs)
    ]
    kept = data.draw(st.sets(st.sampled_from(range(len(pairs))), min_size=1))
    latest_ms = max(found[i].time_ms for i in kept)
    left = with_records(header, [found[i].data for i in sorted(kept)], latest_ms)
    after = read_header(left)
    assert after.last_offset_delta == header.last_offset_delta
    assert after.codec == codec
    assert list(keyed_records(after, unpacked(left))) == [found[i] for i in sorted(kept)]


@given(PAIRS, st.sampled_from(range(len(CODECS))), st.sampled_from(range(len(CODECS))))
def test_repacked(pairs: list[tuple[bytes | None, bytes | None]], before: int, after: int) -> None:
    body = keyed(*pairs, codec=before)
    header = read_header(body)
    made = repacked(header, unpacked(body), after, None)
    assert check(made, LIMIT, 9).codec == after
    assert unpacked(made) == unpacked(body)


@given(PAIRS, st.integers(0, 400), st.integers(0, 255))
def test_damage_is_malformed_or_other_records(
    pairs: list[tuple[bytes | None, bytes | None]], at: int, byte: int
) -> None:
    body = bytearray(keyed(*pairs))
    at = HEADER_BYTES + at % (len(body) - HEADER_BYTES)
    body[at] = byte
    header = read_header(body)
    try:
        found = list(keyed_records(header, unpacked(body)))
    except Malformed:
        return
    assert len(found) == len(pairs)


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_batch_that_unpacks_to_too_much_is_refused(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "INSPECTED_BYTES_MAX", 10_000)
    body = keyed((b"k", bytes(50_000)), codec=codec)
    if codec:
        with pytest.raises(TooLarge):
            unpacked(body)
    else:
        assert len(unpacked(body)) > 50_000  # no larger than it came
    monkeypatch.setattr(records_module, "INSPECTED_RECORDS_MAX", 2)
    with pytest.raises(TooLarge):
        unpacked(keyed(*[(b"k", b"v")] * 3, codec=codec))


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("size", [0, 1, 5000, 65_536, 1_000_000])
def test_blocks_say_how_much_a_batch_may_unpack_to(codec: int, size: int) -> None:
    for data in (bytes(size), random.Random(size).randbytes(size)):
        most = unpacked_most(pack(data, codec), codec)
        assert size <= most <= size + (128 << 10)
    assert unpacked_most(b"", codec) == 0
