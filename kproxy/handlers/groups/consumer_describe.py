"""ConsumerGroupDescribe (69): groups of the consumer protocol with their members."""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.regex import pattern_of
from kproxy.groups.model.consumer_group import DEFAULT_ASSIGNOR, ConsumerGroup
from kproxy.groups.model.consumer_member import ConsumerMember
from kproxy.handlers.common.assignments import named
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.needs import GroupServices
from kproxy.handlers.common.permitted import HIDDEN, group_operations, hides_any, need_group
from kproxy.handlers.common.refusals import said
from kproxy.loop.steps import Steps, done
from kproxy.protocol.responses import UNKNOWN_OPERATIONS
from kproxy.security.acls import Op
from kproxy.worker.request import Request

_GROUP_BYTES, _MEMBER_BYTES, _PART_BYTES = 900, 1500, 100  # about, until they are encoded


async def describe(worker: GroupServices, request: Request) -> Mapping[str, Any]:
    """Return a ConsumerGroupDescribeResponse."""
    groups = []
    for group_id in request.body.group_ids:
        answer = await _described(worker, request, group_id)
        groups.append(answer)
        await request.budget.step(_GROUP_BYTES)
        members = []
        for member in answer["members"]:
            members.append(await done(_described_member(worker, member)))
            parts = len(member.assigned) + len(member.target)
            await request.budget.step(_MEMBER_BYTES + parts * _PART_BYTES)
        answer["members"] = members
        if await hides_any(request, members):
            answer |= said(Code.TOPIC_AUTHORIZATION_FAILED, HIDDEN) | {"members": ()}
    return {"groups": groups}


async def _described(worker: GroupServices, request: Request, group_id: str) -> dict[str, Any]:
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
        coordinator = coordinator_of(worker, group_id)
    except KafkaError as error:
        return answer | {"error_code": error.code, "error_message": error.message}
    group, head = await coordinator.load(group_id), coordinator.head(group_id)
    if isinstance(group, ConsumerGroup):
        return answer | {
            "group_state": group.state,
            "authorized_operations": group_operations(request, group_id),
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "assignor_name": group.choose_assignor(),
            "members": list(group.members.values()),
        }
    if group is None and head is not None and head.kind == "consumer":
        return answer | {
            "group_state": "Empty",
            "authorized_operations": group_operations(request, group_id),
            "group_epoch": head.values["epoch"],
            "assignment_epoch": head.values["target_epoch"],
            "assignor_name": DEFAULT_ASSIGNOR,
        }
    what = "not found" if group is None and head is None else "is not a consumer group"
    return answer | {
        "error_code": Code.GROUP_ID_NOT_FOUND,
        "error_message": f"Group {group_id} {what}.",
    }


def _described_member(worker: GroupServices, member: ConsumerMember) -> Steps[dict[str, Any]]:
    epoch, target = member.epoch, member.target
    assigned = yield from named(worker, member.assigned)
    return {
        "member_id": member.id,
        "instance_id": member.instance,
        "rack_id": member.rack,
        "member_epoch": epoch,
        "client_id": member.client_id,
        "client_host": member.host,
        "subscribed_topic_names": member.topics,
        "subscribed_topic_regex": pattern_of(member.regex).regex,
        "assignment": {"topic_partitions": assigned},
        "target_assignment": {"topic_partitions": (yield from named(worker, target))},
        "member_type": 0 if member.classic else 1,
    }
