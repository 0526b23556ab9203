"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup as rules on a group.

Rules, order of checks and codes follow Kafka's `GroupMetadataManager` (4.3). A consumer group has
members of the classic protocol while it is upgraded: `classic_members` has the rules for those.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anyio import CancelScope

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.coordinator import Coordinator, storage_code
from kproxy.groups.model.classic_group import ClassicGroup
from kproxy.groups.model.classic_member import ClassicMember, Promise, Protocols
from kproxy.groups.model.classic_states import State, join_answer
from kproxy.groups.model.consumer_group import ConsumerGroup
from kproxy.groups.model.group import Group
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.requests import classic_members
from kproxy.groups.requests.classic_members import MemberClaim
from kproxy.loop.pace import Pace

JoinAnswer = Promise[dict[str, Any]] | dict[str, Any]
"""A JoinGroupResponse's fields, now or once the rebalance has come so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A request to join; a new member has no id. Times are seconds."""

    group_id: str
    member_id: str
    instance: str | None
    client_id: str
    host: str
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: Protocols
    known_id_required: bool  # a new member first gets an id (KIP-394)
    may_skip_assignment: bool  # a leader can be told that it need not assign (KIP-814)

    def member(self, member_id: str) -> ClassicMember:
        return ClassicMember(
            member_id, self.instance, self.client_id, self.host, self.session_s, self.rebalance_s,
            self.protocols,
        )  # fmt: skip


# -- JoinGroup


async def join(coordinator: Coordinator, asked: JoinRequest) -> dict[str, Any]:
    """Return a JoinGroupResponse's fields, when the rebalance has come so far. Raise KafkaError."""
    config = coordinator.config
    if not config.group_session_ms_min <= asked.session_s * 1000 <= config.group_session_ms_max:
        raise KafkaError(Code.INVALID_SESSION_TIMEOUT)
    found, head = await coordinator.load(asked.group_id), coordinator.head(asked.group_id)
    if asked.member_id and found is None and (head is None or head.kind != "share"):
        raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    group = await coordinator.open_classic(asked.group_id)
    if isinstance(group, ConsumerGroup):
        with CancelScope(shield=True):  # finish the logging
            answer = await _join_consumer_group(coordinator, group, asked)
        return answer  # noqa: RET504 (mypy sees that the scope might end it)
    try:
        waiting = await _join(coordinator, group, asked)
    except KafkaError:
        if group.idle:
            coordinator.forget(group)
        raise
    return await waiting.wait() if isinstance(waiting, Promise) else waiting


async def _join_consumer_group(
    coordinator: Coordinator, group: ConsumerGroup, asked: JoinRequest
) -> dict[str, Any]:
    full = len(group.members) >= coordinator.config.group_members_max
    if full and asked.member_id not in group.members:
        raise KafkaError(Code.GROUP_MAX_SIZE_REACHED)
    return await classic_members.join(
        coordinator,
        group,
        asked.member(asked.member_id),
        asked.protocol_type,
        asked.known_id_required,
    )


async def _join(coordinator: Coordinator, group: ClassicGroup, asked: JoinRequest) -> JoinAnswer:
    if group.state == State.DEAD:
        raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE)
    known = asked.member_id in group.members or group.reserved(asked.member_id)
    if not known and group.size >= coordinator.config.group_members_max:
        raise KafkaError(Code.GROUP_MAX_SIZE_REACHED)
    if not group.supports(asked.protocol_type, asked.protocols):
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
    if not asked.member_id:
        return await _join_without_id(coordinator, group, asked)
    if group.reserved(asked.member_id):
        return group.join(asked.member(asked.member_id), asked.protocol_type)
    return _join_again(group, asked)


async def _join_without_id(
    coordinator: Coordinator, group: ClassicGroup, asked: JoinRequest
) -> JoinAnswer:
    if asked.instance is not None:
        new_id = coordinator.new_member_id(asked.instance)
        known = group.static_members.find(asked.instance)
        if known is None:
            return group.join(asked.member(new_id), asked.protocol_type)
        return await _replace_static(coordinator, group, known, new_id, asked)
    new_id = coordinator.new_member_id(asked.client_id)
    if asked.known_id_required:
        group.reserve(new_id, asked.session_s)
        return join_answer(Code.MEMBER_ID_REQUIRED, new_id)
    return group.join(asked.member(new_id), asked.protocol_type)


async def _replace_static(
    coordinator: Coordinator,
    group: ClassicGroup,
    known: ClassicMember,
    new_id: str,
    asked: JoinRequest,
) -> JoinAnswer:
    """Replace a static member that is back without id: it keeps its part if the protocol stays."""
    leader_before, protocol_before = group.leader or "", group.protocol
    group.replace_static(known, new_id)
    group.update(known, asked.protocols, asked.session_s, asked.rebalance_s)
    if group.state != State.STABLE or group.vote() != protocol_before:
        return group.rejoin(known, asked.protocols, asked.session_s, asked.rebalance_s)
    code = await coordinator.log(group)
    if code:
        raise KafkaError(code)
    answer = group.current(new_id)
    if group.leader != new_id:
        return answer
    if asked.may_skip_assignment:
        return answer | {"skip_assignment": True}
    return answer | {"leader": leader_before, "members": ()}  # or it would assign anew


