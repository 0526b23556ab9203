"""Produce requests decoded by hand, held against kio's own."""

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_body, decode_header, encode_request
from kproxy.protocol.produce_request import decode_produce
from kproxy.protocol.varint import Malformed

TOPICS = [
    ("one", UUID(int=1), [(0, b"x" * 300), (7, None)]),
    ("two-ä", UUID(int=2), []),
    ("three", UUID(int=3), [(2**31 - 1, b"")]),
]


def frame_of(version: int, transactional_id: str | None = None) -> bytes:
    topics = [
        {
            "name": name,
            "topic_id": topic_id,
            "partition_data": [{"index": i, "records": records} for i, records in partitions],
        }
        for name, topic_id, partitions in TOPICS
    ]
    values = {"transactional_id": transactional_id, "acks": -1, "timeout": 5, "topic_data": topics}
    return encode_request(ApiKey.PRODUCE, version, 1, values)[4:]


def as_kio(version: int, frame: bytes) -> Any:
    body = decode_body(frame, decode_header(frame))
    return (
        body.transactional_id,
        body.acks,
        [
            (
                topic.topic_id.bytes if version >= 13 else topic.name,
                [(part.index, part.records) for part in topic.partition_data],
            )
            for topic in body.topic_data
        ],
    )


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "", "mine"])
def test_as_kio_decodes_it(version: int, transactional_id: str | None) -> None:
    frame = frame_of(version, transactional_id)
    at = decode_header(frame).body_at
    assert decode_produce(frame, at, version, 100) == as_kio(version, frame)


@pytest.mark.parametrize("version", range(3, 14))
def test_cut_short_anywhere(version: int) -> None:
    frame = frame_of(version, "mine")
    at = decode_header(frame).body_at
    for end in range(at, len(frame)):
        with pytest.raises(Malformed):
            decode_produce(frame[:end], at, version, 100)


@pytest.mark.parametrize("version", [3, 9, 13])
def test_more_elements_than_are_allowed(version: int) -> None:
    frame = frame_of(version)
    at = decode_header(frame).body_at
    with pytest.raises(Malformed, match="request_elements_max"):
        decode_produce(frame, at, version, 5)


def test_unknown_tagged_fields_are_walked_over() -> None:
    frame = frame_of(9)
    assert frame.endswith(b"\0")
    tagged = frame[:-1] + b"\x01\x05\x03abc"
    at = decode_header(frame).body_at
    assert decode_produce(tagged, at, 9, 100) == as_kio(9, frame)


@given(
    st.integers(3, 13),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_damaged_request_is_refused_or_read(version: int, changes: list[tuple[int, int]]) -> None:
    frame = bytearray(frame_of(version, "mine"))
    at = decode_header(bytes(frame)).body_at
    for position, value in changes:
        frame[at + position % (len(frame) - at)] = value
    with suppress(Malformed):
        assert decode_produce(bytes(frame), at, version, 100).acks < 2**15
