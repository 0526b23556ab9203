"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37), DeleteRecords (21).

Rules, codes and messages follow Kafka's `ReplicationControlManager` and `ReplicaManager`.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from kproxy.appends import append_all, outcomes_of
from kproxy.errors import Code, KafkaError
from kproxy.metadata import configs
from kproxy.protocol.codec import ZERO_UUID
from kproxy.shard import Shard
from kproxy.virtual.envelope import Envelope, Kind, command
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import name_fault
from kproxy.virtual.rows import Queue
from kproxy.virtual.types import QueueId
from kproxy.worker import Request, Worker

# Others' requests go between; who asks another worker waits longer for an outcome.
_DELETED_AT_ONCE, _DELETED_AT_ONCE_ELSEWHERE = 50, 250
_CONFIG_SOURCE_TOPIC, _CONFIG_SOURCE_DEFAULT = 1, 5


async def create(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A CreateTopicsResponse; a queue answered without error can be used at once."""
    body = request.body
    repeated = _repeated(topic.name for topic in body.topics)
    answers: dict[str, dict[str, Any]] = {}
    waiting = {}
    for topic in body.topics:
        try:
            if topic.name in repeated:
                raise KafkaError(Code.INVALID_REQUEST, "the request names this queue twice")
            partitions, kept = _checked(worker, topic)
            if body.validate_only:
                answers[topic.name] = _created(worker, topic.name, None, partitions, kept)
            else:
                waiting[topic.name] = worker.catalogue.create(topic.name, partitions, kept)
        except KafkaError as error:
            answers[topic.name] = _not_created(topic.name, error)
    for name, (queue, ticket) in waiting.items():
        try:
            outcome = (await ticket.wait())[0]
            if outcome.code or (made := outcome.queue) is None or made.queue_id != queue.queue_id:
                raise KafkaError(outcome.code, _exists(name))
            answers[name] = _created(worker, name, made.queue_id, made.partitions, made.configs)
        except KafkaError as error:
            answers[name] = _not_created(name, error)
    return {"topics": [answers[name] for name in dict.fromkeys(t.name for t in body.topics)]}


def _repeated(names: Any) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def _exists(name: str) -> str:
    return f"Topic '{name}' already exists."


def _checked(worker: Worker, topic: Any) -> tuple[int, dict[str, str]]:
    """(partition count, configs) of a sound creation. Raises KafkaError."""
    fault = name_fault(topic.name)
    if fault:
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, fault)
    if worker.catalogue.exists(topic.name):
        raise KafkaError(Code.TOPIC_ALREADY_EXISTS, _exists(topic.name))
    nodes = {broker.node_id for broker in worker.cluster.brokers}
    if topic.assignments:
        partitions = _assigned(topic, nodes)
    else:
        partitions = topic.num_partitions
        if partitions == -1:
            partitions = worker.config.partitions_default
        if topic.replication_factor not in (-1, 1):
            raise KafkaError(
                Code.INVALID_REPLICATION_FACTOR,
                "a queue has replication factor 1: the log behind it is what is replicated",
            )
    if not 1 <= partitions <= worker.config.partitions_max:
        raise KafkaError(
            Code.INVALID_PARTITIONS,
            f"a queue may have 1 to {worker.config.partitions_max} partitions, not {partitions}",
        )
    return partitions, configs.check({config.name: config.value for config in topic.configs})


def _assigned(topic: Any, nodes: set[int]) -> int:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise KafkaError(
            Code.INVALID_REQUEST, "give either a partition count or an assignment, not both"
        )
    given = {a.partition_index: list(a.broker_ids) for a in topic.assignments}
    if sorted(given) != list(range(len(topic.assignments))):
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered 0, 1, … without a gap"
        )
    if any(len(brokers) != 1 or brokers[0] not in nodes for brokers in given.values()):
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT, "each partition needs one of this cluster's nodes"
        )
    return len(given)


def _created(
    worker: Worker, name: str, queue_id: QueueId | None, partitions: int, kept: dict[str, str]
) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": ZERO_UUID if queue_id is None else UUID(bytes=bytes(queue_id)),
        "error_code": Code.NONE,
        "error_message": None,
        "topic_config_error_code": 0,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {
                "name": setting.name,
                "value": kept.get(setting.name) or _default(worker, setting),
                "read_only": False,
                "config_source": (
                    _CONFIG_SOURCE_TOPIC if setting.name in kept else _CONFIG_SOURCE_DEFAULT
                ),
                "is_sensitive": False,
            }
            for setting in configs.SETTINGS.values()
        ],
    }


def _default(worker: Worker, setting: configs.Setting) -> str:
    if setting.name == "max.message.bytes":
        return str(int(worker.config.batch_bytes_max))
    return setting.default


def _not_created(name: str, error: KafkaError) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": ZERO_UUID,
        "error_code": error.code,
        "error_message": error.message,
        "topic_config_error_code": 0,
        "configs": (),
    }


async def delete(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DeleteTopicsResponse; the queue is gone for everyone when this is answered."""
    body = request.body
    answers: list[dict[str, Any]] = []
    doomed: list[tuple[dict[str, Any], Queue]] = []
    if request.version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in body.topics]
    else:
        wanted = [(name, None) for name in body.topic_names]
    for name, topic_id in wanted:
        queue, code = _wanted(worker, name, topic_id)
        answer: dict[str, Any] = {"name": name, "topic_id": topic_id or ZERO_UUID}
        answer["error_code"] = code
        if queue is not None:
            answer |= {"name": queue.name, "topic_id": UUID(bytes=bytes(queue.queue_id))}
            doomed.append((answer, queue))
        answers.append(answer)
    step = _DELETED_AT_ONCE if worker.routes.shards == 1 else _DELETED_AT_ONCE_ELSEWHERE
    for start in range(0, len(doomed), step):
        some = doomed[start : start + step]
        outcomes = await outcomes_of(
            [
                worker.routes.decide(queue.name, command(Kind.DELETE, queue.queue_id))
                for _, queue in some
            ]
        )
        for (answer, _), outcome in zip(some, outcomes, strict=True):
            answer["error_code"] = outcome.code_by_name
            answer["error_message"] = outcome.message
    return {"responses": answers}


