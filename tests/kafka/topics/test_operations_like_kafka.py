"""The requests of operators' tools: answers as a real Kafka 4.3.1 gives them.

Left out: directories and sizes (a real Kafka rounds to its segments' files), nodes.
"""

import dataclasses
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.alike import alike, made
from tests.wire import Wire, batch


@alike
def test_log_dirs(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 2)
    wire.produce(queue, batch(b"x" * 100))
    steps: list[Any] = []
    for version in range(1, 5):
        topics = [{"topic": queue, "partitions": (0, 1, 7)}, {"topic": "no", "partitions": ()}]
        answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": topics})
        for result in answer.results:
            for topic in result.topics:
                parts = sorted(
                    (p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
                    for p in topic.partitions
                )
                steps.append((version, int(result.error_code), topic.name, parts))
        if version == 4:
            steps.append(answer.results[0].total_bytes > answer.results[0].usable_bytes > 0)
    return steps


@alike
def test_producers(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    producer = wire.producer_id()
    wire.produce(queue, batch(b"a", b"b", producer_id=producer, epoch=0, sequence=0))
    topics = [
        {"name": queue, "partition_indexes": (0, 1)}, {"name": "no", "partition_indexes": (0,)},
    ]  # fmt: skip
    steps = []
    for topic in wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics}).topics:
        for part in topic.partitions:
            steps.append(
                (topic.name == queue, part.partition_index, int(part.error_code),
                 [(p.producer_id == producer, p.producer_epoch, p.last_sequence,
                   p.last_timestamp, p.coordinator_epoch, p.current_txn_start_offset)
                  for p in part.active_producers])
            )  # fmt: skip
    return sorted(steps)


@alike
def test_many_producers_of_one_queue(wire: Wire, queue: str) -> list[Any]:
    """More than a partition's row has room for: all are known, repeated and fenced alike."""
    made(wire, queue)
    pids = [wire.producer_id() for _ in range(12)]

    def sent(number: int, sequence: int, epoch: int = 0) -> tuple[int, int]:
        data = batch(b"v", producer_id=pids[number], epoch=epoch, sequence=sequence)
        part = wire.produce(queue, data)
        return int(part.error_code), part.base_offset

    steps: list[Any] = []
    for sequence in range(7):
        steps += [sent(number, sequence) for number in range(12)]
    for number in (0, 11, 3):
        steps += [sent(number, sequence) for sequence in (6, 2, 1, 9, 7)]
    steps += [sent(5, 0, epoch=1), sent(5, 7), sent(6, 3, epoch=1)]
    topics = [{"name": queue, "partition_indexes": (0,)}]
    (part,) = wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics}).topics[0].partitions
    steps += sorted(
        (pids.index(p.producer_id), p.producer_epoch, p.last_sequence)
        for p in part.active_producers
    )
    return steps


@alike
def test_elections_and_the_rest(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    steps: list[Any] = []
    topics = [{"topic": queue, "partitions": (0, 9)}]
    for version in range(3):
        values = {"election_type": 0, "topic_partitions": topics, "timeout": 5000}
        answer = wire.call(ApiKey.ELECT_LEADERS, version, values)
        results = answer.replica_election_results
        steps.append(
            sorted((p.partition_id, int(p.error_code)) for r in results
                   for p in r.partition_result)
        )  # fmt: skip
    everything = {"resource_type_filter": 1, "resource_name_filter": None,
                  "pattern_type_filter": 1, "principal_filter": None, "host_filter": None,
                  "operation": 1, "permission_type": 1}  # fmt: skip
    steps.append(wire.call(ApiKey.DESCRIBE_ACLS, 3, everything))
    steps.append(
        wire.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 1000, "topics": None})
    )
    nobody = ({"entity_type": "user", "match_type": 0, "match": queue},)
    for components in ((), nobody):  # other tests may have some
        quotas = {"components": components, "strict": False}
        answer = wire.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, quotas)
        steps.append((answer.error_code, answer.error_message, components and answer.entries))
    for users in (None, ()):
        answer = wire.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": users})
        found = [one for one in answer.results if one.user.startswith(queue)]
        steps.append((answer.error_code, answer.error_message, found))
    users = [{"name": "nobody"}]
    steps.append(
        [
            int(r.error_code)
            for r in wire.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": users}).results
        ]
    )
    filters = {"state_filters": (), "producer_id_filters": (2**60,), "duration_filter": -1,
               "transactional_id_pattern": None}  # fmt: skip
    steps.append(wire.call(ApiKey.LIST_TRANSACTIONS, 1, filters))
    resources = wire.call(
        ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": (2, 4)}
    ).config_resources
    steps.append(sorted((r.resource_type, r.resource_name) for r in resources
                        if r.resource_name == queue or r.resource_type == 4))  # fmt: skip
    return steps


