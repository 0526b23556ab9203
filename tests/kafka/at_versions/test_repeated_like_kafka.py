"""Requests that name something twice, or too much: answers as a real Kafka 4.3.1 gives them."""

from typing import Any
from uuid import UUID

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import alike, made
from tests.wire import Wire, batch, batches, fetch_values

NO_ID = UUID(int=0)


def codes(parts: Any, of: str = "partition_index") -> list[tuple[Any, int]]:
    return sorted((getattr(part, of), int(part.error_code)) for part in parts)


def topic(name: str, partitions: int) -> dict[str, Any]:
    return {
        "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (),
        "configs": (),
    }  # fmt: skip


@alike
def test_queues(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 2)
    steps: list[Any] = [[int(t.error_code) for t in wire.metadata(queue, queue).topics]]
    many = [topic(f"{queue}-a", 9999), topic(f"{queue}-b", 1), topic(f"{queue}-c", 1)]
    answer = wire.call(ApiKey.CREATE_TOPICS, 7, {"topics": many, "timeout": 10_000})
    steps.append([(int(t.error_code), t.error_message) for t in answer.topics])
    two = {"topics": [{"name": queue, "topic_id": NO_ID}] * 2, "timeout": 10_000}
    steps.append([int(t.error_code) for t in wire.call(ApiKey.DELETE_TOPICS, 6, two).responses])
    grown = {"name": queue, "count": 3, "assignments": None}
    more = {"topics": [grown] * 2, "timeout": 10_000, "validate_only": False}
    steps.append([int(t.error_code) for t in wire.call(ApiKey.CREATE_PARTITIONS, 3, more).results])
    resource = {"resource_type": 2, "resource_name": queue}
    asked = [resource | {"configuration_keys": ("retention.ms",)}] * 2
    described = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, {
        "resources": asked, "include_synonyms": False, "include_documentation": False,
    })  # fmt: skip
    steps.append([len(result.configs) for result in described.results])
    altered = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {
        "resources": [resource | {"configs": ()}] * 2, "validate_only": False,
    })  # fmt: skip
    steps.append([int(result.error_code) for result in altered.responses])
    paged = wire.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {
        "topics": [{"name": queue}] * 2, "response_partition_limit": 100, "cursor": None,
    })  # fmt: skip
    steps.append([(int(t.error_code), len(t.partitions)) for t in paged.topics])
    return steps


