"""CreateTopicsResponse as it is written by hand, held against kio's writer in every version."""

from typing import Any
from uuid import UUID

import pytest

from kproxy.protocol.codec import encode_body, encode_with_kio
from kproxy.protocol.written_once import NO_CONFIGS, TopicConfigs

ID = UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
SETTINGS = [("retention.ms", "5", 1), ("a", None, 5), ("long", "x" * 300, 5)]
TOPICS: list[dict[str, Any]] = [
    {"name": "made", "error_code": 0, "error_message": None, "topic_config_error_code": 0,
     "num_partitions": 3, "replication_factor": 1, "configs": SETTINGS},
    {"name": "unseen", "error_code": 0, "error_message": None, "topic_config_error_code": 29,
     "num_partitions": -1, "replication_factor": -1, "configs": []},
    {"name": "refused", "error_code": 36, "error_message": "it is there",
     "topic_config_error_code": 0, "configs": []},
]  # fmt: skip


def of_kio(topic: dict[str, Any]) -> dict[str, Any]:
    configs = [
        {"name": name, "value": value, "read_only": False, "config_source": of,
         "is_sensitive": False}
        for name, value, of in topic["configs"]
    ]  # fmt: skip
    return topic | {"topic_id": ID, "configs": configs}


def of_ours(topic: dict[str, Any]) -> dict[str, Any]:
    configs = TopicConfigs(topic["configs"]) if topic["configs"] else NO_CONFIGS
    return topic | {"topic_id": ID, "configs": configs}


@pytest.mark.parametrize("version", range(2, 8))
def test_created_topics(version: int) -> None:
    ours = encode_body(19, version, {"topics": [of_ours(topic) for topic in TOPICS]})
    assert ours == encode_with_kio(19, version, {"topics": [of_kio(topic) for topic in TOPICS]})
