"""The heartbeat of a share group's member (KIP-932) as a rule on a group.

Rules, order of checks, codes and messages follow Kafka's `GroupMetadataManager` (4.3). Other than
there, who joins gets its partitions at once where making their share partitions is little work.
"""

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.assigned_member import AssignedMember
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.requests import assigned_heartbeat as common
from kproxy.groups.requests.assigned_heartbeat import HeartbeatRequest, HeartbeatResult
from kproxy.loop.pace import Pace

MEMBER_ID_MAX = 36  # characters


def check(asked: HeartbeatRequest) -> None:
    """Refuse what needs no group to be refused. Raise KafkaError."""
    if not 0 < len(asked.member_id) <= MEMBER_ID_MAX:
        raise KafkaError(Code.INVALID_REQUEST)
    problems = [
        (not asked.member_id.strip(), "MemberId can't be empty."),
        *common.id_problems(asked),
        (asked.joins and not asked.topics,
         "SubscribedTopicNames must be set in first request."),
        (asked.member_epoch < common.LEAVE_EPOCH, "MemberEpoch is invalid."),
    ]  # fmt: skip
    common.refuse_first(problems)


async def heartbeat(coordinator: Coordinator, asked: HeartbeatRequest) -> HeartbeatResult:
    """Let a member join, stay or leave, and log what that changes.

    `check` has passed. Raise KafkaError: nothing was changed, or the log failed.
    """
    group = await coordinator.open_share(asked.group_id, create=asked.joins)
    return await common.change(coordinator, group, asked, _leave, _stay, "Share group")


async def _leave(
    coordinator: Coordinator, group: ShareGroup, asked: HeartbeatRequest
) -> HeartbeatResult:
    if asked.member_id not in group.members:
        raise common.unknown(asked)
    group.remove(asked.member_id)
    group.rebalance_without()
    await common.log(coordinator, group)
    return HeartbeatResult(asked.member_id, common.LEAVE_EPOCH, None)


async def _stay(
    coordinator: Coordinator, group: ShareGroup, asked: HeartbeatRequest
) -> HeartbeatResult:
    member, fresh = _member(group, asked, coordinator.config.group_share_max_size)
    before, pace = member.assigned, Pace()
    subscribed = await common.update(group, member, asked)
    await pace.step()
    if fresh:
        group.put(member)
    group.renew_session(member)
    others = coordinator.subscriptions.refresh_epoch(group, subscribed=subscribed)
    if group.unchecked:
        group.making = group.making or others  # said with what is logged anyway
        await common.log(coordinator, group)  # share partitions are made for a group that is logged
        pace.begin()
        await coordinator.shares.begin(group)
        if group.members.get(member.id) is not member:
            raise KafkaError(Code.NOT_COORDINATOR)
    await pace.step()
    coordinator.subscriptions.assign_if_due(group)
    group.reconcile(member)
    await common.log(coordinator, group)
    return common.result_of(member, before, whole=asked.joins or asked.topics is not None)


def _member(
    group: ShareGroup, asked: HeartbeatRequest, members_max: int
) -> tuple[AssignedMember, bool]:
    """Return (the member, whether it is new to the group). Raise KafkaError."""
    member = group.members.get(asked.member_id)
    if member is None:
        common.check_room(group, members_max)
        if not asked.joins:
            raise common.unknown(asked)
        return AssignedMember(asked.member_id), True
    epoch, previous = asked.member_epoch, member.previous_epoch
    if not asked.joins and epoch not in (member.epoch, previous):  # the last answer was not lost
        why = f", and it does not match the previous member epoch ({previous})"
        raise common.fenced(group, member, epoch, why if epoch < member.epoch else "")
    return member, False
