"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37).

Rules, codes and messages follow Kafka's `ReplicationControlManager`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.creations import checked, count, exists
from kproxy.handlers.common.hearing import hear_of, hear_of_sources
from kproxy.handlers.common.items import Asked, Refusing, settle
from kproxy.handlers.common.needs import TopicNeeds
from kproxy.handlers.common.permitted import denied, forbidden
from kproxy.handlers.common.refusals import TEXTS
from kproxy.loop.pace import slices
from kproxy.metadata.route_settings import partitions_conflict
from kproxy.metadata.topic_settings import SETTINGS
from kproxy.protocol.api_keys import EXCESS_TOLD_FROM, ApiKey
from kproxy.protocol.codec import ZERO_UUID
from kproxy.protocol.written_once import NO_CONFIGS, TopicConfigs
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.virtual.commands.queues import DeleteQueue, GrowQueue
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId
from kproxy.worker.request import Request

# The most that is put in line at once; others' requests go between.
_DELETED_AT_ONCE = 500
_LOTS_UNDER_WAY = 2  # while the log takes one, the next is made
_PARTITIONS_AT_ONCE = 10_000  # new ones in one request: Kafka's MAX_PARTITIONS_PER_BATCH
_TOO_MANY = "Excessively large number of partitions per request."
_TOPIC_BYTES, _CREATED_BYTES = 600, 2500  # about, until they are encoded
_CONFIG_SOURCE_TOPIC, _CONFIG_SOURCE_DEFAULT = 1, 5


