"""The answers of share groups that are written by hand, held against kio's writer."""

from typing import Any
from uuid import UUID

import pytest

from kproxy.protocol import share_responses as encoded
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_body

FIRST, SECOND = UUID("0f0e0d0c-0b0a-0908-0706-050403020100"), UUID(int=7)
NODES = [(1, "localhost", 9092, None), (1 << 30, "h" * 200, 65535, "rack-1")]
RANGES = [(0, 0, 1), (1, 499, 2), (1 << 40, (1 << 40) + 7, 31)]
VERSIONS = [1, 2]


def leader_of(leader: tuple[int, int] | None) -> dict[str, int]:
    node, epoch = leader or (0, 0)
    return {"leader_id": node, "leader_epoch": epoch}


def fetched(
    index: int, code: int = 0, message: str | None = None, acknowledge_code: int = 0,
    acknowledge_message: str | None = None, leader: tuple[int, int] | None = None,
    records: bytes = b"", ranges: Any = (),
) -> tuple[bytes, dict[str, Any]]:  # fmt: skip
    """Return a partition's part of a ShareFetch response, by hand and for kio."""
    head = encoded.share_partition_head(
        index, code, message, acknowledge_code, acknowledge_message, leader, len(records)
    )
    values = {
        "partition_index": index, "error_code": code, "error_message": message,
        "acknowledge_error_code": acknowledge_code,
        "acknowledge_error_message": acknowledge_message, "current_leader": leader_of(leader),
        "records": records,
        "acquired_records": [
            {"first_offset": first, "last_offset": last, "delivery_count": deliveries}
            for first, last, deliveries in ranges
        ],
    }  # fmt: skip
    return head + records + encoded.share_partition_tail(ranges), values


def topics_of(
    *topics: tuple[UUID, list[tuple[bytes, dict[str, Any]]]],
) -> tuple[bytes, list[dict[str, Any]]]:
    by_hand, values = b"", []
    for topic_id, parts in topics:
        by_hand += encoded.share_topic_head(topic_id.bytes, len(parts))
        by_hand += b"".join(part for part, _ in parts) + encoded.TAIL
        values.append({"topic_id": topic_id, "partitions": [value for _, value in parts]})
    return by_hand, values


def endpoints_of(nodes: list[tuple[int, str, int, str | None]]) -> list[dict[str, Any]]:
    return [
        {"node_id": node, "host": host, "port": port, "rack": rack}
        for node, host, port, rack in nodes
    ]


@pytest.mark.parametrize("nodes", [[], NODES])
@pytest.mark.parametrize("version", VERSIONS)
def test_share_fetch(version: int, nodes: list[tuple[int, str, int, str | None]]) -> None:
    several = [
        fetched(0, records=b"bytes", ranges=RANGES),
        fetched(1, records=b"r" * 300, ranges=[(n, n, 1) for n in range(200)]),  # longer varints
        fetched(2, acknowledge_code=121, acknowledge_message="not acquired"),
        fetched(3, 6, None, 6, "m" * 130, (1 << 20, 9)),
        fetched(1 << 30, 3, "no such partition"),
        fetched(4, -1, ""),
        fetched(5, leader=(-1, -1)),
    ]
    topics, values = topics_of((FIRST, several), (SECOND, []))
    body = encoded.share_head(0, None, 30_000, 2) + topics + encoded.endpoints(nodes)
    expected = {
        "error_code": 0, "error_message": None, "acquisition_lock_timeout": 30_000,
        "responses": values, "node_endpoints": endpoints_of(nodes),
    }  # fmt: skip
    assert body == encode_body(ApiKey.SHARE_FETCH, version, expected)


@pytest.mark.parametrize("topics", [0, 126, 127, 20_000])
def test_how_many_topics_a_share_fetch_has(topics: int) -> None:
    """Counts of one, two and three bytes."""
    by_hand, values = topics_of(*[(UUID(int=n + 1), []) for n in range(topics)])
    body = encoded.share_head(0, None, 0, topics) + by_hand + encoded.endpoints([])
    expected = {
        "error_code": 0, "acquisition_lock_timeout": 0, "responses": values, "node_endpoints": (),
    }  # fmt: skip
    assert body == encode_body(ApiKey.SHARE_FETCH, 2, expected)


@pytest.mark.parametrize("message", [None, "", "why"])
@pytest.mark.parametrize("version", VERSIONS)
def test_share_fetch_refused(version: int, message: str | None) -> None:
    body = encoded.share_head(122, message, 0, 0) + encoded.endpoints(())
    expected = {
        "error_code": 122, "error_message": message, "acquisition_lock_timeout": 0,
        "responses": (), "node_endpoints": (),
    }  # fmt: skip
    assert body == encode_body(ApiKey.SHARE_FETCH, version, expected)


@pytest.mark.parametrize("nodes", [[], NODES])
@pytest.mark.parametrize("version", VERSIONS)
def test_share_acknowledge(version: int, nodes: list[tuple[int, str, int, str | None]]) -> None:
    parts = [
        (
            encoded.acknowledged_partition(index, code, message, leader),
            {
                "partition_index": index, "error_code": code, "error_message": message,
                "current_leader": leader_of(leader),
            },
        )
        for index, code, message, leader in [
            (0, 0, None, None), (1 << 30, 121, "not acquired", None), (2, 6, None, (7, 3)),
            (3, 42, "", (-1, -1)),
        ]
    ]  # fmt: skip
    topics, values = topics_of((FIRST, parts), (SECOND, []))
    head = encoded.acknowledge_head(version, 0, None, 15_000, 2)
    expected = {
        "error_code": 0, "error_message": None, "acquisition_lock_timeout": 15_000,
        "responses": values, "node_endpoints": endpoints_of(nodes),
    }  # fmt: skip
    body = head + topics + encoded.endpoints(nodes)
    assert body == encode_body(ApiKey.SHARE_ACKNOWLEDGE, version, expected)


@pytest.mark.parametrize("message", [None, "why"])
@pytest.mark.parametrize("version", VERSIONS)
def test_share_acknowledge_refused(version: int, message: str | None) -> None:
    body = encoded.acknowledge_head(version, 123, message, 0, 0) + encoded.endpoints(())
    expected = {
        "error_code": 123, "error_message": message, "acquisition_lock_timeout": 0,
        "responses": (), "node_endpoints": (),
    }  # fmt: skip
    assert body == encode_body(ApiKey.SHARE_ACKNOWLEDGE, version, expected)