def _join_again(group: ClassicGroup, asked: JoinRequest) -> JoinAnswer:
    fault = group.member_fault(asked.member_id, asked.instance, -1)
    if fault:
        raise KafkaError(fault)
    if group.state == State.EMPTY:
        raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    member = group.members[asked.member_id]
    leads = group.leader == asked.member_id
    # It has not got the answer to an earlier request, or asks without need.
    up_to_date = group.state == State.COMPLETING or (group.state == State.STABLE and not leads)
    if up_to_date and member.protocols == asked.protocols:
        return group.current(asked.member_id)
    return group.rejoin(member, asked.protocols, asked.session_s, asked.rebalance_s)


# -- SyncGroup


async def sync(
    coordinator: Coordinator,
    group: Group | None,
    claim: MemberClaim,
    protocol: tuple[str, str] | None,
    assignments: Mapping[str, bytes],
) -> dict[str, Any]:
    """Return a SyncGroupResponse's fields: this member's assignment, once the leader's is logged.

    `protocol` is the type and the name that the member takes the group's to be, where it says so
    (KIP-559). Raise KafkaError.
    """
    if isinstance(group, ConsumerGroup):
        return await classic_members.sync(coordinator, group, claim, protocol)
    if isinstance(group, ShareGroup):
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
    group = _claimed(group, claim)
    if protocol is not None and protocol != (group.protocol_type, group.protocol):
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
    member = group.members[claim.member_id]
    if group.state == State.PREPARING:
        raise KafkaError(Code.REBALANCE_IN_PROGRESS)
    if group.state == State.STABLE:
        group.renew_session(member)
        return group.assignment_of(member)
    waiting = group.wait_for_sync(member)
    if group.leader == member.id:
        group.assign(assignments)
        await _log_assignment(coordinator, group)
    return await waiting.wait()


async def _log_assignment(coordinator: Coordinator, group: ClassicGroup) -> None:
    generation = group.generation
    with CancelScope(shield=True):  # others wait for this too
        code = await coordinator.log(group)
        if group.state == State.COMPLETING and group.generation == generation:
            if code:
                group.unassign(storage_code(code))
                group.rebalance()
            else:
                group.settle()


def _claimed(group: Group | None, claim: MemberClaim) -> ClassicGroup:
    """Return the group that a member of this generation speaks of. Raise KafkaError."""
    if not isinstance(group, ClassicGroup):
        raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    fault = group.member_fault(claim.member_id, claim.instance, claim.generation)
    if not fault and claim.generation != group.generation:
        fault = Code.ILLEGAL_GENERATION
    if fault or group.state == State.EMPTY:
        raise KafkaError(fault or Code.UNKNOWN_MEMBER_ID)
    return group


# -- Heartbeat


async def heartbeat(coordinator: Coordinator, group: Group | None, claim: MemberClaim) -> Code:
    """Return REBALANCE_IN_PROGRESS to ask the member to join again. Raise KafkaError."""
    if isinstance(group, ConsumerGroup):
        return await classic_members.heartbeat(coordinator, group, claim)
    group = _claimed(group, claim)
    group.renew_session(group.members[claim.member_id])
    return Code.REBALANCE_IN_PROGRESS if group.state == State.PREPARING else Code.NONE


# -- LeaveGroup


async def leave(
    coordinator: Coordinator, group: Group | None, leaving: Iterable[tuple[str, str | None]]
) -> list[Code]:
    """Return a code for each (member id, instance id); the latter may name a static member."""
    if isinstance(group, ConsumerGroup):
        with CancelScope(shield=True):  # finish the logging
            codes = await classic_members.leave(coordinator, group, leaving)
        return codes  # noqa: RET504 (mypy sees that the scope might end it)
    classic = group if isinstance(group, ClassicGroup) else None
    codes, pace = [], Pace()
    for member_id, instance in leaving:
        codes.append(_leave_one(classic, member_id, instance))
        await pace.step()
    return codes


def _leave_one(group: ClassicGroup | None, member_id: str, instance: str | None) -> Code:
    if group is None:
        return Code.UNKNOWN_MEMBER_ID
    if not member_id:
        member = None if instance is None else group.static_members.find(instance)
        member_id = "" if member is None else member.id
    elif group.drop_reserved(member_id):
        return Code.NONE
    fault = group.member_fault(member_id, instance, -1)
    if not fault:
        group.remove(member_id)
    return fault
