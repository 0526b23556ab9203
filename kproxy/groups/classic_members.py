"""Members of the classic protocol in a consumer group: their JoinGroup, SyncGroup and Heartbeat.

A generation is the member's epoch. Such a member takes its next step by joining again (KIP-848,
Kafka's `classicGroupJoinToConsumerGroup` and what follows it).
"""

import uuid
from collections.abc import Iterable
from typing import Any

from kproxy.errors import Code, KafkaError
from kproxy.groups.classic_member import ClassicMember
from kproxy.groups.classic_states import join_answer, sync_answer
from kproxy.groups.consumer_group import ConsumerGroup
from kproxy.groups.consumer_member import ConsumerMember, Progress
from kproxy.groups.consumer_protocol import CONSUMER_PROTOCOL, NotAConsumers, subscription
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.migration import assignment_of, parts_named
from kproxy.loop.pace import Pace
from kproxy.loop.steps import done, in_order


async def join(
    coordinator: Coordinator,
    group: ConsumerGroup,
    asked: ClassicMember,
    protocol_type: str,
    known_id_required: bool,
) -> dict[str, Any]:
    """The JoinGroup answer to who would be this member; a new one has no id. Raises KafkaError."""
    if protocol_type != CONSUMER_PROTOCOL or not asked.protocols:
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
    try:
        wanted = await done(subscription(asked.protocols[0][1]))
    except NotAConsumers:
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL) from None
    topics = tuple(await done(in_order(set(wanted.topics))))
    owned = await done(parts_named(wanted.owned, coordinator.lookup))
    if not asked.id and asked.instance is None and known_id_required:
        new_id = f"{asked.client_id}-{uuid.uuid4()}"
        return join_answer(Code.MEMBER_ID_REQUIRED, new_id)
    async with group.lock:
        if group.ended:
            raise KafkaError(Code.NOT_COORDINATOR)
        member = _member(group, asked)
        changed = topics != member.topics
        group.subscribe(member, topics, "")
        member.client_id, member.host = asked.client_id, asked.host
        member.assignor = None
        member.protocols, member.session_s = asked.protocols, asked.session_s
        member.rebalance_s = asked.rebalance_s
        group.put(member)
        group.heard(member)
        if coordinator.looking.look(group, now=changed) or changed:
            group.epoch += 1
        if group.may_assign():
            coordinator.looking.assign(group)
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


def _member(group: ConsumerGroup, asked: ClassicMember) -> ConsumerMember:
    if asked.instance is not None:
        known = group.of_instance(asked.instance)
        if known is not None:
            if known.id == asked.id:
                return known
            if asked.id:
                raise KafkaError(Code.FENCED_INSTANCE_ID)
            return group.replace_static(known, f"{asked.instance}-{uuid.uuid4()}")
    known = group.members.get(asked.id)
    if known is not None:
        return known
    member = ConsumerMember(asked.id or f"{asked.client_id}-{uuid.uuid4()}")
    member.instance = asked.instance
    return member


def _classic(group: ConsumerGroup, body: Any) -> ConsumerMember:
    """The member that a request speaks for. Raises KafkaError."""
    instance = getattr(body, "group_instance_id", None)
    member = group.members.get(body.member_id)
    if instance is not None:
        of_instance = group.of_instance(instance)
        if of_instance is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID)
        if of_instance.id != body.member_id:
            raise KafkaError(Code.FENCED_INSTANCE_ID)
    if member is None or not member.classic:
        raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    if body.generation_id != member.epoch:
        raise KafkaError(Code.ILLEGAL_GENERATION)
    return member


async def sync(coordinator: Coordinator, group: ConsumerGroup, body: Any) -> dict[str, Any]:
    """The SyncGroup answer: what this member has now. Raises KafkaError."""
    member = _classic(group, body)
    group.heard(member)
    names = [name for name, _ in member.protocols]
    given_type = getattr(body, "protocol_type", None)
    given_name = getattr(body, "protocol_name", None)
    if given_type not in (None, CONSUMER_PROTOCOL) or given_name not in (None, *names):
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
    if group.epoch > member.epoch and member.progress != Progress.UNREVOKED:
        raise KafkaError(Code.REBALANCE_IN_PROGRESS)
    assignment = await done(assignment_of(member, coordinator.lookup))
    return sync_answer(Code.NONE) | {
        "protocol_type": CONSUMER_PROTOCOL,
        "protocol_name": names[0],
        "assignment": assignment,
    }


async def heartbeat(coordinator: Coordinator, group: ConsumerGroup, body: Any) -> Code:
    """Whether the member has to join again to go on. Raises KafkaError."""
    member = _classic(group, body)
    group.heard(member)
    async with group.lock:
        if not group.ended and coordinator.looking.look(group, now=False):
            group.epoch += 1
            group.changed.add(member.id)
            await coordinator.log_changes(group)
    behind = member.epoch < group.epoch or member.progress == Progress.UNREVOKED
    if not behind and member.progress == Progress.UNRELEASED:
        behind = not await done(group.waits(member))
    return Code.REBALANCE_IN_PROGRESS if behind else Code.NONE


async def leave(
    coordinator: Coordinator, group: ConsumerGroup, leaving: Iterable[tuple[str, str | None]]
) -> list[Code]:
    """A code for each (member id, instance) that leaves."""
    codes, pace = [], Pace()
    async with group.lock:
        for member_id, instance in leaving:
            await pace.step()
            member = group.members.get(member_id)
            if not member_id and instance is not None:
                member = group.of_instance(instance)
            if member is None:
                codes.append(Code.UNKNOWN_MEMBER_ID)
            elif instance is not None and member.instance != instance:
                codes.append(Code.FENCED_INSTANCE_ID)
            else:
                group.take_out(member.id)
                codes.append(Code.NONE)
        if Code.NONE in codes:
            group.go_on_without()
            if await coordinator.log_changes(group):
                codes = [Code.COORDINATOR_NOT_AVAILABLE] * len(codes)
    await coordinator.downgrade_if_due(group)
    return codes
