"""ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69).

The rules are in `groups.requests.heartbeat`.
"""

from collections.abc import Mapping
from typing import Any

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.assigning.regex import Pattern, compiled
from kproxy.groups.model.consumer_group import DEFAULT_ASSIGNOR, ConsumerGroup
from kproxy.groups.requests.assigned_heartbeat import HeartbeatResult
from kproxy.groups.requests.heartbeat import ConsumerHeartbeatRequest, check
from kproxy.groups.requests.heartbeat import heartbeat as beat
from kproxy.handlers.common import assigned_groups
from kproxy.handlers.common.assigned_groups import heartbeat_answer
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.needs import GroupNeeds
from kproxy.handlers.common.permitted import need_group, need_topics
from kproxy.loop.steps import EVERY, Steps, done, spent
from kproxy.security.acls import Op
from kproxy.security.permits import EVERYTHING
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.request import Request


async def heartbeat(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a ConsumerGroupHeartbeatResponse; with an assignment if that has changed."""
    return await heartbeat_answer(_beat(worker, request))


async def _beat(worker: GroupNeeds, request: Request) -> tuple[HeartbeatResult, int]:
    body = request.body
    need_group(request, Op.READ, body.group_id)
    await need_topics(request, Op.DESCRIBE, body.subscribed_topic_names or ())
    asked = await _decoded(request)
    check(asked)
    result = await beat(coordinator_of(worker, asked.group_id), asked)
    return result, worker.group_settings(asked.group_id).consumer_heartbeat_interval_ms


async def describe(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a ConsumerGroupDescribeResponse."""
    return await assigned_groups.describe(worker, request, ConsumerGroup.kind, DEFAULT_ASSIGNOR)


async def _decoded(request: Request) -> ConsumerHeartbeatRequest:
    body, given = request.body, request.body.topic_partitions
    return ConsumerHeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        instance=body.instance_id,
        rack=body.rack_id,
        rebalance_s=body.rebalance_timeout.total_seconds(),
        topics=body.subscribed_topic_names,
        regex=_pattern(request, getattr(body, "subscribed_topic_regex", None)),
        assignor=body.server_assignor,
        owned=None if given is None else await done(_owned(given)),
        names_owned=bool(given),
        client_id=request.header.client_id or "",
        host=request.host,
        member_id_required=request.version > 0,
    )


def _pattern(request: Request, regex: str | None) -> str | None:
    """Return what a group keeps of a regular expression. Raise KafkaError."""
    if not regex:
        return regex
    compiled(regex)
    peer = request.peer
    if request.permits is EVERYTHING:
        return regex
    return Pattern(regex, peer.principal, peer.host).text()


def _owned(given: Any) -> Steps[PartitionSet]:
    found: list[PartitionKey] = []
    for number, topic in enumerate(given, 1):
        if topic.topic_id is not None:
            queue_id = QueueId(topic.topic_id.bytes)
            found += [(queue_id, index) for index in topic.partitions]
            yield from spent(len(topic.partitions))
        if number % EVERY == 0:
            yield
    return frozenset(found)
