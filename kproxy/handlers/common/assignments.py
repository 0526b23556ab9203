"""Assignments of groups in answers: queues with the indices of partitions."""

from typing import Any
from uuid import UUID

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.consumer_group import steps_by_queue
from kproxy.handlers.common.needs import Queues
from kproxy.loop.steps import EVERY, Steps


def named(worker: Queues, parts: PartitionSet) -> Steps[list[dict[str, Any]]]:
    """Return partitions by queue, with id and name; queues that are gone are left out."""
    found: list[dict[str, Any]] = []
    in_queues = yield from steps_by_queue(parts)
    for number, (queue_id, indices) in enumerate(in_queues.items(), 1):
        queue = worker.catalogue.find_id(queue_id)
        if queue is not None:
            label = {"topic_id": UUID(bytes=bytes(queue_id)), "topic_name": queue.name}
            found.append(label | {"partitions": indices})
        if number % EVERY == 0:
            yield
    return found


def topic_partitions(parts: PartitionSet) -> Steps[list[dict[str, Any]]]:
    """Return partitions by queue, with its id."""
    found: list[dict[str, Any]] = []
    for queue_id, indices in (yield from steps_by_queue(parts)).items():
        found.append({"topic_id": UUID(bytes=bytes(queue_id)), "partitions": indices})
        if len(found) % EVERY == 0:
            yield
    return found
