"""The heartbeat of the consumer protocol (KIP-848) as a rule on a group.

Rules, order of checks, codes and messages follow Kafka's `GroupMetadataManager` (4.3).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from anyio import CancelScope

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import ASSIGNORS, PartitionSet
from kproxy.groups.assigning.regex import compiled, pattern_of
from kproxy.groups.coordinator import Coordinator, storage_code
from kproxy.groups.model.consumer_group import ConsumerGroup
from kproxy.groups.model.consumer_member import STATIC_LEAVE_EPOCH, ConsumerMember
from kproxy.loop.steps import done, in_order

JOIN_EPOCH, LEAVE_EPOCH = 0, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """The fields of a member's heartbeat. None is for what has not changed since the last."""

    group_id: str
    member_id: str
    member_epoch: int
    instance: str | None
    rack: str | None
    rebalance_s: float  # below 0: not said
    topics: Collection[str] | None
    regex: str | None
    assignor: str | None
    owned: PartitionSet | None
    names_owned: bool  # it says what it owns, and that is not nothing
    client_id: str
    host: str
    member_id_required: bool  # by the version of the request

    @property
    def says_all(self) -> bool:
        """A whole heartbeat is answered with the whole assignment."""
        subscribes = self.topics is not None or self.regex is not None
        return self.owned is not None and subscribes


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer to a member; `assigned` is None if that has not changed."""

    member_id: str
    member_epoch: int
    assigned: PartitionSet | None


def check(asked: HeartbeatRequest) -> None:
    """Refuse what needs no group to be refused. Raise KafkaError."""
    joins = asked.member_epoch == JOIN_EPOCH
    problems = [
        (not asked.member_id and (asked.member_id_required or not joins),
         "MemberId can't be empty."),
        (not asked.group_id.strip(), "GroupId can't be empty."),
        (asked.instance is not None and not asked.instance.strip(), "InstanceId can't be empty."),
        (asked.rack is not None and not asked.rack.strip(), "RackId can't be empty."),
        (asked.member_epoch < STATIC_LEAVE_EPOCH, "MemberEpoch is invalid."),
        (asked.member_epoch == STATIC_LEAVE_EPOCH and asked.instance is None,
         "InstanceId can't be null."),
    ]  # fmt: skip
    if joins:
        problems += [
            (asked.rebalance_s < 0, "RebalanceTimeoutMs must be provided in first request."),
            (asked.owned is None or asked.names_owned,
             "TopicPartitions must be empty when (re-)joining."),
            (asked.topics is None and not asked.regex,
             "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
             " (re-)joining."),
        ]  # fmt: skip
    for found, message in problems:
        if found:
            raise KafkaError(Code.INVALID_REQUEST, message)
    if asked.assignor is not None and asked.assignor not in ASSIGNORS:
        raise KafkaError(
            Code.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {asked.assignor} is not supported. Supported assignors:"
            f" {', '.join(ASSIGNORS)}.",
        )
    if asked.regex:
        compiled(pattern_of(asked.regex).regex)


async def heartbeat(coordinator: Coordinator, asked: HeartbeatRequest) -> HeartbeatResult:
    """Let a member join, stay or leave, and log what that changes.

    `check` has passed. Raise KafkaError: nothing was changed, or the log failed.
    """
    if not asked.member_id:  # in version 0, of one that joins
        asked = replace(asked, member_id=str(coordinator.unique_id()))
    group = await coordinator.open_consumer(asked.group_id, create=asked.member_epoch == JOIN_EPOCH)
    with CancelScope(shield=True):  # finish the logging
        result = await _change_and_log(coordinator, group, asked)
        await coordinator.downgrade_if_due(group)
    return result


async def _change_and_log(
    coordinator: Coordinator, group: ConsumerGroup, asked: HeartbeatRequest
) -> HeartbeatResult:
    async with group.lock:
        if group.ended:
            raise KafkaError(Code.NOT_COORDINATOR)
        if asked.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            result = _leave(group, asked)
        else:
            try:
                result = await _stay(coordinator, group, asked)
            except KafkaError:
                if group.idle:
                    coordinator.forget(group)
                raise
        code = await coordinator.log_changes(group)
        if code:
            raise KafkaError(storage_code(code))
    return result


# -- leaving


def _leave(group: ConsumerGroup, asked: HeartbeatRequest) -> HeartbeatResult:
    if asked.instance is None:
        member = group.members.get(asked.member_id)
        if member is None:
            raise _unknown(asked)
    else:
        member = _static(group, asked, asked.instance)
    if asked.member_epoch == STATIC_LEAVE_EPOCH:
        group.leave_as_static(member)
    else:
        group.remove(member.id)
        group.rebalance_without()
    return HeartbeatResult(member.id, asked.member_epoch, None)


def _static(group: ConsumerGroup, asked: HeartbeatRequest, instance: str) -> ConsumerMember:
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


def _unknown(asked: HeartbeatRequest) -> KafkaError:
    message = f"Member {asked.member_id} is not a member of group {asked.group_id}."
    return KafkaError(Code.UNKNOWN_MEMBER_ID, message)


# -- joining and staying


async def _stay(
    coordinator: Coordinator, group: ConsumerGroup, asked: HeartbeatRequest
) -> HeartbeatResult:
    group.subscription_counts.check_room_for(asked.regex)
    member, fresh = _member(group, asked, coordinator.config.group_members_max)
    before = member.assigned
    subscribed = await _update(group, member, asked)
    if subscribed or fresh:
        group.changed.add(member.id)
    if fresh:
        group.put(member)
    group.renew_session(member)
    bump = coordinator.subscriptions.refresh(group, now=subscribed)
    if subscribed or bump:
        group.epoch += 1
    if group.may_assign():
        coordinator.subscriptions.assign(group)
    await done(group.reconcile(member, asked.owned))
    told = asked.member_epoch == JOIN_EPOCH or asked.says_all
    told = told or (member.assigned is not before and member.assigned != before)
    return HeartbeatResult(member.id, member.epoch, member.assigned if told else None)


def _member(
    group: ConsumerGroup, asked: HeartbeatRequest, members_max: int
) -> tuple[ConsumerMember, bool]:
    """Return (the member, whether it is new to the group)."""
    if asked.instance is not None:
        return _static_member(group, asked, asked.instance, members_max)
    member = group.members.get(asked.member_id)
    if asked.member_epoch == JOIN_EPOCH:
        return (member, False) if member is not None else (_new(group, asked, members_max), True)
    if member is None:
        raise _unknown(asked)
    _check_epoch(member, asked)
    return member, False


def _static_member(
    group: ConsumerGroup, asked: HeartbeatRequest, instance: str, members_max: int
) -> tuple[ConsumerMember, bool]:
    if asked.member_epoch != JOIN_EPOCH:
        member = _static(group, asked, instance)
        _check_epoch(member, asked)
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


def _new(group: ConsumerGroup, asked: HeartbeatRequest, members_max: int) -> ConsumerMember:
    if len(group.members) >= members_max:
        raise KafkaError(
            Code.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {members_max} members.",
        )
    member = ConsumerMember(asked.member_id)
    member.instance = asked.instance
    return member


def _check_epoch(member: ConsumerMember, asked: HeartbeatRequest) -> None:
    """Raise KafkaError if the member is not as far as the group knows it to be."""
    epoch = asked.member_epoch
    if epoch > member.epoch:
        raise KafkaError(
            Code.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by"
            f" the group coordinator ({member.epoch}). The member must abandon all its partitions"
            " and rejoin.",
        )
    if epoch < member.epoch:
        # Its last answer was lost: it may go on if it took nothing that it has not.
        lost_answer = epoch == member.previous_epoch and asked.owned is not None
        if not lost_answer or not asked.owned <= member.assigned:  # type: ignore[operator]
            raise KafkaError(
                Code.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a smaller member epoch ({epoch}) than the one"
                f" known by the group coordinator ({member.epoch}). The member must abandon all"
                " its partitions and rejoin.",
            )


async def _update(group: ConsumerGroup, member: ConsumerMember, asked: HeartbeatRequest) -> bool:
    """Take over what the request says; whether the subscription changed.

    Another assignor is for the next target to take, as with Kafka.
    """
    before = _noted(member)
    member.client_id, member.host = asked.client_id, asked.host
    if asked.rack is not None:
        member.rack = asked.rack
    if asked.rebalance_s >= 0:
        member.rebalance_s = asked.rebalance_s
    if asked.assignor is not None:
        member.assignor = asked.assignor
    if _noted(member) != before:
        group.changed.add(member.id)
    topics, regex = member.topics, member.regex
    if asked.topics is not None:
        topics = tuple(await done(in_order(set(asked.topics))))
    if asked.regex is not None:
        regex = asked.regex
    changed = (topics, regex) != (member.topics, member.regex)
    if changed:
        group.subscribe(member, topics, regex)
    if member.classic:  # it has moved on from the classic protocol
        group.speak(member, ())
        group.changed.add(member.id)
    return changed


def _noted(member: ConsumerMember) -> tuple[object, ...]:
    return member.client_id, member.host, member.rack, member.rebalance_s, member.assignor
