"""The heartbeat of a share group's member (KIP-932) as a rule on a group.

Rules, order of checks, codes and messages follow Kafka's `GroupMetadataManager` (4.3). Other than
there, who joins gets its partitions at once where making their share partitions is little work.
"""

from collections.abc import Collection
from dataclasses import dataclass

from anyio import CancelScope

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.coordinator import Coordinator, storage_code
from kproxy.groups.model.assigned_member import AssignedMember
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.requests.heartbeat import HeartbeatResult
from kproxy.loop.pace import Pace
from kproxy.loop.steps import done, once_in_order

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
MEMBER_ID_MAX = 36  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeatRequest:
    """The fields of a member's heartbeat. None is for what has not changed since the last."""

    group_id: str
    member_id: str
    member_epoch: int
    rack: str | None
    topics: Collection[str] | None
    client_id: str
    host: str


def check(asked: ShareHeartbeatRequest) -> None:
    """Refuse what needs no group to be refused. Raise KafkaError."""
    if not 0 < len(asked.member_id) <= MEMBER_ID_MAX:
        raise KafkaError(Code.INVALID_REQUEST)
    problems = (
        (not asked.member_id.strip(), "MemberId can't be empty."),
        (not asked.group_id.strip(), "GroupId can't be empty."),
        (asked.rack is not None and not asked.rack.strip(), "RackId can't be empty."),
        (asked.member_epoch == JOIN_EPOCH and not asked.topics,
         "SubscribedTopicNames must be set in first request."),
        (asked.member_epoch < LEAVE_EPOCH, "MemberEpoch is invalid."),
    )  # fmt: skip
    for found, message in problems:
        if found:
            raise KafkaError(Code.INVALID_REQUEST, message)


async def heartbeat(coordinator: Coordinator, asked: ShareHeartbeatRequest) -> HeartbeatResult:
    """Let a member join, stay or leave, and log what that changes.

    `check` has passed. Raise KafkaError: nothing was changed, or the log failed.
    """
    group_id, joins = asked.group_id, asked.member_epoch == JOIN_EPOCH
    group = await coordinator.open_share(group_id, create=joins)
    if group is None and coordinator.head(group_id) is not None:
        raise _unknown(asked)
    if group is None:
        what = "Group" if asked.member_epoch == LEAVE_EPOCH else "Share group"
        raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"{what} {group_id} not found.")
    with CancelScope(shield=True):  # finish the logging
        result = await _change_and_log(coordinator, group, asked)
    return result  # noqa: RET504 (mypy sees that the scope might end it)


async def _change_and_log(
    coordinator: Coordinator, group: ShareGroup, asked: ShareHeartbeatRequest
) -> HeartbeatResult:
    async with group.lock:
        try:
            if group.ended or not coordinator.has(group):
                raise KafkaError(Code.NOT_COORDINATOR)
            if asked.member_epoch == LEAVE_EPOCH:
                return await _leave(coordinator, group, asked)
            return await _stay(coordinator, group, asked)
        finally:
            if group.idle:
                coordinator.forget(group)


async def _log(coordinator: Coordinator, group: ShareGroup) -> None:
    """Log the group. Raise KafkaError."""
    code = await coordinator.log_changes(group)
    if code:
        raise KafkaError(storage_code(code))


def _unknown(asked: ShareHeartbeatRequest) -> KafkaError:
    message = f"Member {asked.member_id} is not a member of group {asked.group_id}."
    return KafkaError(Code.UNKNOWN_MEMBER_ID, message)


async def _leave(
    coordinator: Coordinator, group: ShareGroup, asked: ShareHeartbeatRequest
) -> HeartbeatResult:
    if asked.member_id not in group.members:
        raise _unknown(asked)
    group.remove(asked.member_id)
    group.rebalance_without()
    await _log(coordinator, group)
    return HeartbeatResult(asked.member_id, LEAVE_EPOCH, None)


async def _stay(
    coordinator: Coordinator, group: ShareGroup, asked: ShareHeartbeatRequest
) -> HeartbeatResult:
    member, fresh = _member(group, asked, coordinator.config.group_share_max_size)
    before, pace = member.assigned, Pace()
    subscribed = await _update(group, member, asked)
    await pace.step()
    if fresh:
        group.put(member)
    group.renew_session(member)
    bump = coordinator.subscriptions.refresh(group, now=subscribed)
    if subscribed or bump:
        group.epoch += 1
    if group.unchecked:
        group.making = group.making or subscribed or bump  # said with what is logged anyway
        await _log(coordinator, group)  # share partitions are made for a group that is logged
        pace.begin()
        await coordinator.shares.begin(group)
        if group.members.get(member.id) is not member:
            raise KafkaError(Code.NOT_COORDINATOR)
    await pace.step()
    if group.may_assign():
        coordinator.subscriptions.assign(group)
    group.reconcile(member)
    await _log(coordinator, group)
    told: PartitionSet | None = member.assigned
    if asked.member_epoch != JOIN_EPOCH and asked.topics is None:
        changed = member.assigned is not before and member.assigned != before
        told = member.assigned if changed else None
    return HeartbeatResult(member.id, member.epoch, told)


def _member(
    group: ShareGroup, asked: ShareHeartbeatRequest, members_max: int
) -> tuple[AssignedMember, bool]:
    """Return (the member, whether it is new to the group). Raise KafkaError."""
    member = group.members.get(asked.member_id)
    if member is None and len(group.members) >= members_max:
        raise KafkaError(
            Code.GROUP_MAX_SIZE_REACHED,
            f"The share group has reached its maximum capacity of {members_max} members.",
        )
    if member is None and asked.member_epoch != JOIN_EPOCH:
        raise _unknown(asked)
    if member is None:
        return AssignedMember(asked.member_id), True
    if asked.member_epoch != JOIN_EPOCH:
        _check_epoch(member, asked.member_epoch)
    return member, False


def _check_epoch(member: AssignedMember, epoch: int) -> None:
    """Raise KafkaError if its epoch is wrong, unless the last answer was lost."""
    if epoch in (member.epoch, member.previous_epoch):
        return
    if epoch > member.epoch:
        what, why = "greater", ""
    else:
        previous = member.previous_epoch
        what, why = "smaller", f", and it does not match the previous member epoch ({previous})"
    raise KafkaError(
        Code.FENCED_MEMBER_EPOCH,
        f"The share group member has a {what} member epoch ({epoch}) than the one known by the"
        f" group coordinator ({member.epoch}){why}. The member must abandon all its partitions and"
        " rejoin.",
    )


async def _update(group: ShareGroup, member: AssignedMember, asked: ShareHeartbeatRequest) -> bool:
    """Take over what the request says; whether the subscription changed."""
    before = (member.client_id, member.host, member.rack)
    member.client_id, member.host = asked.client_id, asked.host
    if asked.rack is not None:
        member.rack = asked.rack
    if (member.client_id, member.host, member.rack) != before and member.id in group.members:
        group.changed.add(member.id)
    if asked.topics is None:
        return False
    topics = tuple(await done(once_in_order(asked.topics)))
    if topics == member.topics:
        return False
    group.subscribe(member, topics)
    if member.id in group.members:
        group.changed.add(member.id)
    return True
