"""The answers that are written by hand, held against kio's writer in every version."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from kproxy.protocol import responses
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_body, request_schema
from kproxy.protocol.responses import (
    Broker,
    Fetched,
    FetchedOffset,
    GroupOffsets,
    Listed,
    Produced,
)
from kproxy.server.dispatch import RANGES

ID = UUID("0f0e0d0c-0b0a-0908-0706-050403020100")


def test_every_advertised_version_has_a_schema() -> None:
    for key, low, high in RANGES:
        for version in range(3 if key == ApiKey.PRODUCE else low, high + 1):
            assert request_schema(key, version) is not None, (key, version)


@pytest.mark.parametrize("version", range(3, 14))
def test_produce(version: int) -> None:
    parts = [
        Produced(0, 0, 17, -1, 3),
        Produced(5, 10, message="too large" if version >= 8 else None),
    ]
    topic = ID.bytes if version >= 13 else "queue-1"
    expected = {
        "responses": [
            {
                "name": "queue-1",
                "topic_id": ID,
                "partition_responses": [
                    {
                        "index": part.partition,
                        "error_code": part.code,
                        "base_offset": part.base_offset,
                        "log_append_time": None,
                        "log_start_offset": part.log_start_offset,
                        "record_errors": (),
                        "error_message": part.message,
                    }
                    for part in parts
                ],
            }
        ]
    }
    assert responses.produce_body(version, [(topic, parts)], 1) == encode_body(0, version, expected)


def test_produce_log_append_time() -> None:
    time_ms = 1_700_000_000_123
    body = responses.produce_body(9, [("q", [Produced(0, 0, 1, time_ms, 0)])], 1)
    part = {
        "index": 0, "error_code": 0, "base_offset": 1, "log_start_offset": 0, "record_errors": (),
        "log_append_time": datetime.fromtimestamp(time_ms / 1000, UTC),
    }  # fmt: skip
    expected = {"responses": [{"name": "q", "partition_responses": [part]}]}
    assert body == encode_body(0, 9, expected)


@pytest.mark.parametrize("aborted", [None, (), ((7, 30), (1 << 40, 2))])
@pytest.mark.parametrize("version", range(4, 18))
def test_fetch(version: int, aborted: tuple[tuple[int, int], ...] | None) -> None:
    fetched = Fetched(3, 0, 40, 38, 2, 5)
    topic = ID.bytes if version >= 13 else "queue-1"
    tail = responses.fetch_tail(version)
    body = b"".join(
        (
            responses.fetch_head(version, 0, 77, 1),
            responses.fetch_topic_head(version, topic, 1),
            responses.fetch_partition_head(version, aborted, fetched),
            b"bytes", tail, tail, tail,
        )
    )  # fmt: skip
    listed = None
    if aborted is not None:
        listed = tuple({"producer_id": one, "first_offset": first} for one, first in aborted)
    part = {
        "partition_index": 3, "error_code": 0, "high_watermark": 40, "last_stable_offset": 38,
        "log_start_offset": 2, "aborted_transactions": listed,
        "preferred_read_replica": -1, "records": b"bytes",
    }  # fmt: skip
    expected = {
        "error_code": 0, "session_id": 77,
        "responses": [{"topic": "queue-1", "topic_id": ID, "partitions": [part]}],
    }  # fmt: skip
    assert body == encode_body(1, version, expected)


@pytest.mark.parametrize("version", range(14))
def test_metadata(version: int) -> None:
    operations = 3576 if version >= 8 else responses.UNKNOWN_OPERATIONS
    topics = [
        responses.metadata_topic(version, 0, "queue-1", ID.bytes, (1, 2, 1), operations),
        responses.metadata_topic(version, 3, "none", bytes(16), ()),
    ]
    brokers = [Broker(1, "localhost", 9092), Broker(2, "host", 19092)]
    body = responses.metadata_body(version, brokers, "the-cluster", 2, topics, 2)
    partitions = [
        {"error_code": 0, "partition_index": i, "leader_id": leader, "leader_epoch": 0,
         "replica_nodes": (leader,), "isr_nodes": (leader,), "offline_replicas": ()}
        for i, leader in enumerate((1, 2, 1))
    ]  # fmt: skip
    expected = {
        "brokers": [
            {"node_id": b.node_id, "host": b.host, "port": b.port, "rack": None} for b in brokers
        ],
        "cluster_id": "the-cluster",
        "controller_id": 2,
        "topics": [
            {"error_code": 0, "name": "queue-1", "topic_id": ID, "is_internal": False,
             "partitions": partitions, "topic_authorized_operations": operations},
            {"error_code": 3, "name": "none", "topic_id": UUID(int=0), "is_internal": False,
             "partitions": ()},
        ],
        "error_code": 0,
    }  # fmt: skip
    assert body == encode_body(3, version, expected)


def test_metadata_of_an_unknown_id_has_no_name() -> None:
    topic = responses.metadata_topic(12, 100, None, ID.bytes, ())
    body = responses.metadata_body(12, [], "c", 1, [topic], 1)
    expected = {
        "brokers": (), "cluster_id": "c", "controller_id": 1,
        "topics": [{"error_code": 100, "name": None, "topic_id": ID, "is_internal": False,
                    "partitions": ()}],
    }  # fmt: skip
    assert body == encode_body(3, 12, expected)


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets(version: int) -> None:
    topics = [
        ("queue-1", [Listed(0, 0, 1_700_000_000_123, 17, 0), Listed(5, 3)]),
        ("q", [Listed(1, 0, -1, 1 << 40, 0)]),
        ("none", []),
    ]
    expected = {
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": part.partition,
                        "error_code": part.code,
                        "timestamp": part.timestamp_ms,
                        "offset": part.offset,
                        "leader_epoch": part.leader_epoch,
                    }
                    for part in parts
                ],
            }
            for name, parts in topics
        ]
    }
    assert responses.list_offsets_body(version, topics) == encode_body(2, version, expected)


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch(version: int) -> None:
    topic_id = UUID(int=7)
    label: str | bytes = topic_id.bytes if version >= 10 else "queue-1"
    committed = FetchedOffset(0, 0, 1 << 40, 3, "seen"), FetchedOffset(5, 3), FetchedOffset(6, 0, 0)
    groups = [GroupOffsets("g", 0, [(label, committed), (label, [])]), GroupOffsets("h", 25, [])]
    if version < 8:
        del groups[1]
    expected = [
        {
            "group_id": group.group_id,
            "error_code": group.code,
            "topics": [
                {
                    "name": "queue-1",
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition_index": part.partition,
                            "committed_offset": part.offset,
                            "committed_leader_epoch": part.leader_epoch,
                            "metadata": part.metadata,
                            "error_code": part.code,
                        }
                        for part in parts
                    ],
                }
                for _, parts in group.topics
            ],
        }
        for group in groups
    ]
    body = responses.offset_fetch_body(version, groups)
    assert body == encode_body(9, version, {"groups": expected} if version >= 8 else expected[0])


@pytest.mark.parametrize("more", [None, ("queue-1", 3)])
def test_describe_topic_partitions(more: tuple[str, int] | None) -> None:
    def topic(name: str, code: int, topic_id: UUID, parts: tuple[dict[str, object], ...]) -> object:
        return {
            "error_code": code,
            "name": name,
            "topic_id": topic_id,
            "is_internal": False,
            "partitions": parts,
            "topic_authorized_operations": 5,
        }

    def part(index: int, leader: int) -> dict[str, object]:
        nodes = (leader,) if leader >= 0 else ()
        return {
            "error_code": 0 if leader >= 0 else 5,
            "partition_index": index,
            "leader_id": leader,
            "leader_epoch": 0,
            "replica_nodes": nodes,
            "isr_nodes": nodes,
            "eligible_leader_replicas": (),
            "last_known_elr": (),
            "offline_replicas": (),
        }

    expected = {
        "topics": (
            topic("none", 3, UUID(int=0), ()),
            topic("queue-1", 0, ID, (part(1, 7), part(2, -1))),
        ),
        "next_cursor": more and {"topic_name": more[0], "partition_index": more[1]},
    }
    topics = [
        responses.described_topic(3, "none", bytes(16), (), 0, 5),
        responses.described_topic(0, "queue-1", ID.bytes, (7, -1), 1, 5),
    ]
    assert responses.described_body(topics, more) == encode_body(75, 0, expected)
