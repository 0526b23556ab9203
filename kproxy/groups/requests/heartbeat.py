"""The heartbeat of the consumer protocol (KIP-848) as a rule on a group.

Rules, order of checks, codes and messages follow Kafka's `GroupMetadataManager` (4.3).
"""

from dataclasses import dataclass, replace

from anyio import CancelScope

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import ASSIGNORS, PartitionSet
from kproxy.groups.assigning.regex import compiled, pattern_of
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.consumer_group import ConsumerGroup
from kproxy.groups.model.consumer_member import STATIC_LEAVE_EPOCH, ConsumerMember
from kproxy.groups.requests import assigned_heartbeat as common
from kproxy.groups.requests.assigned_heartbeat import HeartbeatRequest, HeartbeatResult
from kproxy.loop.steps import done


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatRequest(HeartbeatRequest):
    """The fields of a consumer's heartbeat. None is for what has not changed since the last."""

    instance: str | None
    rebalance_s: float  # below 0: not said
    regex: str | None
    assignor: str | None
    owned: PartitionSet | None
    names_owned: bool  # it says what it owns, and that is not nothing
    member_id_required: bool  # by the version of the request

    @property
    def says_all(self) -> bool:
        """A whole heartbeat is answered with the whole assignment."""
        subscribes = self.topics is not None or self.regex is not None
        return self.owned is not None and subscribes


def check(asked: ConsumerHeartbeatRequest) -> None:
    """Refuse what needs no group to be refused. Raise KafkaError."""
    no_group, no_rack = common.id_problems(asked)
    problems = [
        (not asked.member_id and (asked.member_id_required or not asked.joins),
         "MemberId can't be empty."),
        no_group,
        (asked.instance is not None and not asked.instance.strip(), "InstanceId can't be empty."),
        no_rack,
        (asked.member_epoch < STATIC_LEAVE_EPOCH, "MemberEpoch is invalid."),
        (asked.member_epoch == STATIC_LEAVE_EPOCH and asked.instance is None,
         "InstanceId can't be null."),
    ]  # fmt: skip
    if asked.joins:
        problems += [
            (asked.rebalance_s < 0, "RebalanceTimeoutMs must be provided in first request."),
            (asked.owned is None or asked.names_owned,
             "TopicPartitions must be empty when (re-)joining."),
            (asked.topics is None and not asked.regex,
             "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
             " (re-)joining."),
        ]  # fmt: skip
    common.refuse_first(problems)
    if asked.assignor is not None and asked.assignor not in ASSIGNORS:
        raise KafkaError(
            Code.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {asked.assignor} is not supported. Supported assignors:"
            f" {', '.join(ASSIGNORS)}.",
        )
    if asked.regex:
        compiled(pattern_of(asked.regex).regex)


async def heartbeat(coordinator: Coordinator, asked: ConsumerHeartbeatRequest) -> HeartbeatResult:
    """Let a member join, stay or leave, and log what that changes.

    `check` has passed. Raise KafkaError: nothing was changed, or the log failed.
    """
    if not asked.member_id:  # in version 0, of one that joins
        asked = replace(asked, member_id=str(coordinator.unique_id()))
    group = await coordinator.open_consumer(asked.group_id, create=asked.joins)
    with CancelScope(shield=True):  # finish the logging
        result = await _change_and_log(coordinator, group, asked)
        await coordinator.downgrade_if_due(group)
    return result


