"""Metadata (key 3, versions 0 to 13) and DescribeCluster (key 60, versions 0 to 2)."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any
from uuid import UUID

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import TopicNeeds
from kproxy.handlers.common.permitted import cluster_operations, forbidden, topic_operations
from kproxy.log.base import Ticket
from kproxy.metadata.catalogue import absent
from kproxy.protocol.responses import UNKNOWN_OPERATIONS, metadata_body, metadata_topic
from kproxy.security.acls import Op, Resource
from kproxy.virtual.commands.envelope import NO_QUEUE
from kproxy.virtual.partitioner import name_fault
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId
from kproxy.worker.request import Request

# Everything, as Kafka answers without an authorizer: a bit for each AclOperation that applies.
TOPIC_OPERATIONS = 0b1101_1111_1000
_BROKERS = 1
_QUEUES_AT_ONCE = 100
_CREATED_AT_ONCE = 1000  # behind them others' requests go in line


async def handle(worker: TopicNeeds, request: Request) -> bytes:
    """Return a MetadataResponse body. New queues are answered only when they can be written to."""
    body, version = request.body, request.version
    asked = getattr(body, "include_topic_authorized_operations", False)
    operations = TOPIC_OPERATIONS if asked else UNKNOWN_OPERATIONS
    topics = body.topics
    if topics is None or (version == 0 and not topics):
        encoded, topic_count = await _all(worker, request, operations)
    else:
        encoded = await _some(worker, request, topics, operations)
        topic_count = len(encoded)
    cluster = worker.cluster.seen_by(request.peer.listener)
    return metadata_body(
        version,
        cluster.brokers,
        cluster.cluster_id,
        cluster.controller_id,
        encoded,
        topic_count,
        cluster_operations(request),
    )


def _topic(worker: TopicNeeds, request: Request, queue: Queue, operations: int) -> bytes:
    leaders = worker.cluster.leaders(queue.name, queue.partitions)
    if operations != UNKNOWN_OPERATIONS and not request.permits.all:
        operations = topic_operations(request, queue.name)
    return metadata_topic(
        request.version, Code.NONE, queue.name, queue.queue_id, leaders, operations
    )


async def _all(worker: TopicNeeds, request: Request, operations: int) -> tuple[list[bytes], int]:
    """Return every queue, in pieces of many, and how many."""
    pieces, topic_count = [], 0
    queues, step = worker.catalogue.all(), request.budget.step
    sees_all, sees = request.permits.all, request.permits.sees
    while some := list(islice(queues, _QUEUES_AT_ONCE)):
        piece = []
        for queue in some:
            if not sees_all and not sees(Op.DESCRIBE, Resource.TOPIC, queue.name):
                await step()
                continue
            piece.append(_topic(worker, request, queue, operations))
            await step(len(piece[-1]))
        pieces.append(b"".join(piece))
        topic_count += len(piece)
    return pieces, topic_count


async def _some(worker: TopicNeeds, request: Request, topics: Any, operations: int) -> list[bytes]:
    """Return the named topics, each once."""
    version, step = request.version, request.budget.step
    asked = await request.budget.count(
        (topic.name, getattr(topic, "topic_id", None)) for topic in topics
    )
    names = [name for name, _ in asked if name is not None]
    denied = await forbidden(request, Op.DESCRIBE, names)
    if worker.config.auto_create and (version < 4 or request.body.allow_auto_topic_creation):
        if not request.permits.all:
            names = await _makeable(worker, request, names, denied)
        await _create_missing(worker, request, names)
    encoded = []
    for name, topic_id in asked:
        encoded.append(_one(worker, request, name, topic_id, operations, denied))
        await step(len(encoded[-1]))
    return encoded


async def _makeable(
    worker: TopicNeeds, request: Request, names: list[str], denied: set[str]
) -> list[str]:
    """Return the topics that are there or may be made; add the others to `denied`."""
    find, may_create, kept = worker.catalogue.find, request.permits.may_create, []
    for name in names:
        if name not in denied:
            if find(name) is not None or may_create(name):
                kept.append(name)
            else:
                denied.add(name)
        await request.budget.step()
    return kept


async def _create_missing(worker: TopicNeeds, request: Request, names: list[str]) -> None:
    """Make those that are not there. One that a quota refuses is missing, and not waited for."""
    waiting: dict[str, Ticket] = {}
    mutations, partitions = worker.mutations(request), worker.config.partitions_default
    for number, name in enumerate(names, 1):
        if worker.catalogue.find(name) is None and not name_fault(name):
            if mutations.take(partitions):
                waiting[name] = worker.create_unasked(name)[1]
        await request.budget.step()
        if len(waiting) == _CREATED_AT_ONCE or (waiting and number == len(names)):
            for ticket in waiting.values():
                with suppress(KafkaError):  # it is not there: answered as missing
                    await ticket.wait()
            waiting.clear()


def _one(
    worker: TopicNeeds, request: Request, name: str | None, topic_id: UUID | None,
    operations: int, denied: set[str],
) -> bytes:  # fmt: skip
    version = request.version
    if name is None or (topic_id is not None and any(topic_id.bytes)):
        queue_id = QueueId(topic_id.bytes if topic_id else NO_QUEUE)
        queue = worker.catalogue.find_id(queue_id)
        if queue is None:
            return metadata_topic(version, Code.UNKNOWN_TOPIC_ID, None, queue_id, ())
        if not request.permits.topic(Op.DESCRIBE, queue.name):  # Kafka says so much: see SECURITY
            return metadata_topic(version, Code.TOPIC_AUTHORIZATION_FAILED, None, queue_id, ())
        return _topic(worker, request, queue, operations)
    if name in denied:
        return metadata_topic(version, Code.TOPIC_AUTHORIZATION_FAILED, name, NO_QUEUE, ())
    queue = worker.catalogue.find(name)
    if queue is not None:
        return _topic(worker, request, queue, operations)
    if operations != UNKNOWN_OPERATIONS:  # as Kafka tells them of what is not there
        operations = topic_operations(request, name)
    return metadata_topic(version, absent(name)[0], name, NO_QUEUE, (), operations)


async def describe_cluster(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeClusterResponse (KIP-700)."""
    body = request.body
    cluster = worker.cluster.seen_by(request.peer.listener)
    endpoint_type = getattr(body, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        return {
            "error_code": Code.UNSUPPORTED_ENDPOINT_TYPE
            if endpoint_type not in (1, 2)
            else Code.MISMATCHED_ENDPOINT_TYPE,
            "error_message": "this listener serves brokers",
            "endpoint_type": _BROKERS,
            "cluster_id": "",
            "controller_id": -1,
            "brokers": (),
        }
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {
                "broker_id": node.node_id,
                "host": node.host,
                "port": node.port,
                "rack": None,
                "is_fenced": False,
            }
            for node in cluster.brokers
        ],
        "cluster_authorized_operations": cluster_operations(request),
    }
