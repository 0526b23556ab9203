"""ShareGroupHeartbeat (76), ShareGroupDescribe (77).

The rules are in `groups.requests.share_heartbeat`.
"""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.simple_assignor import SIMPLE
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.model.share_member import ShareMember
from kproxy.groups.requests.heartbeat import HeartbeatResult
from kproxy.groups.requests.share_heartbeat import LEAVE_EPOCH, ShareHeartbeatRequest, check
from kproxy.groups.requests.share_heartbeat import heartbeat as beat
from kproxy.handlers.common.assignments import named, topic_partitions
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.permitted import (
    HIDDEN,
    group_operations,
    hides_any,
    need_group,
    need_topics,
)
from kproxy.handlers.common.refusals import said
from kproxy.loop.steps import Steps, done
from kproxy.protocol.responses import UNKNOWN_OPERATIONS
from kproxy.security.acls import Op
from kproxy.virtual.levels import SHARES_FROM
from kproxy.worker.worker import Request, Worker

_GROUP_BYTES, _MEMBER_BYTES, _PART_BYTES = 900, 1500, 100  # about, until they are encoded


def check_level(worker: Worker) -> None:
    """Raise KafkaError below the level of share groups, as Kafka where they are off."""
    if not worker.level.reaches(SHARES_FROM):
        raise KafkaError(Code.UNSUPPORTED_VERSION)


async def heartbeat(worker: Worker, request: Request) -> Mapping[str, Any]:
    """Return a ShareGroupHeartbeatResponse; with an assignment if that has changed."""
    body = request.body
    asked = ShareHeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        rack=body.rack_id,
        topics=body.subscribed_topic_names,
        client_id=request.header.client_id or "",
        host=request.host,
    )
    try:
        check_level(worker)
        need_group(request, Op.READ, body.group_id)
        await need_topics(request, Op.DESCRIBE, body.subscribed_topic_names or ())
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
    return await _answer(worker, asked.group_id, result)


async def _answer(worker: Worker, group_id: str, result: HeartbeatResult) -> dict[str, Any]:
    assignment = None
    if result.assigned is not None:
        assignment = {"topic_partitions": await done(topic_partitions(result.assigned))}
    settings = worker.groups.settings_of(group_id)
    leaves = result.member_epoch == LEAVE_EPOCH
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": 0 if leaves else settings.share_heartbeat_interval_ms,
        "assignment": assignment,
    }


async def describe(worker: Worker, request: Request) -> Mapping[str, Any]:
    """Return a ShareGroupDescribeResponse."""
    groups = []
    for group_id in request.body.group_ids:
        answer = await _described(worker, request, group_id)
        groups.append(answer)
        await request.budget.step(_GROUP_BYTES)
        members = []
        for member in answer["members"]:
            members.append(await done(_described_member(worker, member)))
            await request.budget.step(_MEMBER_BYTES + len(member.assigned) * _PART_BYTES)
        answer["members"] = members
        if await hides_any(request, members):
            answer |= said(Code.TOPIC_AUTHORIZATION_FAILED, HIDDEN) | {"members": ()}
    return {"groups": groups}


async def _described(worker: Worker, request: Request, group_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "error_code": Code.NONE,
        "error_message": None,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
        "authorized_operations": UNKNOWN_OPERATIONS,
    }
    try:
        need_group(request, Op.DESCRIBE, group_id)
        check_level(worker)
        coordinator = coordinator_of(worker, group_id)
    except KafkaError as error:
        return answer | {"error_code": error.code, "error_message": error.message}
    group, head = await coordinator.load(group_id), coordinator.head(group_id)
    if isinstance(group, ShareGroup):
        return answer | {
            "group_state": group.state,
            "authorized_operations": group_operations(request, group_id),
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "assignor_name": SIMPLE,
            "members": list(group.members.values()),
        }
    if group is None and head is not None and head.kind == "share":
        return answer | {
            "group_state": "Empty",
            "authorized_operations": group_operations(request, group_id),
            "group_epoch": head.values["epoch"],
            "assignment_epoch": head.values["target_epoch"],
            "assignor_name": SIMPLE,
        }
    what = "not found" if group is None and head is None else "is not a share group"
    return answer | {
        "error_code": Code.GROUP_ID_NOT_FOUND,
        "error_message": f"Group {group_id} {what}.",
    }


def _described_member(worker: Worker, member: ShareMember) -> Steps[dict[str, Any]]:
    epoch, assigned = member.epoch, member.assigned
    return {
        "member_id": member.id,
        "rack_id": member.rack,
        "member_epoch": epoch,
        "client_id": member.client_id,
        "client_host": member.host,
        "subscribed_topic_names": member.topics,
        "assignment": {"topic_partitions": (yield from named(worker, assigned))},
    }
