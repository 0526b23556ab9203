"""JoinGroup (11), SyncGroup (14), Heartbeat (12), LeaveGroup (13): the classic protocol.

Rules and codes follow Kafka's `GroupMetadataManager` (4.3).
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from anyio import CancelScope

from kproxy.errors import Code, KafkaError
from kproxy.groups import classic_members
from kproxy.groups.classic_group import ClassicGroup
from kproxy.groups.classic_member import ClassicMember, Promise
from kproxy.groups.classic_states import State, join_answer, sync_answer
from kproxy.groups.consumer_group import ConsumerGroup
from kproxy.groups.coordinator import Coordinator
from kproxy.virtual.partitioner import group_is_too_long
from kproxy.worker.worker import Request, Worker

_MEMBER_BYTES = 600  # of an answer, about
_KNOWN_ID_REQUIRED = 4  # JoinGroup version from which on a new member first gets an id (KIP-394)
_NO_PROTOCOL_NAME = 7
_PROTOCOL_SAID = 5  # SyncGroup version (KIP-559)
_SKIP_ASSIGNMENT = 9
_BATCHED_LEAVE = 3


def coordinator_of(worker: Worker, group: str, *, named: bool = True) -> Coordinator:
    """Raises KafkaError where the id is none, the group another worker's, or being deleted.

    Not `named`: an empty id is one, as for offsets in Kafka.
    """
    if (named and not group) or group_is_too_long(group):
        raise KafkaError(Code.INVALID_GROUP_ID)
    coordinator = worker.groups.of(worker.coordinated(group))
    if coordinator.going(group):
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)
    return coordinator


def _protocols(body: Any) -> tuple[tuple[str, bytes], ...]:
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols)


class _Join:
    """One JoinGroup request."""

    def __init__(self, worker: Worker, request: Request) -> None:
        body = request.body
        self.coordinator = coordinator_of(worker, body.group_id)
        self.group_id: str = body.group_id
        self.version = request.version
        self.member_id: str = body.member_id
        self.instance: str | None = getattr(body, "group_instance_id", None)
        self.client_id = request.header.client_id or ""
        self.host = request.host
        self.session_s = body.session_timeout.total_seconds()
        rebalance = getattr(body, "rebalance_timeout", body.session_timeout)
        self.rebalance_s = rebalance.total_seconds()
        self.protocol_type: str = body.protocol_type
        self.protocols = _protocols(body)
        config = worker.config
        low, high = config.group_session_ms_min, config.group_session_ms_max
        if not low <= self.session_s * 1000 <= high:
            raise KafkaError(Code.INVALID_SESSION_TIMEOUT)
        self.members_max = config.group_members_max
        self.group: ClassicGroup

    async def answer(self) -> Mapping[str, Any]:
        found = await self.coordinator.load(self.group_id)
        if self.member_id and found is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID)
        if isinstance(found, ConsumerGroup) and found.members:
            with CancelScope(shield=True):  # what is begun is logged
                answer = await self._join_consumer_group(found)
            return answer  # noqa: RET504 (mypy sees that the scope might end it)
        self.group = await self.coordinator.open_classic(self.group_id)
        try:
            waiting = await self._joined()
        except KafkaError:
            if self.group.idle:
                self.coordinator.forget(self.group)
            raise
        return await waiting.wait() if isinstance(waiting, Promise) else waiting

    async def _join_consumer_group(self, group: ConsumerGroup) -> dict[str, Any]:
        if self.member_id not in group.members and len(group.members) >= self.members_max:
            raise KafkaError(Code.GROUP_MAX_SIZE_REACHED)
        return await classic_members.join(
            self.coordinator,
            group,
            self._member(self.member_id),
            self.protocol_type,
            self.version >= _KNOWN_ID_REQUIRED,
        )

    async def _joined(self) -> Promise[dict[str, Any]] | dict[str, Any]:
        group = self.group
        if group.state == State.DEAD:
            raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE)
        known = self.member_id in group.members or group.reserved(self.member_id)
        if not known and group.size >= self.members_max:
            raise KafkaError(Code.GROUP_MAX_SIZE_REACHED)
        if not group.supports(self.protocol_type, {name for name, _ in self.protocols}):
            raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
        if not self.member_id:
            return await self._new()
        if group.reserved(self.member_id):
            return group.join(self._member(self.member_id), self.protocol_type)
        return self._known()

    def _member(self, member_id: str) -> ClassicMember:
        return ClassicMember(
            member_id, self.instance, self.client_id, self.host, self.session_s, self.rebalance_s,
            self.protocols,
        )  # fmt: skip

    async def _new(self) -> Promise[dict[str, Any]] | dict[str, Any]:
        group = self.group
        if self.instance is not None:
            new_id = f"{self.instance}-{uuid.uuid4()}"
            if group.of_instance(self.instance) is None:
                return group.join(self._member(new_id), self.protocol_type)
            return await self._static_again(self.instance, new_id)
        if self.version >= _KNOWN_ID_REQUIRED:
            new_id = group.reserve(self.client_id, self.session_s)
            return join_answer(Code.MEMBER_ID_REQUIRED, new_id)
        return group.join(self._member(f"{self.client_id}-{uuid.uuid4()}"), self.protocol_type)

    async def _static_again(
        self, instance: str, new_id: str
    ) -> Promise[dict[str, Any]] | dict[str, Any]:
        """A static member is back without its id: it keeps its part if the protocol stays."""
        group = self.group
        leader_before = group.leader or ""
        before = group.protocol
        member = group.replace_static(instance, new_id)
        group.update(member, self.protocols, self.session_s, self.rebalance_s)
        if group.state != State.STABLE or group.vote() != before:
            return group.rejoin(member, self.protocols, self.session_s, self.rebalance_s)
        code = await self.coordinator.log(group)
        if code:
            raise KafkaError(code)
        answer = group.current(new_id)
        if group.leader != new_id:
            return answer
        if self.version >= _SKIP_ASSIGNMENT:
            return answer | {"skip_assignment": True}
        return answer | {"leader": leader_before, "members": ()}  # or it would assign anew

    def _known(self) -> Promise[dict[str, Any]] | dict[str, Any]:
        group = self.group
        fault = group.member_fault(self.member_id, self.instance, -1)
        if fault:
            raise KafkaError(fault)
        member = group.members[self.member_id]
        same = member.protocols == self.protocols
        leads = group.leader == self.member_id
        if group.state == State.EMPTY:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID)
        # It has not got the answer to an earlier request, or asks without need.
        if same and (
            group.state == State.COMPLETING or (group.state == State.STABLE and not leads)
        ):
            return group.current(self.member_id)
        return group.rejoin(member, self.protocols, self.session_s, self.rebalance_s)


async def join(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A JoinGroupResponse, when the rebalance has come so far."""
    try:
        answer = await _Join(worker, request).answer()
    except KafkaError as error:
        given = request.body.member_id
        kept = error.code not in (Code.INVALID_SESSION_TIMEOUT, Code.GROUP_MAX_SIZE_REACHED)
        answer = join_answer(error.code, given if kept else "")
    if not answer["protocol_name"] and request.version >= _NO_PROTOCOL_NAME:
        answer = {**answer, "protocol_name": None}
    return answer


