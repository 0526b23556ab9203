"""The requests that web UIs send when they open, as WIRE facts name them; not the UIs themselves.

AKHQ and kafbat UI are Java AdminClients; Redpanda Console is franz-go, which looks at what
ApiVersions has and asks each node.
"""

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.wire import Wire, batch
from tests.workers import Site

ALL_ACLS = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
EVERY_TOPIC = {
    "topics": None, "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": True, "include_topic_authorized_operations": True,
}  # fmt: skip
QUORUM = {"topics": [{"topic_name": "__cluster_metadata",
                      "partitions": [{"partition_index": 0}]}]}  # fmt: skip
CLUSTER = {"include_cluster_authorized_operations": True, "endpoint_type": 1}

COMMON: list[tuple[int, int, dict[str, Any]]] = [
    (18, 4, {"client_software_name": "a-ui", "client_software_version": "1.0"}),
    (3, 12, EVERY_TOPIC),
    (60, 1, CLUSTER),
    (16, 5, {"states_filter": (), "types_filter": ()}),
    (35, 4, {"topics": None}),
]
KAFBAT: list[tuple[int, int, dict[str, Any]]] = [
    *COMMON,
    (55, 2, QUORUM),
    (48, 1, {"components": (), "strict": False}),
]
REDPANDA: list[tuple[int, int, dict[str, Any]]] = [
    *COMMON,
    (46, 0, {"timeout": 1000, "topics": None}),
    (50, 0, {"users": None}),
    (48, 1, {"components": (), "strict": False}),
    (66, 1, {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}),
    (74, 1, {"resource_types": (2, 4)}),
]


def errors(answer: Any) -> list[int]:
    """Yield every error code in an answer that is not zero."""
    if isinstance(answer, tuple):
        return [code for item in answer for code in errors(item)]
    if not hasattr(answer, "__dataclass_fields__"):
        return []
    found = []
    for name in answer.__dataclass_fields__:
        value = getattr(answer, name)
        if name == "error_code":
            found += [int(value)] if value else []
        else:
            found += errors(value)
    return found


@pytest.mark.parametrize("requests", [COMMON, KAFBAT, REDPANDA], ids=["akhq", "kafbat", "redpanda"])
def test_first_requests_of_a_ui_are_answered(
    site: Site, queue: str, requests: list[tuple[int, int, dict[str, Any]]]
) -> None:
    with site.wire(queue) as wire:
        wire.create(queue, retention_ms="1000000")
        eventually(lambda: wire.produce(queue, batch(b"x")).error_code == 0)
        offered = {
            (api.api_key, api.max_version)
            for api in wire.call(ApiKey.API_VERSIONS, 3, requests[0][2]).api_keys
        }
        for key, version, values in requests:
            assert any(k == key and version <= high for k, high in offered), key
            assert errors(wire.call(key, version, values)) == [], key
        producers = {"topics": [{"name": queue, "partition_indexes": (0,)}]}
        assert errors(wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, producers)) == []
        settings_of(wire, queue)


def settings_of(wire: Wire, queue: str) -> None:
    """Describe the queue, and every broker by its own connection's id."""
    brokers = wire.call(ApiKey.DESCRIBE_CLUSTER, 1, CLUSTER).brokers
    mine = wire.socket.getpeername()[1]
    here = next(str(b.broker_id) for b in brokers if b.port == mine)
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in ((2, queue), (4, here))
    ]
    values = {"resources": resources, "include_synonyms": True, "include_documentation": True}
    answer = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, values)
    assert errors(answer) == []
    assert all(result.configs for result in answer.results)


def test_acls_are_asked_for_as_of_a_kafka_without_any(site: Site) -> None:
    """AKHQ asks; a real Kafka without an authorizer says SECURITY_DISABLED, and so does kproxy."""
    with site.wire("any") as wire:
        assert wire.call(ApiKey.DESCRIBE_ACLS, 3, ALL_ACLS).error_code == 54


def test_the_same_through_an_admin_client(site: Site, queue: str) -> None:
    """librdkafka's admin client finds the same, by its own routing to nodes."""
    with site.wire(queue) as wire:
        wire.create(queue)
    admin = AdminClient({"bootstrap.servers": site.address, "log_level": 0})
    cluster = admin.describe_cluster(include_authorized_operations=True).result()
    assert cluster.nodes
    assert admin.list_consumer_groups().result().errors == []
    broker = ConfigResource(ConfigResource.Type.BROKER, str(cluster.nodes[0].id))
    assert "num.partitions" in admin.describe_configs([broker])[broker].result()
    from confluent_kafka import TopicCollection, TopicPartition

    described = admin.describe_topics(TopicCollection([queue]))[queue].result()
    assert described.partitions[0].leader.id in {node.id for node in cluster.nodes}
    part = TopicPartition(queue, 0)
    assert admin.list_offsets({part: OffsetSpec.latest()})[part].result().offset == 0
