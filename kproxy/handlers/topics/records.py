"""DeleteRecords (21). Rules and codes follow Kafka's `ReplicaManager`."""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import TopicNeeds
from kproxy.metadata import queue_settings
from kproxy.security.acls import Op
from kproxy.shard.appends import Appends
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.records import Trim
from kproxy.worker.request import Request

_TOPIC_BYTES, _PART_BYTES = 600, 500  # about, until they are encoded


async def delete(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DeleteRecordsResponse: log starts moved by logged TRIMs; -1 means all there is."""
    step = request.budget.step
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.body.topics:
        await step(_TOPIC_BYTES)
        offsets = wanted.setdefault(topic.name, {})
        for part in topic.partitions:
            offsets[part.partition_index] = part.offset  # the last one of a partition, as in Kafka
            await step()
    topics = []
    trimmed: list[dict[str, Any]] = []
    trims = Appends()
    for name, offsets in wanted.items():
        await step()
        parts = []
        deletable = request.permits.topic(Op.DELETE, name)
        for index, offset in offsets.items():
            result: dict[str, Any] = {"partition_index": index, "low_watermark": -1}
            parts.append(result)
            try:
                if not deletable:
                    raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
                trims.add(*_trim(worker, name, index, offset))
                trimmed.append(result)
            except KafkaError as error:
                result["error_code"] = error.code
            await step(_PART_BYTES)
        topics.append({"name": name, "partitions": parts})
    trims.send()
    for result, outcome in zip(trimmed, await trims.outcomes(), strict=True):
        result |= {"error_code": outcome.code_by_name, "low_watermark": outcome.number}
        await step()
    return {"topics": topics}


def _trim(worker: TopicNeeds, name: str, index: int, offset: int) -> tuple[Shard, Envelope]:
    """Return a TRIM and its shard. Raise KafkaError."""
    queue = worker.catalogue.find(name)
    if queue is None or not 0 <= index < queue.partitions:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
    if offset < -1:
        raise KafkaError(Code.OFFSET_OUT_OF_RANGE)
    policies = queue_settings.effective("cleanup.policy", queue.configs)
    if "compact" in policies and "delete" not in policies:
        raise KafkaError(Code.POLICY_VIOLATION)
    trim = Trim(queue.queue_id, index, offset).envelope()
    return worker.shard(queue.name, index), trim
