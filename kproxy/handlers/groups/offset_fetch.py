"""OffsetFetch (9), versions 1 to 10."""

from collections.abc import Iterator
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.common.memory_budget import ResponseBudget
from kproxy.groups.model.revoking_group import RevokingGroup
from kproxy.handlers.common.committing import queue_of
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.hearing import hear_of
from kproxy.handlers.common.needs import GroupNeeds
from kproxy.handlers.common.permitted import need_group
from kproxy.loop.pace import Row, scanned
from kproxy.protocol.responses import (
    FETCHED_OFFSET_BY_ID,
    FetchedOffset,
    GroupOffsets,
    TopicOffsets,
    offset_fetch_body,
)
from kproxy.security.acls import Op, Resource
from kproxy.security.permits import Permits
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.types import QueueId
from kproxy.worker.request import Request

_GROUPS_SINCE, _GROUP_FAULT_SINCE = 8, 2
_PART_BYTES = 300  # about what a partition takes until it is encoded


async def handle(worker: GroupNeeds, request: Request) -> bytes:
    """Return an OffsetFetchResponse body; all of a group's offsets if no topics are named."""
    body, version, budget = request.body, request.version, request.budget
    by_id = version >= FETCHED_OFFSET_BY_ID
    asked = body.groups if version >= _GROUPS_SINCE else (body,)
    stable: bool = getattr(body, "require_stable", False)
    groups = [await _fetched(worker, request, group, by_id, stable) for group in asked]
    if version < _GROUP_FAULT_SINCE and groups[0].code:
        groups[0] = groups[0]._replace(topics=_faulty(body, Code(groups[0].code)))
    encoded = await worker.encoded(budget, offset_fetch_body, version, groups)
    if budget.large:
        await budget.let_go(groups)
    return encoded


def _faulty(body: Any, code: Code) -> list[TopicOffsets]:
    """Return the group's fault in each partition, as the first version says it."""
    return [
        (topic.name, [_offset(index, None, code) for index in topic.partition_indexes])
        for topic in body.topics
    ]


async def _fetched(
    worker: GroupNeeds, request: Request, group: Any, by_id: bool, stable: bool
) -> GroupOffsets:
    budget, permits = request.budget, request.permits
    await budget.step(_PART_BYTES)
    group_id, topics = group.group_id, list[TopicOffsets]()
    try:
        need_group(request, Op.DESCRIBE, group_id)
        fault = await _reader_fault(worker, group)
        if not fault and group.topics is None:
            topics = await _all_committed(worker, budget, group_id, by_id, stable, permits)
        elif not fault:
            if not by_id:
                # One that was deleted and made again has nothing of the old one.
                await hear_of(worker, (topic.name for topic in group.topics), budget)
            topics = await _committed(worker, budget, group, by_id, stable, permits)
    except KafkaError as error:  # another worker has it, now perhaps
        return GroupOffsets(group_id, error.code, [])
    return GroupOffsets(group_id, fault, topics)


async def _reader_fault(worker: GroupNeeds, asked: Any) -> Code:
    """Return why a group's member may not read at its epoch (KIP-848). Raise KafkaError."""
    coordinator = coordinator_of(worker, asked.group_id, named=False)
    member_id, epoch = getattr(asked, "member_id", None), getattr(asked, "member_epoch", -1)
    if member_id is None and epoch < 0:
        return Code.NONE
    group = await coordinator.load(asked.group_id)
    if not isinstance(group, RevokingGroup):
        head = coordinator.head(asked.group_id)
        emptied = group is None and head is not None and head.kind in ("consumer", "streams")
        return Code.UNKNOWN_MEMBER_ID if emptied else Code.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return Code.UNKNOWN_MEMBER_ID
    return Code.NONE if epoch == member.epoch else Code.STALE_MEMBER_EPOCH


async def _committed(
    worker: GroupNeeds,
    budget: ResponseBudget,
    group: Any,
    by_id: bool,
    stable: bool,
    permits: Permits,
) -> list[TopicOffsets]:
    group_id: str = group.group_id
    answer: list[TopicOffsets] = []
    for topic in group.topics:
        await budget.step(_PART_BYTES)
        queue = queue_of(worker, topic, by_id)
        code = Code.UNKNOWN_TOPIC_ID if by_id and queue is None else Code.NONE
        name = topic.name if not by_id else (queue.name if queue is not None else None)
        if name is not None and not permits.topic(Op.DESCRIBE, name):
            queue, code = None, Code.TOPIC_AUTHORIZATION_FAILED
        parts: list[FetchedOffset] = []
        for index in topic.partition_indexes:
            row, part_code = None, code
            if queue is not None and 0 <= index < queue.partitions:
                state, key = worker.coordinated(group_id).state, (queue.queue_id, index)
                if stable and state.any_pending(group_id, key):
                    part_code = Code.UNSTABLE_OFFSET_COMMIT
                else:
                    row = state.committed(group_id, key)
            parts.append(part := _offset(index, row, part_code))
            if budget.add(_PART_BYTES + len(part.metadata)):
                await budget.step()
        label = (bytes(16) if topic.topic_id is None else topic.topic_id.bytes) if by_id else None
        answer.append((topic.name if label is None else label, parts))
    return answer


def _offset(index: int, row: offset_rows.Committed | None, code: Code = Code.NONE) -> FetchedOffset:
    if row is None:
        return FetchedOffset(index, code)
    return FetchedOffset(index, code, row.offset, row.leader_epoch, row.metadata)


async def _all_committed(
    worker: GroupNeeds,
    budget: ResponseBudget,
    group: str,
    by_id: bool,
    stable: bool,
    permits: Permits,
) -> list[TopicOffsets]:
    by_queue: dict[QueueId, list[FetchedOffset]] = {}

    def scan(start: bytes, end: bytes) -> Iterator[Row]:
        return worker.coordinated(group).state.kv.scan(start, end)

    async for found in scanned(scan, *offset_rows.offset_range(group)):
        for key, value in found:
            partition = queue_id, index = offset_rows.partition_of_offset(key)
            if stable and worker.coordinated(group).state.any_pending(group, partition):
                part = _offset(index, None, Code.UNSTABLE_OFFSET_COMMIT)
            else:
                part = _offset(index, offset_rows.decode_committed(value))
            by_queue.setdefault(queue_id, []).append(part)
            if budget.add(_PART_BYTES + len(part.metadata)):
                await budget.step()
    answer: list[TopicOffsets] = []
    for queue_id, parts in by_queue.items():
        queue = worker.catalogue.find_id(queue_id)
        if queue is None:
            continue  # offsets of a deleted queue are invisible until they are swept
        if permits.all or permits.sees(Op.DESCRIBE, Resource.TOPIC, queue.name):
            answer.append((bytes(queue_id) if by_id else queue.name, parts))
        if budget.due:
            await budget.rest()
    return answer
