"""Topics, metadata, commits and configs: answers as a real Kafka 4.3.1 gives them."""

from typing import Any
from uuid import UUID

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import alike, made
from tests.wire import Wire, batch


def create_values(name: str, **changes: Any) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (),
             "configs": ()} | changes  # fmt: skip
    return {"topics": [topic], "timeout": 10_000}


@alike
def test_create_topics(wire: Wire, queue: str) -> list[Any]:
    assignment = [{"partition_index": 0, "broker_ids": (1,)}]
    gap = [{"partition_index": 1, "broker_ids": (1,)}]
    stranger = [{"partition_index": 0, "broker_ids": (99,)}]
    by_hand = {"num_partitions": -1, "replication_factor": -1}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("a", {}),
        ("a", {}),
        ("b", {"num_partitions": -1, "replication_factor": -1}),
        ("c", {"num_partitions": 0}),
        ("c", {"num_partitions": -5}),
        ("c", {"replication_factor": 3}),
        ("c", {"replication_factor": 0}),
        ("c", {"configs": [{"name": "no.such", "value": "1"}]}),
        ("c", {"configs": [{"name": "retention.ms", "value": "soon"}]}),
        ("c", {"configs": [{"name": "cleanup.policy", "value": "shred"}]}),
        ("c", {"configs": [{"name": "message.timestamp.type", "value": "Never"}]}),
        ("c!", {}),
        ("x" * 250, {}),
        ("d", by_hand | {"assignments": assignment}),
        ("e", {"assignments": assignment}),
        ("e", by_hand | {"assignments": gap}),
        ("e", by_hand | {"assignments": stranger}),
        ("f", {"num_partitions": 3, "configs": [{"name": "retention.ms", "value": "1000"}]}),
    ]
    steps = []
    for name, changes in cases:
        full = name if len(name) > 200 else f"{queue}-{name}"
        steps.append(
            wire.call(ApiKey.CREATE_TOPICS, 7, create_values(full, **changes)).topics[0].error_code
        )
    dry = create_values(f"{queue}-dry") | {"validate_only": True}
    steps.append(wire.call(ApiKey.CREATE_TOPICS, 7, dry).topics[0].error_code)
    steps.append(wire.metadata(f"{queue}-dry", create=False).topics[0].error_code)
    twice = create_values(f"{queue}-twice")
    twice["topics"] *= 2
    steps.append([t.error_code for t in wire.call(ApiKey.CREATE_TOPICS, 7, twice).topics])
    return steps


