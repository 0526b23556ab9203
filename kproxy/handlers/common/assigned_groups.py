"""The answers about groups whose coordinator assigns: consumer groups and share groups."""

from collections.abc import Awaitable, Mapping
from typing import Any
from uuid import UUID

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.assigning.regex import pattern_of
from kproxy.groups.model.assigned_group import AssignedGroup
from kproxy.groups.model.assigned_member import AssignedMember
from kproxy.groups.model.consumer_group import steps_by_queue
from kproxy.groups.model.consumer_member import ConsumerMember
from kproxy.groups.requests.assigned_heartbeat import HeartbeatResult
from kproxy.handlers.common.group_coordinators import check_share_level, coordinator_of
from kproxy.handlers.common.needs import GroupNeeds
from kproxy.handlers.common.permitted import HIDDEN, group_operations, hides_any, need_group
from kproxy.handlers.common.refusals import NO_ERROR, error_fields, said
from kproxy.loop.steps import EVERY, Steps, done
from kproxy.protocol.responses import UNKNOWN_OPERATIONS
from kproxy.security.acls import Op
from kproxy.worker.request import Request

_GROUP_BYTES, _MEMBER_BYTES, _PART_BYTES = 900, 1500, 100  # about, until they are encoded


# -- heartbeats


async def heartbeat_answer(beat: Awaitable[tuple[HeartbeatResult, int]]) -> Mapping[str, Any]:
    """Return the answer to a heartbeat, given its result and the ms until the next one."""
    answer: dict[str, Any] = {
        **NO_ERROR,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }
    try:
        result, interval_ms = await beat
    except KafkaError as error:
        return answer | error_fields(error)
    if result.assigned is not None:
        answer["assignment"] = {"topic_partitions": await done(_by_id(result.assigned))}
    answer["member_id"], answer["member_epoch"] = result.member_id, result.member_epoch
    answer["heartbeat_interval"] = interval_ms
    return answer


def _by_id(parts: PartitionSet) -> Steps[list[dict[str, Any]]]:
    """Return partitions by queue, with its id."""
    found: list[dict[str, Any]] = []
    for queue_id, indices in (yield from steps_by_queue(parts)).items():
        found.append({"topic_id": UUID(bytes=bytes(queue_id)), "partitions": indices})
        if len(found) % EVERY == 0:
            yield
    return found


# -- descriptions


async def describe(
    worker: GroupNeeds, request: Request, kind: str, assignor: str
) -> Mapping[str, Any]:
    """Return what there is to say of groups of a kind; `assignor`: of one without members."""
    groups = []
    for group_id in request.body.group_ids:
        answer = await _described(worker, request, group_id, kind, assignor)
        groups.append(answer)
        await request.budget.step(_GROUP_BYTES)
        members = []
        for member in answer["members"]:
            members.append(await done(_described_member(worker, member)))
            targets = len(member.target) if isinstance(member, ConsumerMember) else 0
            parts = len(member.assigned) + targets
            await request.budget.step(_MEMBER_BYTES + parts * _PART_BYTES)
        answer["members"] = members
        if await hides_any(request, members):
            answer |= said(Code.TOPIC_AUTHORIZATION_FAILED, HIDDEN) | {"members": ()}
    return {"groups": groups}


async def _described(
    worker: GroupNeeds, request: Request, group_id: str, kind: str, assignor: str
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        **NO_ERROR,
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
        if kind == "share":
            check_share_level(worker)
        coordinator = coordinator_of(worker, group_id)
    except KafkaError as error:
        return answer | error_fields(error)
    group, head = await coordinator.load(group_id), coordinator.head(group_id)
    if isinstance(group, AssignedGroup) and group.kind == kind:
        return answer | {
            "group_state": group.state,
            "authorized_operations": group_operations(request, group_id),
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "assignor_name": group.choose_assignor(),
            "members": list(group.members.values()),
        }
    if group is None and head is not None and head.kind == kind:
        return answer | {
            "group_state": "Empty",
            "authorized_operations": group_operations(request, group_id),
            "group_epoch": head.values["epoch"],
            "assignment_epoch": head.values["target_epoch"],
            "assignor_name": assignor,
        }
    what = "not found" if group is None and head is None else f"is not a {kind} group"
    return answer | said(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")


def _described_member(worker: GroupNeeds, member: AssignedMember) -> Steps[dict[str, Any]]:
    epoch, target = member.epoch, member.target
    assigned = yield from _by_name(worker, member.assigned)
    found = {
        "member_id": member.id,
        "rack_id": member.rack,
        "member_epoch": epoch,
        "client_id": member.client_id,
        "client_host": member.host,
        "subscribed_topic_names": member.topics,
        "assignment": {"topic_partitions": assigned},
    }
    if isinstance(member, ConsumerMember):
        found |= {
            "instance_id": member.instance,
            "subscribed_topic_regex": pattern_of(member.regex).regex,
            "target_assignment": {"topic_partitions": (yield from _by_name(worker, target))},
            "member_type": 0 if member.classic else 1,
        }
    return found


def _by_name(worker: GroupNeeds, parts: PartitionSet) -> Steps[list[dict[str, Any]]]:
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
