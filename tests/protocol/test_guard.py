"""The walk before kio: nothing is allocated by a number that a peer sent."""

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_body, decode_header, encode_request, request_schema
from kproxy.protocol.guard import admit
from kproxy.protocol.produce_request import decode_produce
from kproxy.protocol.varint import Malformed, uvarint
from kproxy.server.dispatch import RANGES
from tests.wire import batch, fetch_values, produce_values


def frame(key: int, version: int, body: bytes) -> bytes:
    flexible = request_schema(key, version).__flexible__
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if flexible else b"") + body


def decode(data: bytes) -> Any:
    return decode_body(data, decode_header(data))


HUGE = 2**31 - 1


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 8, struct.pack(">i", HUGE)),
        (3, 8, struct.pack(">i", -2)),
        (3, 8, struct.pack(">i", 50_000_000) + bytes(1000)),
        (3, 12, uvarint(HUGE)),
        (3, 12, b"\xff" * 5),
        (3, 12, b"\xff" * 40),
        (3, 12, b"\x80" * 40),
        (3, 12, b"\x02" + bytes(16) + uvarint(5000)),
        (3, 12, b"\x00\x00\x00" + uvarint(20_000_000) + bytes(100)),
        (3, 12, b"\x00\x00\x00\x01\x05" + uvarint(HUGE)),
        (0, 8, struct.pack(">hhii", -1, -1, 1000, HUGE)),
        (0, 9, b"\x00" + struct.pack(">hi", -1, 1000) + uvarint(HUGE)),
        (0, 9, b"\x00" + struct.pack(">hi", -1, 1000) + b"\x02\x02q\x02" + bytes(4)
         + uvarint(HUGE)),
        (1, 4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, HUGE)),
        (19, 7, uvarint(HUGE)),
        (8, 2, struct.pack(">h", -1)),
        (8, 2, struct.pack(">h", 2000)),
        (3, 12, b""),
    ],
)  # fmt: skip
def test_impossible_counts_and_lengths_are_refused_without_allocating(
    key: int, version: int, body: bytes
) -> None:
    data = frame(key, version, body)
    tracemalloc.start()
    with pytest.raises(Malformed):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def requests_with(text: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Return requests with a text as a field, in an array, in an array of structures, and in a
    Produce.

    The Produce has both forms.
    """
    part = {"index": 0, "records": b""}
    return [
        (ApiKey.INIT_PRODUCER_ID, 5, {"transactional_id": text, "transaction_timeout": 5,
         "producer_id": -1, "producer_epoch": -1}),
        (ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [text]}),
        (ApiKey.METADATA, 12, {"topics": [{"name": text, "topic_id": None}],
         "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}),
        (ApiKey.PRODUCE, 9, {"transactional_id": text, "acks": -1, "timeout": 5,
         "topic_data": []}),
        (ApiKey.PRODUCE, 12, {"transactional_id": None, "acks": -1, "timeout": 5,
         "topic_data": [{"name": text, "partition_data": [part]}]}),
    ]  # fmt: skip


def served(data: bytes) -> None:
    """Read it as `server.dispatch` does."""
    header = decode_header(data)
    if header.api_key == ApiKey.PRODUCE:
        decode_produce(data, header.body_at, header.api_version, 100)
    decode_body(data, header)


def test_a_text_is_as_long_as_16_bits_allow_in_every_version() -> None:
    """FAULT: a transactional id of 70,000 bytes ended in an error while a command was encoded."""
    for key, version, values in requests_with("é" * 16_383 + "x"):
        served(encode_request(key, version, 1, values)[4:])
    for key, version, values in requests_with("é" * 16_384):
        with pytest.raises(Malformed, match="32768 bytes"):
            served(encode_request(key, version, 1, values)[4:])


def test_elements_are_bounded_over_the_whole_request() -> None:
    values = fetch_values({(f"q{i % 3}", i): 0 for i in range(30)})
    data = encode_request(ApiKey.FETCH, 12, 1, values)[4:]
    header = decode_header(data)
    assert len(decode_body(data, header, 33).topics) == 3
    with pytest.raises(Malformed, match="more elements"):
        decode_body(data, header, 32)


@pytest.mark.parametrize("key", [0, 18])
def test_tagged_fields_count_as_elements_in_header_and_body(key: int) -> None:
    """Else 50 million of them fit a request, and walking over them takes a minute."""
    tags = uvarint(5000) + b"\x7f\x00" * 5000
    version = 9 if key == 0 else 3
    header = struct.pack(">hhih", key, version, 1, -1)
    with pytest.raises(Malformed, match="more elements"):
        decode_header(header + tags)
    body = b"\x00\xff\xff" + bytes(4) + b"\x01" if key == 0 else b"\x02a\x021"
    data = header + b"\0" + body + tags
    at = decode_header(data).body_at
    if key == 0:
        decode_produce(data, at, version, 5000)
        with pytest.raises(Malformed, match="more elements"):
            decode_produce(data, at, version, 4999)
    else:
        decode_body(data, decode_header(data), 5000)
        with pytest.raises(Malformed, match="more elements"):
            decode_body(data, decode_header(data), 4999)


def test_unknown_tagged_fields_are_ignored_as_kafka_does() -> None:
    plain = encode_request(
        ApiKey.API_VERSIONS, 3, 7, {"client_software_name": "a", "client_software_version": "1"}
    )
    data = plain[4:]
    tagged = data[:-1] + b"\x02" + b"\x0a\x03abc" + b"\x7f\x00"
    body = decode(tagged)
    assert (body.client_software_name, body.client_software_version) == ("a", "1")


def test_unknown_tagged_fields_in_the_header_are_ignored() -> None:
    data = struct.pack(">hhih", 18, 3, 9, -1) + b"\x01\x05\x02xy" + b"\x02a\x021\x00"
    assert decode(data).client_software_name == "a"


def test_known_tagged_fields_are_kept() -> None:
    values = fetch_values({("q", 0): 5}) | {"cluster_id": "here"}
    data = encode_request(ApiKey.FETCH, 12, 1, values)[4:]
    assert decode(data).cluster_id == "here"
    with_unknown = data[:-1] if data.endswith(b"\0") else data
    assert admit(request_schema(1, 12), data, decode_header(data).body_at, 100)[0] is data
    assert with_unknown is not None


def test_a_truncated_request_is_refused_at_every_length() -> None:
    whole = encode_request(ApiKey.PRODUCE, 9, 1, produce_values("queue", batch(b"v")))[4:]
    for length in range(8, len(whole)):
        with pytest.raises(Malformed):
            decode(whole[:length])
    assert decode(whole).topic_data[0].name == "queue"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(RANGES), st.integers(0, 20), st.binary(max_size=200))
def test_noise_is_decoded_or_refused_but_nothing_else(
    api: tuple[int, int, int], step: int, noise: bytes
) -> None:
    key, low, high = api
    low = max(low, 3) if key == 0 else low
    version = low + step % (high - low + 1)
    with suppress(Malformed):
        decode(frame(key, version, noise))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_flipped_byte_is_decoded_or_refused(data: st.DataObject) -> None:
    whole = bytearray(encode_request(ApiKey.FETCH, 17, 1, fetch_values({}))[4:])
    at = data.draw(st.integers(8, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        decode(bytes(whole))
