"""JoinGroup (11), SyncGroup (14), Heartbeat (12), LeaveGroup (13): the classic protocol.

The rules are in `groups.requests.classic_protocol`.
"""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.model.classic_states import join_answer, sync_answer
from kproxy.groups.requests import classic_protocol
from kproxy.groups.requests.classic_members import MemberClaim
from kproxy.groups.requests.classic_protocol import JoinRequest
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.needs import GroupNeeds
from kproxy.handlers.common.permitted import need_group
from kproxy.security.acls import Op
from kproxy.worker.request import Request

_MEMBER_BYTES = 600  # bytes of an answer, about
_KNOWN_ID_REQUIRED = 4  # JoinGroup version from which on a new member first gets an id (KIP-394)
_NO_PROTOCOL_NAME = 7
_PROTOCOL_SAID = 5  # SyncGroup version (KIP-559)
_SKIP_ASSIGNMENT = 9
_BATCHED_LEAVE = 3
_NAMELESS = (
    Code.INVALID_SESSION_TIMEOUT, Code.GROUP_MAX_SIZE_REACHED, Code.GROUP_AUTHORIZATION_FAILED,
)  # fmt: skip
"""Refusals of a join that do not say which member it is."""


async def join(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a JoinGroupResponse, when the rebalance has come so far."""
    body = request.body
    try:
        need_group(request, Op.READ, body.group_id)
        coordinator = coordinator_of(worker, body.group_id)
        answer = await classic_protocol.join(coordinator, _join_request(request))
    except KafkaError as error:
        kept = error.code not in _NAMELESS
        answer = join_answer(error.code, body.member_id if kept else "")
    if not answer["protocol_name"] and request.version >= _NO_PROTOCOL_NAME:
        answer = {**answer, "protocol_name": None}
    return answer


def _join_request(request: Request) -> JoinRequest:
    body = request.body
    rebalance = getattr(body, "rebalance_timeout", body.session_timeout)
    return JoinRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance=getattr(body, "group_instance_id", None),
        client_id=request.header.client_id or "",
        host=request.host,
        session_s=body.session_timeout.total_seconds(),
        rebalance_s=rebalance.total_seconds(),
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
        known_id_required=request.version >= _KNOWN_ID_REQUIRED,
        may_skip_assignment=request.version >= _SKIP_ASSIGNMENT,
    )


def _claim(body: Any) -> MemberClaim:
    instance = getattr(body, "group_instance_id", None)
    return MemberClaim(body.member_id, instance, body.generation_id)


async def sync(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a SyncGroupResponse: this member's assignment, once the leader's is logged."""
    body, protocol = request.body, None
    try:
        need_group(request, Op.READ, body.group_id)
        if request.version >= _PROTOCOL_SAID:
            if body.protocol_type is None or body.protocol_name is None:
                raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL)
            protocol = body.protocol_type, body.protocol_name
        coordinator = coordinator_of(worker, body.group_id)
        group = await coordinator.load(body.group_id)
        assignments = {one.member_id: bytes(one.assignment) for one in body.assignments}
        return await classic_protocol.sync(coordinator, group, _claim(body), protocol, assignments)
    except KafkaError as error:
        return sync_answer(error.code)


async def heartbeat(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a HeartbeatResponse; REBALANCE_IN_PROGRESS tells the member to join again."""
    body = request.body
    try:
        need_group(request, Op.READ, body.group_id)
        coordinator = coordinator_of(worker, body.group_id)
        group = await coordinator.load(body.group_id)
        code = await classic_protocol.heartbeat(coordinator, group, _claim(body))
    except KafkaError as error:
        code = error.code
    return {"error_code": code}


async def leave(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a LeaveGroupResponse; members are named one by one, static ones by their instance."""
    body = request.body
    try:
        need_group(request, Op.READ, body.group_id)
        coordinator = coordinator_of(worker, body.group_id)
    except KafkaError as error:
        return {"error_code": error.code, "members": ()}
    group = await coordinator.load(body.group_id)
    if request.version < _BATCHED_LEAVE:
        (code,) = await classic_protocol.leave(coordinator, group, [(body.member_id, None)])
        return {"error_code": code}
    leaving = ((one.member_id, one.group_instance_id) for one in body.members)
    codes = await classic_protocol.leave(coordinator, group, leaving)
    answers = []
    for one, code in zip(body.members, codes, strict=True):
        label = {"member_id": one.member_id, "group_instance_id": one.group_instance_id}
        answers.append(label | {"error_code": code})
        await request.budget.step(_MEMBER_BYTES)
    return {"error_code": Code.NONE, "members": answers}
