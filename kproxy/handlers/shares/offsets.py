"""DescribeShareGroupOffsets (90), AlterShareGroupOffsets (91), DeleteShareGroupOffsets (92).

The rules are in `groups.requests.share_offsets`. The queues' shards say where share partitions
stand.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.requests import share_offsets
from kproxy.groups.requests.share_offsets import NewStart
from kproxy.handlers.common.group_coordinators import check_share_level, coordinator_of
from kproxy.handlers.common.needs import ShareNeeds
from kproxy.handlers.common.permitted import forbidden, need_group
from kproxy.handlers.common.refusals import NO_ERROR, error_fields, said
from kproxy.loop.pace import Pace, slices
from kproxy.protocol.codec import ZERO_UUID
from kproxy.security.acls import Op, Resource
from kproxy.shard.appends import outcomes_of
from kproxy.virtual.commands.shares import SET_MAX, LookAtShares
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import PartitionKey
from kproxy.worker.request import Request

_PART_BYTES = 600  # bytes of an answer: about what a partition takes until it is encoded
_AT_ONCE = 200  # groups that are asked about at once: each waits for its shards' logs
_NOT_HOSTED = "This server does not host this topic-partition."
_NOTHING_TO_DELETE = "There is no offset information to delete."
_UNKNOWN_ERROR = "The server experienced an unexpected error when processing the request."
_INVALID_GROUP = "The group id is invalid."
_UNKNOWN_STAND = {"start_offset": -1, "leader_epoch": 0, "lag": -1}

Slots = dict[PartitionKey, tuple[Queue, dict[str, Any]]]
"""Parts of an answer that wait for what a shard says of them."""


# -- describing


async def describe(worker: ShareNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeShareGroupOffsetsResponse: starts and lags of share partitions."""
    groups = []
    looks: list[tuple[str, Slots]] = []
    for asked in request.body.groups:
        answer: dict[str, Any] = {"group_id": asked.group_id, "topics": [], **NO_ERROR}
        try:
            check_share_level(worker)
            need_group(request, Op.DESCRIBE, asked.group_id)
            if not asked.group_id and asked.topics is not None:
                raise KafkaError(Code.UNKNOWN_SERVER_ERROR, _UNKNOWN_ERROR)
            if asked.group_id:
                coordinator_of(worker, asked.group_id)
                answer["topics"], slots = await _stands(worker, request, asked)
                looks.append((asked.group_id, slots))
        except KafkaError as error:
            answer |= error_fields(error)
        groups.append(answer)
        if len(looks) == _AT_ONCE:
            await look(worker, looks, request.budget)
            looks.clear()
        await request.budget.step(_PART_BYTES)
    await look(worker, looks, request.budget)
    return {"groups": groups}


