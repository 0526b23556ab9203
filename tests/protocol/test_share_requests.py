"""The decoder of ShareFetch and ShareAcknowledge held against kio's reader."""

import random
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_body, decode_header, encode_request
from kproxy.protocol.share_requests import decode_share
from kproxy.protocol.varint import Malformed

BOTH = [(ApiKey.SHARE_FETCH, 1), (ApiKey.SHARE_FETCH, 2),
        (ApiKey.SHARE_ACKNOWLEDGE, 1), (ApiKey.SHARE_ACKNOWLEDGE, 2)]  # fmt: skip
SINGLES = [(at, at, (1 + at % 3,)) for at in range(0, 600, 2)]
MIXED = [(5, 5, (1,)), (6, 9, (1, 2, 3, 0)), (10, 1 << 60, (2,)), (-3, -1, (-1,)), (0, 0, ())]
SAID: list[list[Any]] = [[], SINGLES, MIXED, [*SINGLES, *MIXED]]


def frame_of(key: int, version: int) -> bytes:
    topics = [
        {
            "topic_id": UUID(int=number),
            "partitions": [
                {
                    "partition_index": index,
                    "acknowledgement_batches": [
                        {"first_offset": a, "last_offset": b, "acknowledge_types": types}
                        for a, b, types in said
                    ],
                }
                for index, said in enumerate(SAID)
            ],
        }
        for number in range(3)
    ]
    values = {
        "group_id": "grüße", "member_id": None, "share_session_epoch": 7,
        "max_wait": timedelta(milliseconds=500), "min_bytes": 1, "max_bytes": 1 << 20,
        "max_records": 500, "batch_size": 100, "share_acquire_mode": 1, "is_renew_ack": True,
        "topics": topics,
        "forgotten_topics_data": [{"topic_id": UUID(int=9), "partitions": (4, 5)}],
    }  # fmt: skip
    return encode_request(key, version, 1, values)[4:]


def told(key: int, version: int, frame: bytes) -> Any:
    header = decode_header(frame)
    return decode_share(frame, header.body_at, key, version, 10_000).body


def as_kio(frame: bytes) -> list[Any]:
    body = decode_body(frame, decode_header(frame))
    found = [
        body.group_id, body.member_id, body.share_session_epoch,
        getattr(body, "is_renew_ack", False),
        [
            (b"" if topic.topic_id is None else topic.topic_id.bytes, part.partition_index,
             [(one.first_offset, one.last_offset, [kind & 0xFF for kind in one.acknowledge_types])
              for one in part.acknowledgement_batches])
            for topic in body.topics for part in topic.partitions
        ],
    ]  # fmt: skip
    if hasattr(body, "max_wait"):
        found += [body.max_wait, body.min_bytes, body.max_bytes, body.max_records, body.batch_size]
        found.append(getattr(body, "share_acquire_mode", 0))
        found.append([(one.topic_id.bytes, one.partitions) for one in body.forgotten_topics_data])
    return found


def shown(body: Any) -> list[Any]:
    found = [
        body.group_id, body.member_id, body.share_session_epoch, body.is_renew_ack,
        [
            (topic.topic_id.strip(b"\0") and topic.topic_id, part.partition_index,
             [(first, last, list(types)) for first, last, types in part.said])
            for topic in body.topics for part in topic.partitions
        ],
    ]  # fmt: skip
    if hasattr(body, "max_wait"):
        found += [body.max_wait, body.min_bytes, body.max_bytes, body.max_records, body.batch_size]
        found.append(body.share_acquire_mode)
        found.append([tuple(one) for one in body.forgotten_topics_data])
    return found


@pytest.mark.parametrize(("key", "version"), BOTH)
def test_as_kio_decodes_it(key: int, version: int) -> None:
    frame = frame_of(key, version)
    assert shown(told(key, version, frame)) == as_kio(frame)


@pytest.mark.parametrize(("key", "version"), BOTH)
def test_cut_short_anywhere(key: int, version: int) -> None:
    frame = frame_of(key, version)
    at = decode_header(frame).body_at
    for end in (*range(at, at + 200), *range(len(frame) - 200, len(frame))):
        with pytest.raises(Malformed):
            decode_share(frame[:end], at, key, version, 10_000)


@pytest.mark.parametrize(("key", "version"), BOTH)
def test_more_elements_than_are_allowed(key: int, version: int) -> None:
    frame = frame_of(key, version)
    at = decode_header(frame).body_at
    elements = decode_share(frame, at, key, version, 10_000).elements
    assert decode_share(frame, at, key, version, elements).elements == elements
    with pytest.raises(Malformed, match="request_elements_max"):
        decode_share(frame, at, key, version, elements - 1)


@pytest.mark.parametrize(("key", "version"), BOTH)
def test_unknown_tagged_fields_are_walked_over(key: int, version: int) -> None:
    frame = frame_of(key, version)
    assert frame.endswith(b"\0")
    tagged = frame[:-1] + b"\x01\x05\x03abc"
    assert told(key, version, tagged) == told(key, version, frame)


@pytest.mark.parametrize(("key", "version"), BOTH)
def test_a_damaged_request_is_refused_or_read(key: int, version: int) -> None:
    whole, rng = frame_of(key, version), random.Random(1)
    at = decode_header(whole).body_at
    for _ in range(80):
        frame = bytearray(whole)
        for _ in range(rng.randrange(1, 8)):
            frame[rng.randrange(at, len(frame))] = rng.randrange(256)
        with suppress(Malformed):
            assert decode_share(bytes(frame), at, key, version, 10_000).elements <= 10_000