def _wanted(worker: Worker, name: str | None, topic_id: UUID | None) -> tuple[Queue | None, Code]:
    if topic_id is not None and topic_id != ZERO_UUID:
        if name is not None:
            return None, Code.INVALID_REQUEST
        queue = worker.catalogue.find_id(QueueId(topic_id.bytes))
        return queue, Code.NONE if queue else Code.UNKNOWN_TOPIC_ID
    if name is None:
        return None, Code.INVALID_REQUEST
    queue = worker.catalogue.find(name)
    return queue, Code.NONE if queue else Code.UNKNOWN_TOPIC_OR_PARTITION


async def create_partitions(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A CreatePartitionsResponse."""
    body = request.body
    repeated = _repeated(topic.name for topic in body.topics)
    results = []
    tickets = []
    growing = []
    for topic in body.topics:
        result: dict[str, Any] = {"name": topic.name, "error_code": Code.NONE}
        results.append(result)
        try:
            queue = _growable(worker, topic, repeated)
        except KafkaError as error:
            result |= {"error_code": error.code, "error_message": error.message}
            continue
        if not body.validate_only:
            growing.append(result)
            grow = command(Kind.GROW, queue.queue_id, number=topic.count)
            tickets.append(worker.routes.decide(queue.name, grow))
    for result, outcome in zip(growing, await outcomes_of(tickets), strict=True):
        result["error_code"] = outcome.code_by_name
        result["error_message"] = outcome.message
    return {"results": results}


def _growable(worker: Worker, topic: Any, repeated: set[str]) -> Queue:
    if topic.name in repeated:
        raise KafkaError(Code.INVALID_REQUEST, "the request names this queue twice")
    queue = worker.catalogue.find(topic.name)
    if queue is None:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.count <= queue.partitions:
        raise KafkaError(
            Code.INVALID_PARTITIONS,
            f"the queue has {queue.partitions} partitions; the new count must be higher",
        )
    if topic.count > worker.config.partitions_max:
        raise KafkaError(
            Code.INVALID_PARTITIONS,
            f"a queue may have at most {worker.config.partitions_max} partitions",
        )
    if topic.assignments is not None:
        nodes = {broker.node_id for broker in worker.cluster.brokers}
        if len(topic.assignments) != topic.count - queue.partitions or any(
            len(a.broker_ids) != 1 or a.broker_ids[0] not in nodes for a in topic.assignments
        ):
            raise KafkaError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                "each new partition needs one of this cluster's nodes",
            )
    return queue


async def delete_records(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DeleteRecordsResponse: log starts moved by logged TRIMs; -1 means all there is."""
    topics = []
    pairs: list[tuple[Shard, Envelope]] = []
    trimmed = []
    for topic in request.body.topics:
        queue = worker.catalogue.find(topic.name)
        parts = []
        for part in topic.partitions:
            index = part.partition_index
            result: dict[str, Any] = {"partition_index": index, "low_watermark": -1}
            parts.append(result)
            if queue is None or not 0 <= index < queue.partitions:
                result["error_code"] = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif part.offset < -1:
                result["error_code"] = Code.OFFSET_OUT_OF_RANGE
            else:
                try:
                    shard = worker.shard(queue.name, index)
                except KafkaError as error:
                    result["error_code"] = error.code
                    continue
                trimmed.append(result)
                trim = command(Kind.TRIM, queue.queue_id, index, number=part.offset)
                pairs.append((shard, trim))
        topics.append({"name": topic.name, "partitions": parts})
    for result, outcome in zip(trimmed, await append_all(pairs), strict=True):
        result |= _trimmed(outcome)
    return {"topics": topics}


def _trimmed(outcome: Outcome) -> dict[str, Any]:
    return {"error_code": outcome.code_by_name, "low_watermark": outcome.number}