@alike
def test_reassignments(wire: Wire, queue: str) -> list[Any]:
    """A move to another broker is refused here; with one broker there is nowhere to move to."""
    made(wire, queue)
    part = wire.metadata(queue).topics[0].partitions[0]
    here, steps = part.leader_id, []
    for replicas in (None, (), (here,), (here, here), (77,), (-1,)):
        for name, index in ((queue, 0), (queue, 9), (f"{queue}-none", 0)):
            parts = [{"partition_index": index, "replicas": replicas}]
            values = {"timeout": 5000, "topics": [{"name": name, "partitions": parts}]}
            answer = wire.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, values)
            (topic,) = answer.responses
            steps.append((str(replicas != (here,) and replicas), index, int(answer.error_code),
                          [int(p.error_code) for p in topic.partitions]))  # fmt: skip
    return steps


@alike
def test_moves_between_directories(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    told = wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}).results
    here, steps = told[0].log_dir, []
    for path in (here, "/no/such/directory"):
        for name, index in ((queue, 0), (queue, 9), (f"{queue}-none", 0)):
            topics = [{"name": name, "partitions": (index,)}]
            values = {"dirs": [{"path": path, "topics": topics}]}
            answer = wire.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, values)
            (topic,) = answer.results
            steps.append((path == here, index, [int(p.error_code) for p in topic.partitions]))
    return steps


@alike
def test_quorum(wire: Wire, queue: str) -> list[Any]:
    parts = [{"partition_index": 0}]
    topics = [{"topic_name": "__cluster_metadata", "partitions": parts}]
    answer = wire.call(ApiKey.DESCRIBE_QUORUM, 2, {"topics": topics})
    part = answer.topics[0].partitions[0]
    return [int(answer.error_code), int(part.error_code), len(part.current_voters),
            part.leader_id == part.current_voters[0].replica_id]  # fmt: skip


@alike
def test_pages_of_queues(wire: Wire, queue: str) -> list[Any]:
    for name, partitions in (("-a", 3), ("-b", 1), ("-c", 4)):
        made(wire, queue + name, partitions)
    steps: list[Any] = []

    def ask(limit: int, cursor: Any = None, *names: str) -> Any:
        values = {"topics": [{"name": queue + n} for n in names or ("-c", "-a", "-b", "-no")],
                  "response_partition_limit": limit, "cursor": cursor}  # fmt: skip
        answer = wire.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, values)
        steps.append((limit, answer))
        return answer.next_cursor

    ask(2000)
    for limit in (1, 2, 3, 4, 5, 7, 8, 9):
        cursor: Any = None
        for _ in range(12):
            cursor = ask(limit, cursor)
            if cursor is None:
                break
            cursor = dataclasses.asdict(cursor)
    ask(5, {"topic_name": queue + "-aa", "partition_index": 1})
    ask(5, {"topic_name": queue + "-b", "partition_index": 0})
    ask(5, None, "-no")
    return steps
