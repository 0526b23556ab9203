"""ListOffsets (2), versions 1 to 11, and OffsetForLeaderEpoch (23), versions 2 to 4.

A look-up by time finds the batch through the index, and reads the records of that batch only.
There is no tiered storage: timestamps -5 and -6 are answered as Kafka does without it.
"""

from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.fetching.streamed_response import LEADER_EPOCH
from kproxy.handlers.common.by_time import Search
from kproxy.handlers.common.needs import FetchNeeds
from kproxy.protocol.responses import Listed, list_offsets_body
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.shard.shard import Shard
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.types import PartitionKey
from kproxy.worker.request import Request

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
_TIERED = (-5, -6)
_SINCE_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, -5: 9, -6: 11}
_PART_BYTES = 600  # bytes of an answer made of dicts, about
_READ_COMMITTED = 1
_LISTED_BYTES = 200


async def handle(worker: FetchNeeds, request: Request) -> bytes:
    """Return a ListOffsetsResponse body; a partition's error is in its part."""
    budget = request.budget
    asked: Counter[tuple[str, int]] = Counter()
    for topic in request.body.topics:
        if budget.due:
            await budget.rest()
        for part in topic.partitions:
            asked[topic.name, part.partition_index] += 1
            if budget.due:
                await budget.rest()
    topics = []
    for topic in request.body.topics:
        if budget.due:
            await budget.rest()
        parts = []
        denied = not request.permits.topic(Op.DESCRIBE, topic.name)
        for part in topic.partitions:
            times = asked.pop((topic.name, part.partition_index), 0)
            if denied:
                parts.append(Listed(part.partition_index, Code.TOPIC_AUTHORIZATION_FAILED))
            elif times > 1:  # as Kafka: none of them holds, and it is answered once
                parts.append(Listed(part.partition_index, Code.INVALID_REQUEST))
            elif times:
                found = _one(worker, request, topic.name, part)
                parts.append(found if isinstance(found, Listed) else await found)
            if budget.add(_LISTED_BYTES):
                await budget.step()
        if parts:
            topics.append((topic.name, parts))
    return await worker.encoded(request.budget, list_offsets_body, request.version, topics)


def _check_epoch(part: Any) -> None:
    if getattr(part, "current_leader_epoch", -1) > LEADER_EPOCH:
        raise KafkaError(Code.UNKNOWN_LEADER_EPOCH)


def _find(worker: FetchNeeds, name: str, index: int) -> tuple[Shard, PartitionKey, Partition]:
    """Return a partition here. Raise KafkaError if it is not here, or not at all."""
    _, key, shard = worker.partition(name, index)
    row = shard.state.partition(key)
    if row is None:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
    return shard, key, row


def _one(worker: FetchNeeds, request: Request, name: str, part: Any) -> Listed | Awaitable[Listed]:
    """Return the answer for a partition; one that takes a search is to be awaited."""
    index: int = part.partition_index
    try:
        shard, key, row = _find(worker, name, index)
        _check_epoch(part)
    except KafkaError as error:
        return Listed(index, error.code)
    wanted: int = part.timestamp
    if wanted < 0 and request.version < _SINCE_VERSION.get(wanted, request.version + 1):
        return Listed(index, Code.UNSUPPORTED_VERSION)
    committed = getattr(request.body, "isolation_level", 0) == _READ_COMMITTED
    end = row.last_stable if committed else row.next_offset
    if wanted == LATEST:
        offset = end
    elif wanted in (EARLIEST, EARLIEST_LOCAL):
        offset = row.log_start
    elif wanted in _TIERED:
        offset = -1
    else:
        return _searched(Search(worker, request.budget, shard, key, row, end), index, wanted)
    return _listed(index, -1, offset)


async def _searched(search: Search, index: int, wanted: int) -> Listed:
    try:
        if wanted == MAX_TIMESTAMP:
            return _listed(index, *await search.latest_time())
        return _listed(index, *await search.by_time(wanted))
    except KafkaError as error:
        return Listed(index, error.code)


def _listed(index: int, time_ms: int, offset: int) -> Listed:
    return Listed(index, Code.NONE, time_ms, offset, LEADER_EPOCH if offset >= 0 else -1)


async def for_leader_epoch(worker: FetchNeeds, request: Request) -> Mapping[str, Any]:
    """Return an OffsetForLeaderEpochResponse: one epoch, which ends at the queue's end."""
    every = request.permits.sees(Op.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
    topics = []
    for topic in request.body.topics:
        await request.budget.step(_PART_BYTES)
        parts = []
        denied = not every and not request.permits.topic(Op.DESCRIBE, topic.topic)
        for part in topic.partitions:
            await request.budget.step(_PART_BYTES)
            answer: dict[str, Any] = {"partition": part.partition}
            try:
                if denied:
                    raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
                _, _, row = _find(worker, topic.topic, part.partition)
                _check_epoch(part)
            except KafkaError as error:
                parts.append(answer | {"error_code": error.code})
                continue
            if part.leader_epoch != LEADER_EPOCH:
                answer |= {"error_code": Code.NONE}
            else:
                answer |= {
                    "error_code": Code.NONE,
                    "leader_epoch": LEADER_EPOCH,
                    "end_offset": row.next_offset,
                }
            parts.append(answer)
        topics.append({"topic": topic.topic, "partitions": parts})
    return {"topics": topics}