async def _stands(
    worker: ShareNeeds, request: Request, asked: Any
) -> tuple[list[dict[str, Any]], Slots]:
    """Return the part of an answer for a group, and what of it the shards have yet to say."""
    if asked.topics is not None:
        await worker.routes.wait_for_catalogue(topic.topic_name for topic in asked.topics)
        named = [(topic.topic_name, topic.partitions) for topic in asked.topics]
    else:
        named = await _all(worker, request, asked.group_id)
    slots: Slots = {}
    topics = []
    for name, indices in named:
        queue = worker.catalogue.find(name)
        if not request.permits.sees(Op.DESCRIBE, Resource.TOPIC, name):
            if asked.topics is not None:
                topics.append(await _forbidden(request, name, indices, _UNKNOWN_STAND))
            await request.budget.step(_PART_BYTES)
            continue
        parts: list[dict[str, Any]] = []
        for index in indices:
            part: dict[str, Any] = {"partition_index": index, **_UNKNOWN_STAND, **NO_ERROR}
            if queue is not None and 0 <= index < queue.partitions:
                slots[queue.queue_id, index] = queue, part
            elif queue is not None:
                part |= said(Code.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
            parts.append(part)
            await request.budget.step(_PART_BYTES)
        topics.append({"topic_name": name, "topic_id": _id_of(queue), "partitions": parts})
        await request.budget.step(_PART_BYTES)
    return topics, slots


async def _forbidden(
    request: Request, name: str, indices: Iterable[int], more: Mapping[str, int]
) -> dict[str, Any]:
    """Return the part of an answer for a topic that the client may not do this to."""
    fault = said(Code.TOPIC_AUTHORIZATION_FAILED)
    parts = []
    for index in indices:
        parts.append({"partition_index": index, **more, **fault})
        await request.budget.step(_PART_BYTES)
    return {"topic_name": name, "topic_id": ZERO_UUID, "partitions": parts}


def _id_of(queue: Queue | None) -> UUID:
    return ZERO_UUID if queue is None else UUID(bytes=bytes(queue.queue_id))


async def _all(worker: ShareNeeds, request: Request, group_id: str) -> list[tuple[str, range]]:
    """Return all queues that a group has share partitions of, with their partitions."""
    coordinator = coordinator_of(worker, group_id)
    found: list[tuple[str, range]] = []
    async for queue_id, partitions in coordinator.removal.all_initialised(group_id):
        queue = worker.catalogue.find_id(queue_id)
        if queue is not None:
            found.append((queue.name, range(min(partitions, queue.partitions))))
        await request.budget.step(_PART_BYTES)
    return sorted(found, key=lambda one: one[0])


async def look(worker: ShareNeeds, looks: Iterable[tuple[str, Slots]], pace: Pace) -> None:
    """Note in parts of an answer what the shards say of them, all groups at once."""
    shards = worker.routes.shards
    lots: list[tuple[Slots, list[PartitionKey]]] = []
    tickets = []
    for group_id, slots in looks:
        by_shard: dict[int, list[PartitionKey]] = {}
        for key, (queue, _) in slots.items():
            index = shard_of(queue.name, shards, key[1]) if shards > 1 else 0
            by_shard.setdefault(index, []).append(key)
            await pace.step()
        for index, keys in by_shard.items():
            for some in slices(keys, SET_MAX):
                lots.append((slots, some))
                tickets.append(worker.routes.ask(index, LookAtShares(group_id, some).envelope()))
                await pace.step()
    for (slots, keys), outcome in zip(lots, await outcomes_of(tickets), strict=True):
        for at, key in enumerate(keys):
            part = slots[key][1]
            if outcome.code:
                part |= {"error_code": outcome.code, "error_message": outcome.message}
            else:
                part["start_offset"], part["lag"] = outcome.numbers[2 * at : 2 * at + 2]
        await pace.step()


# -- changing


async def alter(worker: ShareNeeds, request: Request) -> Mapping[str, Any]:
    """Return an AlterShareGroupOffsetsResponse; answered when it is durable."""
    body = request.body
    starts: list[NewStart] = []
    topics = []
    try:
        check_share_level(worker)
        need_group(request, Op.READ, body.group_id)
        if not body.group_id:
            raise KafkaError(Code.INVALID_GROUP_ID, _INVALID_GROUP)
        coordinator = coordinator_of(worker, body.group_id)
        await worker.routes.wait_for_catalogue(topic.topic_name for topic in body.topics)
        for topic in body.topics:
            queue = worker.catalogue.find(topic.topic_name)
            if not request.permits.topic(Op.READ, topic.topic_name):
                indices = (asked.partition_index for asked in topic.partitions)
                topics.append(await _forbidden(request, topic.topic_name, indices, {}))
                await request.budget.step(_PART_BYTES)
                continue
            parts = []
            for asked in topic.partitions:
                index = asked.partition_index
                part = {"partition_index": index, **NO_ERROR}
                if queue is None or not 0 <= index < queue.partitions:
                    part |= said(Code.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
                else:
                    starts.append(NewStart(queue, index, asked.start_offset))
                parts.append(part)
                await request.budget.step(_PART_BYTES)
            label = {"topic_name": topic.topic_name, "topic_id": _id_of(queue)}
            topics.append(label | {"partitions": parts})
            await request.budget.step(_PART_BYTES)
        await share_offsets.reset(coordinator, body.group_id, starts)
    except KafkaError as error:
        return error_fields(error) | {"responses": ()}
    return {**NO_ERROR, "responses": topics}


async def delete(worker: ShareNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DeleteShareGroupOffsetsResponse; answered when it is durable."""
    body = request.body
    topics = []
    try:
        check_share_level(worker)
        need_group(request, Op.DELETE, body.group_id)
        barred = await forbidden(request, Op.READ, (one.topic_name for one in body.topics))
        if not body.group_id:
            raise KafkaError(Code.INVALID_GROUP_ID, _INVALID_GROUP)
        coordinator = coordinator_of(worker, body.group_id)
        await worker.routes.wait_for_catalogue(topic.topic_name for topic in body.topics)
        named = []
        for topic in body.topics:
            if topic.topic_name in barred:
                continue
            named.append((topic.topic_name, worker.catalogue.find(topic.topic_name)))
            if request.budget.due:
                await request.budget.rest()
        queues = [queue for _, queue in named if queue is not None]
        dropped = await share_offsets.forget(coordinator, body.group_id, queues)
    except KafkaError as error:
        return error_fields(error) | {"responses": ()}
    for name in sorted(barred):
        fault = said(Code.TOPIC_AUTHORIZATION_FAILED)
        topics.append({"topic_name": name, "topic_id": ZERO_UUID, **fault})
    for name, queue in named:
        answer = {"topic_name": name, "topic_id": _id_of(queue), **NO_ERROR}
        if queue is None or queue.queue_id not in dropped:
            message = _NOT_HOSTED if queue is None else _NOTHING_TO_DELETE
            fault = said(Code.UNKNOWN_TOPIC_OR_PARTITION, message)
            answer |= {"topic_id": ZERO_UUID, **fault}
        topics.append(answer)
        await request.budget.step(_PART_BYTES)
    return {**NO_ERROR, "responses": topics}