@alike
def test_partitions(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 2)
    for _ in range(3):
        assert wire.produce(queue, batch(b"v")).error_code == 0
    wire.produce(queue, batch(b"v", producer_id=wire.producer_id(), epoch=0, sequence=0))
    steps: list[Any] = []
    listed = [{"partition_index": index, "timestamp": -1} for index in (0, 1, 0)]
    values = {"replica_id": -1, "isolation_level": 0, "timeout": 1000}
    topics = [{"name": queue, "partitions": listed}]
    answer = wire.call(ApiKey.LIST_OFFSETS, 10, values | {"topics": topics})
    steps += [codes(t.partitions) for t in answer.topics]
    epochs = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}] * 2
    answer = wire.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {
        "replica_id": -1, "topics": [{"topic": queue, "partitions": epochs}],
    })  # fmt: skip
    steps += [codes(t.partitions, "partition") for t in answer.topics]
    trims = [{"partition_index": 0, "offset": offset} for offset in (2, 1)]
    topics = [{"name": queue, "partitions": trims}]
    answer = wire.call(ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout": 1000})
    steps += [[(p.low_watermark, int(p.error_code)) for p in t.partitions]
              for t in answer.topics]  # fmt: skip
    asked = [{"name": queue, "partition_indexes": (0, 0)}]
    answer = wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": asked})
    steps += [[len(p.active_producers) for p in t.partitions] for t in answer.topics]
    asked = [{"topic": queue, "partitions": (0, 0)}] * 2
    answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": asked})
    steps += [[p.partition_index for p in t.partitions] for t in answer.results[0].topics]
    return steps


@alike
def test_batches(wire: Wire, queue: str) -> list[Any]:
    """The last of a partition's batches is taken, whichever of them are sound."""

    def named(index: int, records: bytes) -> dict[str, Any]:
        return {"index": index, "records": records}

    made(wire, queue, 3)
    steps: list[Any] = []

    def produce(version: int, *topics: list[dict[str, Any]]) -> None:
        queue_id = wire.metadata(queue, create=False).topics[0].topic_id
        label = {"topic_id": queue_id} if version >= 13 else {"name": queue}
        answer = wire.call(ApiKey.PRODUCE, version, {
            "transactional_id": None, "acks": -1, "timeout": 10_000,
            "topic_data": [label | {"partition_data": parts} for parts in topics],
        })  # fmt: skip
        steps.append(
            [sorted((p.index, int(p.error_code), p.base_offset) for p in t.partition_responses)
             for t in answer.responses]
        )  # fmt: skip
        for index in range(3):
            found = wire.call(ApiKey.FETCH, 12, fetch_values({(queue, index): 0}))
            parts = found.responses[0].partitions if found.responses else ()
            stored = [found for part in parts for found in batches(part.records)]
            steps.append([(base, data[61:]) for base, data in stored])

    one, two, three = (batch(b"%d" % number) for number in range(3))
    damaged = bytearray(one)
    damaged[-3] ^= 1
    for version in (9, 13):
        produce(version, [named(0, one), named(0, two)])
        produce(version, [named(1, one)], [named(2, two)])
        produce(version, [named(1, one)], [named(1, two), named(2, three)])
        produce(version, [named(0, bytes(damaged)), named(0, two)])
        produce(version, [named(0, two), named(0, bytes(damaged))])
        produce(version, [named(7, one), named(7, one), named(0, three)])
    producer = wire.producer_id()
    sent = [batch(b"v", producer_id=producer, epoch=0, sequence=i) for i in range(2)]
    produce(9, [named(0, sent[0]), named(0, sent[1])])
    produce(9, [named(0, sent[0])])
    return steps


@alike
def test_groups(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 2)
    group = f"{queue}-group"
    keys = {"key_type": 0, "coordinator_keys": (group, group)}

    def found() -> list[int]:
        return [int(c.error_code) for c in wire.call(ApiKey.FIND_COORDINATOR, 4, keys).coordinators]

    eventually(lambda: found()[0] == 0)  # a real Kafka makes a topic first
    steps: list[Any] = [found()]
    parts = [
        {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        for offset in (7, 5)
    ]
    values = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
        "topics": [{"name": queue, "partitions": parts}],
    }  # fmt: skip

    def committed() -> list[list[tuple[Any, int]]]:
        return [codes(t.partitions) for t in wire.call(ApiKey.OFFSET_COMMIT, 8, values).topics]

    eventually(lambda: (0, 14) not in committed()[0])  # nor is it loaded at once
    steps += committed()
    asked = {"group_id": group, "member_id": None, "member_epoch": -1}
    answer = wire.call(ApiKey.OFFSET_FETCH, 9, {
        "groups": [asked | {"topics": [{"name": queue, "partition_indexes": (0, 0)}]},
                   asked | {"topics": None}],
        "require_stable": False,
    })  # fmt: skip
    steps += [[p.committed_offset for t in g.topics for p in t.partitions]
              for g in answer.groups]  # fmt: skip
    for key, names in ((15, "groups"), (69, "group_ids")):
        answer = wire.call(key, 0, {names: (group, group), "include_authorized_operations": 0})
        steps.append([g.group_id == group for g in answer.groups])
    gone = [{"name": queue, "partitions": [{"partition_index": 0}] * 2}]
    answer = wire.call(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": gone})
    steps += [codes(t.partitions) for t in answer.topics]
    answer = wire.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": (group, group)})
    steps.append([int(result.error_code) for result in answer.results])
    return steps
