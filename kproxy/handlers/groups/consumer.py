"""ConsumerGroupHeartbeat (68). The rules are in `groups.requests.heartbeat`."""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.assigning.regex import Pattern, compiled
from kproxy.groups.requests.heartbeat import HeartbeatRequest, check
from kproxy.groups.requests.heartbeat import heartbeat as beat
from kproxy.handlers.common.assignments import topic_partitions
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.needs import GroupServices
from kproxy.handlers.common.permitted import need_group, need_topics
from kproxy.loop.steps import EVERY, Steps, done, spent
from kproxy.security.acls import Op
from kproxy.security.permits import EVERYTHING
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.request import Request


async def heartbeat(worker: GroupServices, request: Request) -> Mapping[str, Any]:
    """Return a ConsumerGroupHeartbeatResponse; with an assignment if that has changed."""
    try:
        body = request.body
        need_group(request, Op.READ, body.group_id)
        await need_topics(request, Op.DESCRIBE, body.subscribed_topic_names or ())
        asked = await _decoded(request)
        check(asked)
        result = await beat(coordinator_of(worker, asked.group_id), asked)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "error_message": error.message,
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval": 0,
            "assignment": None,
        }
    assignment = None
    if result.assigned is not None:
        assignment = {"topic_partitions": await done(topic_partitions(result.assigned))}
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": worker.group_settings(asked.group_id).consumer_heartbeat_interval_ms,
        "assignment": assignment,
    }


async def _decoded(request: Request) -> HeartbeatRequest:
    body, given = request.body, request.body.topic_partitions
    return HeartbeatRequest(
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