async def create(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a CreateTopicsResponse; a queue answered without error can be used at once."""
    body, step = request.body, request.budget.step
    named = await request.budget.count(topic.name for topic in body.topics)
    barred = await _uncreatable(request, named)
    # A queue that is here may be gone elsewhere; for others the fold says so when it is asked.
    find, validates = worker.catalogue.find, body.validate_only
    doubtful = (name for name in named if validates or find(name) is not None)
    await hear_of(worker, doubtful, request.budget)
    await hear_of_sources(worker, body.topics, request.budget)
    too_many = await _ask_for_too_many(worker, request, named)
    answers: dict[str, dict[str, Any]] = {}
    waiting = {}
    mutations = worker.mutations(request, strict_from=EXCESS_TOLD_FROM[ApiKey.CREATE_TOPICS])
    answer = _Created(worker, request)
    for topic in body.topics:
        await step(_TOPIC_BYTES)
        try:
            _refuse_repeated(topic.name, named)
            if topic.name in barred:
                raise denied(Code.TOPIC_AUTHORIZATION_FAILED)
            if too_many:
                raise KafkaError(Code.POLICY_VIOLATION, _TOO_MANY)
            partitions, kept = checked(worker, request, topic)
            count(mutations, partitions)
            if body.validate_only:
                answers[topic.name] = answer.of(topic.name, None, partitions, kept)
            else:
                waiting[topic.name] = worker.catalogue.create(topic.name, partitions, kept)
        except KafkaError as error:
            answers[topic.name] = _not_created(topic.name, error)
    request.throttle(mutations.wait_s)
    for name, (queue, ticket) in waiting.items():
        try:
            outcome = (await ticket.wait())[0]
            if outcome.code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS):
                raise KafkaError(outcome.code, outcome.message or "")
            if outcome.code or (made := outcome.queue) is None or made.queue_id != queue.queue_id:
                raise KafkaError(Code.TOPIC_ALREADY_EXISTS, exists(name))
            answers[name] = answer.of(name, made.queue_id, made.partitions, made.configs)
        except KafkaError as error:
            answers[name] = _not_created(name, error)
        await step(_CREATED_BYTES)
    return {"topics": [answers[name] for name in named]}


async def _uncreatable(request: Request, names: Iterable[str]) -> set[str]:
    """Return the names that the client may not make."""
    if request.permits.sees(Op.CREATE, Resource.CLUSTER, CLUSTER_NAME):
        return set()
    return await forbidden(request, Op.CREATE, names)


def _refuse_repeated(name: str, named: dict[str, int]) -> None:
    if named[name] > 1:
        raise KafkaError(Code.INVALID_REQUEST, "the request names this queue twice")


async def _ask_for_too_many(worker: TopicNeeds, request: Request, named: dict[str, int]) -> bool:
    """Return whether a CreateTopics asks for too many partitions, as Kafka counts them."""
    default, asked = worker.config.partitions_default, 0
    for topic in request.body.topics:
        if named[topic.name] == 1:
            partitions = default if topic.num_partitions == -1 else max(0, topic.num_partitions)
            asked += len(topic.assignments) or partitions
        await request.budget.step()
    return asked > _PARTITIONS_AT_ONCE


class _Created:
    """The answers for queues that were made; those that are made alike share their settings."""

    def __init__(self, worker: TopicNeeds, request: Request) -> None:
        self._worker = worker
        self._sees = request.permits.sees
        self._kept: dict[str, str] = {}
        self._configs = self._configs_of({})

    def of(
        self, name: str, queue_id: QueueId | None, partitions: int, kept: dict[str, str]
    ) -> dict[str, Any]:
        answer = {
            "name": name,
            "topic_id": ZERO_UUID if queue_id is None else UUID(bytes=bytes(queue_id)),
            "error_code": Code.NONE,
            "error_message": None,
        }
        if not self._sees(Op.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            return answer | {
                "topic_config_error_code": Code.TOPIC_AUTHORIZATION_FAILED,
                "num_partitions": -1,
                "replication_factor": -1,
                "configs": NO_CONFIGS,
            }
        if kept != self._kept:
            self._kept, self._configs = kept, self._configs_of(kept)
        return answer | {
            "topic_config_error_code": Code.NONE,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": self._configs,
        }

    def _configs_of(self, kept: dict[str, str]) -> TopicConfigs:
        given, default = _CONFIG_SOURCE_TOPIC, _CONFIG_SOURCE_DEFAULT
        return TopicConfigs(
            (name, kept[name], given) if name in kept
            else (name, self._worker.batch_limits.default(setting), default)
            for name, setting in SETTINGS.items()
        )  # fmt: skip


def _not_created(name: str, error: KafkaError) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": ZERO_UUID,
        "error_code": _moved(error.code),
        "error_message": error.message,
        "topic_config_error_code": 0,
        "configs": NO_CONFIGS,
    }


async def delete(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DeleteTopicsResponse; the queue is gone for everyone when this is answered."""
    body, step = request.body, request.budget.step
    answers: list[dict[str, Any]] = []
    doomed: list[tuple[dict[str, Any], Queue]] = []
    mutations = worker.mutations(request, strict_from=EXCESS_TOLD_FROM[ApiKey.DELETE_TOPICS])
    names: Iterator[tuple[str | None, UUID]]
    if request.version >= 6:
        names = ((topic.name, topic.topic_id or ZERO_UUID) for topic in body.topics)
    else:
        names = ((name, ZERO_UUID) for name in body.topic_names)
    named = await request.budget.count(names)
    await hear_of(worker, _named(worker, named), request.budget)
    for (name, topic_id), times in named.items():
        await step(_TOPIC_BYTES)
        queue, code = _wanted(worker, name, topic_id)
        answer: dict[str, Any] = {"name": name, "topic_id": topic_id}
        if times == 1 and code != Code.INVALID_REQUEST:
            asked = name if queue is None else queue.name
            if asked is not None and not _may_delete(request, asked, queue is not None):
                queue, code = None, Code.TOPIC_AUTHORIZATION_FAILED
                answer["error_message"] = TEXTS[code]
                if name is None and request.permits.sees(Op.DESCRIBE, Resource.TOPIC, asked):
                    answer["name"] = asked
        if times > 1:
            queue, code = None, Code.INVALID_REQUEST
            what = "id" if name is None else "name"
            answer["error_message"] = f"Duplicate topic {what}."
        answer["error_code"] = code
        if queue is not None:
            answer |= {"name": queue.name, "topic_id": UUID(bytes=bytes(queue.queue_id))}
            with Refusing(answer):
                count(mutations, queue.partitions)
                doomed.append((answer, queue))
        answers.append(answer)
    request.throttle(mutations.wait_s)
    await _drop(worker, request, doomed)
    return {"responses": answers}


async def _drop(
    worker: TopicNeeds, request: Request, doomed: list[tuple[dict[str, Any], Queue]]
) -> None:
    """Delete queues, and note in the answer of each what became of it."""
    under_way: deque[Asked] = deque()
    for some in slices(doomed, _DELETED_AT_ONCE):
        lot = []
        for answer, queue in some:
            deletion = DeleteQueue(queue.queue_id).envelope()
            lot.append((answer, worker.routes.submit(queue.name, deletion)))
        under_way.append(lot)
        await request.budget.step()
        if len(under_way) == _LOTS_UNDER_WAY:
            await settle(under_way.popleft(), request.budget, _moved)
    for lot in under_way:
        await settle(lot, request.budget, _moved)


def _named(worker: TopicNeeds, named: Iterable[tuple[str | None, UUID]]) -> Iterator[str | None]:
    """Give the names of queues; None of one that is not known by its id."""
    for name, topic_id in named:
        queue = None if name else worker.catalogue.find_id(QueueId(topic_id.bytes))
        yield queue.name if queue is not None else name


def _moved(code: Code) -> Code:
    """Translate the code of a moving shard: Kafka's clients ask again as of its controller."""
    return Code.NOT_CONTROLLER if code == Code.NOT_LEADER_OR_FOLLOWER else code


def _may_delete(request: Request, name: str, there: bool) -> bool:
    """Return whether the client may delete a queue, or learn that it is not there.

    A client that may delete on the cluster may delete any.
    """
    permits = request.permits
    if permits.sees(Op.DELETE, Resource.CLUSTER, CLUSTER_NAME):
        return True
    return permits.topic(Op.DELETE if there else Op.DESCRIBE, name)


def _wanted(worker: TopicNeeds, name: str | None, topic_id: UUID) -> tuple[Queue | None, Code]:
    if topic_id != ZERO_UUID:
        if name is not None:
            return None, Code.INVALID_REQUEST
        queue = worker.catalogue.find_id(QueueId(topic_id.bytes))
        return queue, Code.NONE if queue else Code.UNKNOWN_TOPIC_ID
    if name is None:
        return None, Code.INVALID_REQUEST
    queue = worker.catalogue.find(name)
    return queue, Code.NONE if queue else Code.UNKNOWN_TOPIC_OR_PARTITION


async def create_partitions(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a CreatePartitionsResponse."""
    body, step = request.body, request.budget.step
    named = await request.budget.count(topic.name for topic in body.topics)
    last = {}
    for topic in body.topics:
        last[topic.name] = topic
        await request.budget.step()
    results = []
    growing: Asked = []
    added = 0
    await hear_of(worker, last, request.budget)
    mutations = worker.mutations(request, strict_from=EXCESS_TOLD_FROM[ApiKey.CREATE_PARTITIONS])
    for topic in last.values():
        await step(_TOPIC_BYTES)
        result: dict[str, Any] = {"name": topic.name, "error_code": Code.NONE}
        results.append(result)
        with Refusing(result):
            _refuse_repeated(topic.name, named)
            if not request.permits.topic(Op.ALTER, topic.name):
                raise denied(Code.TOPIC_AUTHORIZATION_FAILED)
            queue = _growable(worker, topic)
            added += topic.count - queue.partitions
            if added > _PARTITIONS_AT_ONCE:
                raise KafkaError(Code.POLICY_VIOLATION, _TOO_MANY)
            count(mutations, topic.count - queue.partitions)
            if not body.validate_only:
                grow = GrowQueue(queue.queue_id, topic.count).envelope()
                growing.append((result, worker.routes.submit(queue.name, grow)))
    request.throttle(mutations.wait_s)
    await settle(growing, request.budget, _moved)
    return {"results": results}


def _growable(worker: TopicNeeds, topic: Any) -> Queue:
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
    fault = partitions_conflict(queue.configs, topic.count)
    if fault:
        raise KafkaError(Code.INVALID_PARTITIONS, fault)
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
