"""Members of the classic protocol in a consumer group: their JoinGroup, SyncGroup and Heartbeat.

A generation is the member's epoch. Such a member takes its next step by joining again (KIP-848,
Kafka's `classicGroupJoinToConsumerGroup` and what follows it).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.classic_member import ClassicMember
from kproxy.groups.model.classic_states import join_answer, sync_answer
from kproxy.groups.model.consumer_group import ConsumerGroup
from kproxy.groups.model.consumer_member import ConsumerMember
from kproxy.groups.model.consumer_protocol import CONSUMER_PROTOCOL, NotAConsumers, subscription
from kproxy.groups.model.revoking_member import Progress
from kproxy.groups.requests.migration import assignment_of, parts_named
from kproxy.loop.pace import Pace
from kproxy.loop.steps import done, once_in_order


@dataclass(frozen=True, slots=True)
class MemberClaim:
    """A request's claim to be a member of the classic protocol."""

    member_id: str
    instance: str | None
    generation: int


async def join(
    coordinator: Coordinator,
    group: ConsumerGroup,
    asked: ClassicMember,
    protocol_type: str,
    known_id_required: bool,
) -> dict[str, Any]:
    """Return the JoinGroup answer to a joining client; a new one has no id. Raise KafkaError."""
    if not group.supports(protocol_type, asked.protocols):
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
    try:
        wanted = await done(subscription(asked.protocols[0][1]))
    except NotAConsumers:
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL) from None
    topics = tuple(await done(once_in_order(wanted.topics)))
    owned = await done(parts_named(wanted.owned, coordinator.lookup))
    if not asked.id and asked.instance is None and known_id_required:
        return join_answer(Code.MEMBER_ID_REQUIRED, coordinator.new_member_id(asked.client_id))
    async with group.lock:
        if group.ended:
            raise KafkaError(Code.NOT_COORDINATOR)
        if not group.supports(protocol_type, asked.protocols):
            raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
        member = _member(coordinator, group, asked)
        changed = topics != member.topics
        group.subscribe(member, topics, "")
        member.client_id, member.host = asked.client_id, asked.host
        member.assignor = None
        group.speak(member, asked.protocols)
        member.session_s, member.rebalance_s = asked.session_s, asked.rebalance_s
        group.put(member)
        group.renew_session(member)
        coordinator.subscriptions.refresh_epoch(group, subscribed=changed)
        coordinator.subscriptions.assign_if_due(group)
        # Before version 1 of the subscription members give up all they have before they join.
        await done(group.reconcile(member, owned))
        code = await coordinator.log_changes(group)
        if code:
            raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE)
        return join_answer(Code.NONE, member.id) | {
            "generation_id": member.epoch,
            "protocol_type": CONSUMER_PROTOCOL,
            "protocol_name": member.protocols[0][0],
        }


def _member(coordinator: Coordinator, group: ConsumerGroup, asked: ClassicMember) -> ConsumerMember:
    if asked.instance is not None and asked.id:
        if fault := group.static_members.fault(asked.instance, asked.id):
            raise KafkaError(fault)
        return group.members[asked.id]
    if asked.instance is not None:
        known = group.static_members.find(asked.instance)
        if known is not None:
            return group.replace_static(known, coordinator.new_member_id(asked.instance))
    known = group.members.get(asked.id)
    if known is not None:
        return known
    member = ConsumerMember(asked.id or coordinator.new_member_id(asked.client_id))
    member.instance = asked.instance
    return member


def _claimed(group: ConsumerGroup, claim: MemberClaim) -> ConsumerMember:
    """Return the member that a request speaks for. Raise KafkaError."""
    if fault := group.static_members.fault(claim.instance, claim.member_id):
        raise KafkaError(fault)
    member = group.members.get(claim.member_id)
    if member is None or not member.classic:
        raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    if claim.generation != member.epoch:
        raise KafkaError(Code.ILLEGAL_GENERATION)
    return member


async def sync(
    coordinator: Coordinator,
    group: ConsumerGroup,
    claim: MemberClaim,
    protocol: tuple[str, str] | None,
) -> dict[str, Any]:
    """Return the SyncGroup answer: what this member has now. Raise KafkaError."""
    member = _claimed(group, claim)
    group.renew_session(member)
    names = [name for name, _ in member.protocols]
    if protocol is not None and (protocol[0] != CONSUMER_PROTOCOL or protocol[1] not in names):
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
    if group.epoch > member.epoch and member.progress != Progress.UNREVOKED:
        raise KafkaError(Code.REBALANCE_IN_PROGRESS)
    assignment = await done(assignment_of(member, coordinator.lookup))
    return sync_answer(Code.NONE) | {
        "protocol_type": CONSUMER_PROTOCOL,
        "protocol_name": names[0],
        "assignment": assignment,
    }


async def heartbeat(coordinator: Coordinator, group: ConsumerGroup, claim: MemberClaim) -> Code:
    """Return REBALANCE_IN_PROGRESS if the member has to join again to go on. Raise KafkaError."""
    member = _claimed(group, claim)
    group.renew_session(member)
    async with group.lock:
        if not group.ended and coordinator.subscriptions.refresh_epoch(group, subscribed=False):
            group.changed.add(member.id)
            await coordinator.log_changes(group)
    behind = member.epoch < group.epoch or member.progress == Progress.UNREVOKED
    if not behind and member.progress == Progress.UNRELEASED:
        behind = not await done(group.waits(member))
    return Code.REBALANCE_IN_PROGRESS if behind else Code.NONE


def _named(group: ConsumerGroup, member_id: str, instance: str | None) -> ConsumerMember:
    """Return the member that a LeaveGroup names. Raise KafkaError."""
    member = group.members.get(member_id)
    if instance is not None:
        member = group.static_members.find(instance)
        fault = group.static_members.fault(instance, member_id)
        if member is not None and member_id and fault:
            raise KafkaError(fault)
    if member is None:
        raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    return member


async def leave(
    coordinator: Coordinator, group: ConsumerGroup, leaving: Iterable[tuple[str, str | None]]
) -> list[Code]:
    """Return a code for each leaving (member id, instance); one may come twice, as with Kafka."""
    codes, found, pace = [], set[str](), Pace()
    async with group.lock:
        for member_id, instance in leaving:
            await pace.step()
            try:
                found.add(_named(group, member_id, instance).id)
                codes.append(Code.NONE)
            except KafkaError as error:
                codes.append(error.code)
        for member_id in found:
            await pace.step()
            group.remove(member_id)
        if found:
            group.rebalance_without()
            if await coordinator.log_changes(group):
                codes = [Code.COORDINATOR_NOT_AVAILABLE] * len(codes)
    if found:
        await coordinator.downgrade_if_due(group)
    return codes