async def _change_and_log(
    coordinator: Coordinator, group: ConsumerGroup, asked: ConsumerHeartbeatRequest
) -> HeartbeatResult:
    async with group.lock:
        if group.ended:
            raise KafkaError(Code.NOT_COORDINATOR)
        if asked.member_epoch in (common.LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            result = _leave(group, asked)
        else:
            try:
                result = await _stay(coordinator, group, asked)
            except KafkaError:
                if group.idle:
                    coordinator.forget(group)
                raise
        await common.log(coordinator, group)
    return result


# -- leaving


def _leave(group: ConsumerGroup, asked: ConsumerHeartbeatRequest) -> HeartbeatResult:
    if asked.instance is None:
        member = group.members.get(asked.member_id)
        if member is None:
            raise common.unknown(asked)
    else:
        member = _static(group, asked, asked.instance)
    if asked.member_epoch == STATIC_LEAVE_EPOCH:
        group.leave_as_static(member)
    else:
        group.remove(member.id)
        group.rebalance_without()
    return HeartbeatResult(member.id, asked.member_epoch, None)


def _static(group: ConsumerGroup, asked: ConsumerHeartbeatRequest, instance: str) -> ConsumerMember:
    """Return the member that has this instance id, if it is the one that asks."""
    member = group.static_members.find(instance)
    if member is None:
        raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"Instance id {instance} is unknown.")
    if fault := group.static_members.fault(instance, asked.member_id):
        raise KafkaError(
            fault,
            f"Static member {asked.member_id} with instance id {instance} was fenced by member"
            f" {member.id}.",
        )
    return member


# -- joining and staying


async def _stay(
    coordinator: Coordinator, group: ConsumerGroup, asked: ConsumerHeartbeatRequest
) -> HeartbeatResult:
    group.subscription_counts.check_room_for(asked.regex)
    member, fresh = _member(group, asked, coordinator.config.group_members_max)
    before = member.assigned
    subscribed = await common.update(
        group, member, asked, asked.regex, assignor=asked.assignor,
        rebalance_s=asked.rebalance_s if asked.rebalance_s >= 0 else None,
    )  # fmt: skip
    if member.classic:  # it has moved on from the classic protocol
        group.speak(member, ())
        group.changed.add(member.id)
    if fresh:
        group.put(member)
    group.renew_session(member)
    coordinator.subscriptions.refresh_epoch(group, subscribed=subscribed)
    coordinator.subscriptions.assign_if_due(group)
    await done(group.reconcile(member, asked.owned))
    return common.result_of(member, before, whole=asked.joins or asked.says_all)


def _member(
    group: ConsumerGroup, asked: ConsumerHeartbeatRequest, members_max: int
) -> tuple[ConsumerMember, bool]:
    """Return (the member, whether it is new to the group)."""
    if asked.instance is not None:
        return _static_member(group, asked, asked.instance, members_max)
    member = group.members.get(asked.member_id)
    if asked.joins:
        return (member, False) if member is not None else (_new(group, asked, members_max), True)
    if member is None:
        raise common.unknown(asked)
    _check_epoch(group, member, asked)
    return member, False


def _static_member(
    group: ConsumerGroup, asked: ConsumerHeartbeatRequest, instance: str, members_max: int
) -> tuple[ConsumerMember, bool]:
    if not asked.joins:
        member = _static(group, asked, instance)
        _check_epoch(group, member, asked)
        return member, False
    known = group.static_members.find(instance)
    if known is None:
        return _new(group, asked, members_max), True
    if known.id == asked.member_id:
        return known, False
    if known.epoch != STATIC_LEAVE_EPOCH and not known.classic:
        raise KafkaError(
            Code.UNRELEASED_INSTANCE_ID,
            f"Static member {asked.member_id} with instance id {instance} cannot join the group"
            f" because the instance id is owned by an active member {known.id}.",
        )
    return group.replace_static(known, asked.member_id), True


def _new(group: ConsumerGroup, asked: ConsumerHeartbeatRequest, members_max: int) -> ConsumerMember:
    common.check_room(group, members_max)
    member = ConsumerMember(asked.member_id)
    member.instance = asked.instance
    return member


def _check_epoch(
    group: ConsumerGroup, member: ConsumerMember, asked: ConsumerHeartbeatRequest
) -> None:
    """Raise KafkaError if the member is not as far as the group knows it to be."""
    epoch, owned = asked.member_epoch, asked.owned
    if epoch == member.epoch:
        return
    # Its last answer was lost: it may go on if it took nothing that it has not.
    lost_answer = epoch < member.epoch and epoch == member.previous_epoch
    if not lost_answer or owned is None or not owned <= member.assigned:
        raise common.fenced(group, member, epoch)