@alike
def test_delete_topics(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    made(wire, queue + "-2")
    topic_id = eventually(lambda: wire.metadata(queue, create=False).topics[0].topic_id)

    def by_id(value: UUID) -> Any:
        topic = {"name": None, "topic_id": value}
        return (
            wire.call(ApiKey.DELETE_TOPICS, 6, {"topics": [topic], "timeout": 5000})
            .responses[0]
            .error_code
        )

    def old(name: str) -> Any:
        values = {"topic_names": [name], "timeout": 5000}
        return wire.call(ApiKey.DELETE_TOPICS, 3, values).responses[0].error_code

    return [
        by_id(UUID(int=99)), by_id(topic_id), by_id(topic_id), old(queue), old(queue + "-2"),
        wire.delete("absent").error_code,
    ]  # fmt: skip


@alike
def test_create_partitions(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 2)

    def grow(name: str, count: int, **more: Any) -> Any:
        topic = {"name": name, "count": count, "assignments": None} | more
        values = {"topics": [topic], "timeout": 5000, "validate_only": False}
        return wire.call(ApiKey.CREATE_PARTITIONS, 3, values).results[0].error_code

    steps = [grow(queue, 2), grow(queue, 1), grow(queue, 0), grow("absent-" + queue, 4)]
    steps += [grow(queue, 4, assignments=[{"broker_ids": (1,)}])]
    steps += [grow(queue, 4, assignments=[{"broker_ids": (99,)}] * 2)]
    steps += [grow(queue, 4)]
    eventually(lambda: wire.list_offset(queue, -1, 3).error_code == 0)
    return [*steps, wire.produce(queue, batch(b"v"), partition=3)]


@pytest.mark.parametrize("version", [0, 1, 4, 7, 9, 10, 12, 13])
@alike
def test_metadata(wire: Wire, queue: str, version: int) -> list[Any]:
    made(wire, queue, 3)
    some = wire.metadata(queue, "bad name", version=version)
    # The comparison leaves out partition order, which Kafka does not promise.
    topics = [
        (t.error_code, t.name, getattr(t, "is_internal", None),
         sorted((p.partition_index, p.error_code) for p in t.partitions))
        for t in sorted(some.topics, key=lambda t: t.name)
    ]  # fmt: skip
    absent = wire.metadata("absent-" + queue, create=False, version=max(version, 4))
    return [topics, len(some.brokers), absent.topics]


@alike
def test_metadata_by_id(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    topic_id = wire.metadata(queue).topics[0].topic_id
    steps = []
    for value in (topic_id, UUID(int=99)):
        values = {
            "topics": [{"name": None, "topic_id": value}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        }
        topic = wire.call(ApiKey.METADATA, 12, values).topics[0]
        steps.append((topic.error_code, topic.name, topic.topic_authorized_operations))
    return steps


def commit_values(group: str, queue: str, offset: int, **changes: Any) -> dict[str, Any]:
    part = {"partition_index": changes.pop("partition", 0), "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": changes.pop("metadata", "")}  # fmt: skip
    base = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": queue, "partitions": [part]}]}  # fmt: skip
    return base | changes


@alike
def test_commits(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 2)
    group = queue
    find = {"key_type": 0, "coordinator_keys": (group,)}
    eventually(
        lambda: wire.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code == 0, 60
    )

    def commit(offset: int, name: str = queue, **changes: Any) -> Any:
        values = commit_values(group, name, offset, **changes)
        return wire.call(ApiKey.OFFSET_COMMIT, 9, values).topics[0].partitions[0].error_code

    def committed(topics: Any, name: str = group) -> Any:
        one = {"group_id": name, "topics": topics}
        return wire.call(ApiKey.OFFSET_FETCH, 8, {"groups": [one], "require_stable": False}).groups[
            0
        ]

    eventually(lambda: commit(1) == 0, 60)
    steps = [
        commit(5, metadata="note"), commit(3), commit(7, partition=1, metadata="x" * 4096),
        commit(7, metadata="x" * 4097), commit(7, partition=9), commit(7, "absent-" + queue),
        commit(7, member_id="someone"), commit(7, generation_id_or_member_epoch=4),
    ]  # fmt: skip
    steps += [
        committed([{"name": queue, "partition_indexes": (0, 1, 9)}]),
        sorted(p.committed_offset for t in committed(None).topics for p in t.partitions),
        committed([{"name": "absent-" + queue, "partition_indexes": (0,)}]),
        committed([{"name": queue, "partition_indexes": (0,)}], "no-such-group"),
        committed(None, "no-such-group"),
    ]

    def forget(index: int, name: str = group) -> Any:
        topics = [{"name": queue, "partitions": [{"partition_index": index}]}]
        return wire.call(ApiKey.OFFSET_DELETE, 0, {"group_id": name, "topics": topics})

    steps += [forget(0), forget(9), forget(0, "no-such-group")]
    steps += [committed([{"name": queue, "partition_indexes": (0, 1)}])]
    return steps


@alike
def test_leader_epochs(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    wire.produce(queue, batch(b"a", b"b"))

    def ask(epoch: int, current: int = -1, partition: int = 0) -> Any:
        part = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        topics = [{"topic": queue, "partitions": [part]}]
        answer = wire.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": topics})
        found = answer.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    return [ask(0), ask(7), ask(0, 9), ask(0, partition=5)]


@alike
def test_describe_configs(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, retention_ms="5000")
    resources = [
        {"resource_type": 2, "resource_name": name, "configuration_keys": keys}
        for name, keys in (
            (queue, ("retention.ms", "cleanup.policy", "no.such")), ("absent", None),
            ("bad name", None),
        )
    ]  # fmt: skip
    answer = wire.call(
        ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources, "include_synonyms": False}
    )
    found = [
        (r.error_code, [(c.name, c.value, c.config_source, c.config_type) for c in
         sorted(r.configs, key=lambda c: c.name)])
        for r in answer.results
    ]  # fmt: skip
    return [found]
