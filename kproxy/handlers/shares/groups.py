"""ShareGroupHeartbeat (76), ShareGroupDescribe (77).

The rules are in `groups.requests.share_heartbeat`.
"""

from collections.abc import Mapping
from typing import Any

from kproxy.groups.assigning.simple_assignor import SIMPLE
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.requests.assigned_heartbeat import LEAVE_EPOCH, HeartbeatRequest, HeartbeatResult
from kproxy.groups.requests.share_heartbeat import check
from kproxy.groups.requests.share_heartbeat import heartbeat as beat
from kproxy.handlers.common import assigned_groups
from kproxy.handlers.common.assigned_groups import heartbeat_answer
from kproxy.handlers.common.group_coordinators import check_share_level, coordinator_of
from kproxy.handlers.common.needs import ShareNeeds
from kproxy.handlers.common.permitted import need_group, need_topics
from kproxy.security.acls import Op
from kproxy.worker.request import Request


async def heartbeat(worker: ShareNeeds, request: Request) -> Mapping[str, Any]:
    """Return a ShareGroupHeartbeatResponse; with an assignment if that has changed."""
    return await heartbeat_answer(_beat(worker, request))


async def _beat(worker: ShareNeeds, request: Request) -> tuple[HeartbeatResult, int]:
    body = request.body
    check_share_level(worker)
    need_group(request, Op.READ, body.group_id)
    await need_topics(request, Op.DESCRIBE, body.subscribed_topic_names or ())
    asked = HeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        rack=body.rack_id,
        topics=body.subscribed_topic_names,
        client_id=request.header.client_id or "",
        host=request.host,
    )
    check(asked)
    result = await beat(coordinator_of(worker, asked.group_id), asked)
    if result.member_epoch == LEAVE_EPOCH:
        return result, 0
    return result, worker.group_settings(asked.group_id).share_heartbeat_interval_ms


async def describe(worker: ShareNeeds, request: Request) -> Mapping[str, Any]:
    """Return a ShareGroupDescribeResponse."""
    return await assigned_groups.describe(worker, request, ShareGroup.kind, SIMPLE)
