"""DescribeGroups (15), ListGroups (16), DeleteGroups (42)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anyio import CancelScope, create_task_group

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.classic_group import ClassicGroup
from kproxy.groups.model.classic_states import State
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.needs import GroupNeeds
from kproxy.handlers.common.permitted import group_operations, need_group
from kproxy.handlers.common.refusals import NO_ERROR, said
from kproxy.loop.pace import slices
from kproxy.protocol.responses import UNKNOWN_OPERATIONS
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.virtual.counts import GROUP_KINDS
from kproxy.virtual.rows.groups import GroupRow
from kproxy.worker.request import Request

_DELETED_AT_ONCE = 500
_BEGUN_AT_ONCE = 100  # in some milliseconds of the loop
_GROUP_BYTES, _LISTED_BYTES, _MEMBER_BYTES = 900, 400, 1000  # about, until they are encoded
_NOT_FOUND_SAID = 6  # DescribeGroups version from which on a group may not be found (KIP-1043)
_TYPES = {kind: kind for kind in GROUP_KINDS} | {"offsets": "classic"}


async def describe(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeGroupsResponse: classic groups with their members."""
    groups = []
    for name in request.body.groups:
        answer = await _described(worker, request, name)
        groups.append(answer)
        await request.budget.step(_GROUP_BYTES + _size(answer["members"]))
    return {"groups": groups}


def _size(members: Sequence[dict[str, Any]]) -> int:
    data = sum(len(m["member_metadata"]) + len(m["member_assignment"]) for m in members)
    return len(members) * _MEMBER_BYTES + 2 * data


async def _described(worker: GroupNeeds, request: Request, group_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        **NO_ERROR,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
        "authorized_operations": UNKNOWN_OPERATIONS,
    }
    try:
        need_group(request, Op.DESCRIBE, group_id)
        coordinator = coordinator_of(worker, group_id, named=False)
    except KafkaError as error:
        return answer | {"error_code": error.code}
    group, head = await coordinator.load(group_id), coordinator.head(group_id)
    is_empty = head is not None and _TYPES[head.kind] == "classic"
    if request.version < _NOT_FOUND_SAID or is_empty or isinstance(group, ClassicGroup):
        answer |= {"authorized_operations": group_operations(request, group_id)}
    if isinstance(group, ClassicGroup):
        return answer | _members(group)
    if head is not None and is_empty:
        return answer | {
            "group_state": State.EMPTY,
            "protocol_type": head.values.get("protocol_type") or "",
        }
    answer |= {"group_state": State.DEAD}
    if request.version >= _NOT_FOUND_SAID:
        what = "is not a classic group" if head is not None else "not found"
        answer |= said(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
    return answer


def _members(group: ClassicGroup) -> dict[str, Any]:
    stable = group.state == State.STABLE
    return {
        "group_state": group.state,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if stable else "",
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "client_id": member.client_id,
                "client_host": member.host,
                "member_metadata": member.metadata(group.protocol) if stable else b"",
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }


async def list_groups(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a ListGroupsResponse: the groups that this worker coordinates."""
    body = request.body
    states = {state.lower() for state in getattr(body, "states_filter", ())}
    types = {kind.lower() for kind in getattr(body, "types_filter", ())}
    groups = []
    permits = request.permits
    every = permits.all or permits.sees(Op.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    for shard in worker.routes.all():
        for listed in _listed(worker.groups.of(shard)):
            await request.budget.step()
            if states and listed["group_state"].lower() not in states:
                continue
            if types and listed["group_type"].lower() not in types:
                continue
            if not every and not permits.sees(Op.DESCRIBE, Resource.GROUP, listed["group_id"]):
                continue
            groups.append(listed)
            size = _LISTED_BYTES + len(listed["group_id"]) + len(listed["protocol_type"])
            await request.budget.step(size)
    return {"error_code": Code.NONE, "groups": groups}


def _listed(coordinator: Coordinator) -> Iterator[dict[str, Any]]:
    unlogged = dict(coordinator.groups)
    for group_id, head in coordinator.listed():
        if head.going:
            coordinator.going(group_id)
        yield _one(group_id, head, unlogged.pop(group_id, None))
    for group_id, group in unlogged.items():
        yield _one(group_id, GroupRow(version=-1), group)


def _one(group_id: str, head: GroupRow, group: Any) -> dict[str, Any]:
    kind = head.kind if group is None else group.kind
    if group is not None:
        state, protocol_type = group.state, group.protocol_type or ""
    else:
        # A group that was just taken over is read again when somebody asks for it.
        state = State.STABLE if head.members else State.EMPTY
        protocol_type = head.values.get("protocol_type") or ""
    return {
        "group_id": group_id,
        "protocol_type": protocol_type,
        "group_state": str(state),
        "group_type": _TYPES[kind],
    }


async def delete(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Delete groups with all their offsets; return a DeleteGroupsResponse."""
    results: list[dict[str, Any]] = []
    for some in slices(dict.fromkeys(request.body.groups_names), _DELETED_AT_ONCE):
        lot: list[dict[str, Any]] = [{"group_id": group_id} for group_id in some]
        await request.budget.step(_LISTED_BYTES * len(lot))
        async with create_task_group() as tasks:  # so that one commit takes them all
            for begun in slices(lot, _BEGUN_AT_ONCE):
                for result in begun:
                    tasks.start_soon(_delete, worker, request, result)
                await request.budget.rest()
        results += lot
    return {"results": results}


async def _delete(worker: GroupNeeds, request: Request, result: dict[str, Any]) -> None:
    """Delete a group, and note in its answer what became of it."""
    group_id = result["group_id"]
    result["error_code"] = Code.GROUP_ID_NOT_FOUND
    try:
        need_group(request, Op.DELETE, group_id)
        if group_id:
            coordinator = coordinator_of(worker, group_id)
            with CancelScope(shield=True):  # finish what is begun
                result["error_code"] = await coordinator.delete(group_id)
    except KafkaError as error:
        result["error_code"] = error.code
