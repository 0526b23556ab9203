"""DescribeTopicPartitions (75): queues by name, a page at a time (KIP-966)."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from kproxy.errors import Code
from kproxy.handlers.metadata import TOPIC_OPERATIONS
from kproxy.metadata.catalogue import absent
from kproxy.protocol.answers import UNKNOWN_OPERATIONS
from kproxy.protocol.codec import ZERO_UUID
from kproxy.virtual.rows import Queue
from kproxy.worker import Request, Worker

_PAGE_MAX = 2000  # Kafka's max.request.partition.size.limit


async def handle(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A DescribeTopicPartitionsResponse, with a cursor where there is more."""
    body = request.body
    left = max(1, min(body.response_partition_limit, _PAGE_MAX))
    first_name = "" if body.cursor is None else body.cursor.topic_name
    first_index = 0 if body.cursor is None else max(0, body.cursor.partition_index)
    named = [topic.name for topic in body.topics]
    if body.cursor is not None and named and first_name not in named:
        code = Code.INVALID_REQUEST
        refused = [_topic(name, ZERO_UUID, code, (), UNKNOWN_OPERATIONS) for name in named]
        return _page(refused, None)
    topics: list[dict[str, Any]] = []
    for name, queue in _asked(worker, named, first_name):
        start = first_index if name == first_name else 0
        if left == 0:
            return _page(topics, (name, start))
        if queue is None:
            topics.append(_topic(name, ZERO_UUID, absent(name)[0], ()))
            continue
        end = min(queue.partitions, start + left)
        leaders = worker.cluster.leaders(name, queue.partitions)
        parts = [_partition(index, leaders[index]) for index in range(start, end)]
        topics.append(_topic(name, UUID(bytes=bytes(queue.queue_id)), Code.NONE, parts))
        left -= len(parts)
        if end < queue.partitions:
            return _page(topics, (name, end))
    return _page(topics, None)


def _asked(worker: Worker, named: list[str], first: str) -> Iterator[tuple[str, Queue | None]]:
    """Queues by name from the first on: those named, or all."""
    if named:
        for name in sorted(set(named)):
            if name >= first:
                yield name, worker.catalogue.find(name)
    else:
        for queue in worker.catalogue.all(first):
            if queue.partitions:
                yield queue.name, queue


def _page(topics: list[dict[str, Any]], more: tuple[str, int] | None) -> dict[str, Any]:
    cursor = None
    if more is not None:
        cursor = {"topic_name": more[0], "partition_index": more[1]}
    return {"topics": topics, "next_cursor": cursor}


def _topic(
    name: str, topic_id: UUID, code: Code, parts: Any, operations: int = TOPIC_OPERATIONS
) -> dict[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": parts,
        "topic_authorized_operations": operations,
    }


def _partition(index: int, leader: int) -> dict[str, Any]:
    return {
        "error_code": Code.NONE if leader >= 0 else Code.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": 0,
        "replica_nodes": (leader,) if leader >= 0 else (),
        "isr_nodes": (leader,) if leader >= 0 else (),
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": (),
    }
