"""The creation of queues that a client asks for, and of those that its streams group needs.

Rules, codes and messages follow Kafka's `ReplicationControlManager`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from anyio import move_on_after

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.configured_topology import MissingTopic
from kproxy.handlers.common.needs import TopicNeeds
from kproxy.handlers.common.route_checks import check_routes, signed
from kproxy.log.base import Ticket
from kproxy.metadata import queue_settings
from kproxy.security.quotas import Mutations
from kproxy.virtual.partitioner import name_fault
from kproxy.worker.request import Request

_PARTITIONS_AT_ONCE = 10_000  # by one heartbeat; the next one goes on
_CREATED_AT_ONCE = 500
_WAIT_S = 2.0  # a heartbeat waits for shards of other workers, at most
_TOPIC_BYTES = 600


def count(mutations: Mutations, partitions: int) -> None:
    """Count what the client makes, grows or drops. Raise KafkaError: it is too much."""
    if not mutations.take(partitions):
        raise KafkaError(Code.THROTTLING_QUOTA_EXCEEDED)


def exists(name: str) -> str:
    return f"Topic '{name}' already exists."


def checked(worker: TopicNeeds, request: Request, topic: Any) -> tuple[int, dict[str, str]]:
    """Return (partition count, configs) of a sound creation. Raise KafkaError."""
    fault = name_fault(topic.name)
    if fault:
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, fault)
    if worker.catalogue.exists(topic.name):
        raise KafkaError(Code.TOPIC_ALREADY_EXISTS, exists(topic.name))
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
    kept = queue_settings.check(queue_settings.given(topic.configs))
    queue_settings.check_together(kept, worker.level)
    worker.batch_limits.check(kept, kept)
    check_routes(worker, request.permits, topic.name, partitions, kept)
    return partitions, signed(worker, request, {}, kept)


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


class _Setting(NamedTuple):
    """A setting as a CreateTopics has it."""

    name: str
    value: str


class _Asked(NamedTuple):
    """A topic as a CreateTopics has it."""

    name: str
    num_partitions: int
    replication_factor: int
    configs: list[_Setting]
    assignments: tuple[()] = ()


async def create_internal(
    worker: TopicNeeds, request: Request, missing: Sequence[MissingTopic]
) -> dict[str, str]:
    """Create topics that a streams group needs; return what went wrong, by name.

    Many are created by several heartbeats.
    """
    faults: dict[str, str] = {}
    waiting: dict[str, Ticket] = {}
    mutations, partitions = worker.mutations(request), 0
    for one in missing[:_CREATED_AT_ONCE]:
        await request.budget.step(_TOPIC_BYTES)
        topic, name = one.topic, one.topic.name
        partitions += one.partitions
        if waiting and partitions > _PARTITIONS_AT_ONCE:
            break
        asked = _Asked(
            name, one.partitions, topic.replication_factor or -1,
            [_Setting(*config) for config in topic.configs],
        )  # fmt: skip
        try:
            parts, kept = checked(worker, request, asked)
            count(mutations, parts)
            waiting[name] = worker.catalogue.create(name, parts, kept)[1]
        except KafkaError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:  # another member has just made it
                faults[name] = error.message or error.code.name
    request.throttle(mutations.wait_s)
    with move_on_after(_WAIT_S):
        for name, ticket in waiting.items():
            try:
                outcome = (await ticket.wait())[0]
            except KafkaError as error:
                faults[name] = error.message or error.code.name
                continue
            if outcome.code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS):
                faults[name] = outcome.message or outcome.code.name
    return faults