async def sync(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A SyncGroupResponse: this member's assignment, once the leader's is logged."""
    try:
        return await _synced(worker, request)
    except KafkaError as error:
        return sync_answer(error.code)


async def _synced(worker: Worker, request: Request) -> Mapping[str, Any]:
    body = request.body
    coordinator = coordinator_of(worker, body.group_id)
    found = await coordinator.load(body.group_id)
    if isinstance(found, ConsumerGroup):
        return await classic_members.sync(coordinator, found, body)
    group = _member_group(found, body)
    if request.version >= _PROTOCOL_SAID and (body.protocol_type, body.protocol_name) != (
        group.protocol_type,
        group.protocol,
    ):
        raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
    member = group.members[body.member_id]
    if group.state == State.PREPARING:
        raise KafkaError(Code.REBALANCE_IN_PROGRESS)
    if group.state == State.STABLE:
        group.heard(member)
        return group.assignment_of(member)
    waiting = group.wait_for_sync(member)
    if group.leader == member.id:
        generation = group.generation
        group.assign({a.member_id: bytes(a.assignment) for a in body.assignments})
        with CancelScope(shield=True):  # others wait for this too
            code = await coordinator.log(group)
            if group.state == State.COMPLETING and group.generation == generation:
                if code:
                    group.unassign(storage_code(code))
                    group.rebalance()
                else:
                    group.settle()
    return await waiting.wait()


def storage_code(code: Code) -> Code:
    """What Kafka's coordinator says when its log cannot be written."""
    if code == Code.MESSAGE_TOO_LARGE:
        return Code.UNKNOWN_SERVER_ERROR
    return Code.COORDINATOR_NOT_AVAILABLE


def _member_group(group: Any, body: Any) -> ClassicGroup:
    """The group that a member of this generation speaks of. Raises KafkaError."""
    if not isinstance(group, ClassicGroup):
        raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    instance = getattr(body, "group_instance_id", None)
    fault = group.member_fault(body.member_id, instance, body.generation_id)
    if not fault and body.generation_id != group.generation:
        fault = Code.ILLEGAL_GENERATION
    if fault or group.state == State.EMPTY:
        raise KafkaError(fault or Code.UNKNOWN_MEMBER_ID)
    return group


async def heartbeat(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A HeartbeatResponse; REBALANCE_IN_PROGRESS asks the member to join again."""
    body = request.body
    try:
        coordinator = coordinator_of(worker, body.group_id)
        found = await coordinator.load(body.group_id)
        if isinstance(found, ConsumerGroup):
            return {"error_code": await classic_members.heartbeat(coordinator, found, body)}
        group = _member_group(found, body)
    except KafkaError as error:
        return {"error_code": error.code}
    group.heard(group.members[body.member_id])
    rebalancing = group.state == State.PREPARING
    return {"error_code": Code.REBALANCE_IN_PROGRESS if rebalancing else Code.NONE}


async def leave(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A LeaveGroupResponse; members are named one by one, static ones by their instance."""
    body = request.body
    try:
        coordinator = coordinator_of(worker, body.group_id)
    except KafkaError as error:
        return {"error_code": error.code, "members": ()}
    batched = request.version >= _BATCHED_LEAVE
    leaving: Iterable[tuple[str, str | None]] = [(getattr(body, "member_id", ""), None)]
    if batched:
        leaving = ((one.member_id, one.group_instance_id) for one in body.members)
    group = await coordinator.load(body.group_id)
    codes = []
    if isinstance(group, ConsumerGroup):
        with CancelScope(shield=True):  # what is begun is logged
            codes = await classic_members.leave(coordinator, group, leaving)
    else:
        for member_id, instance in leaving:
            codes.append(_left(group, member_id, instance))
            await request.budget.step()
    if not batched:
        return {"error_code": codes[0]}
    answers = []
    for one, code in zip(body.members, codes, strict=True):
        label = {"member_id": one.member_id, "group_instance_id": one.group_instance_id}
        answers.append(label | {"error_code": code})
        await request.budget.step(_MEMBER_BYTES)
    return {"error_code": Code.NONE, "members": answers}


def _left(group: ClassicGroup | None, member_id: str, instance: str | None) -> Code:
    if group is None:
        return Code.UNKNOWN_MEMBER_ID
    if not member_id and instance is not None:
        member_id = group.of_instance(instance) or ""
    elif instance is None and group.drop_reserved(member_id):
        return Code.NONE
    fault = group.member_fault(member_id, instance, -1)
    if not fault:
        group.remove(member_id)
    return fault
