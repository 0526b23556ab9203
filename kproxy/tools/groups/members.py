"""A group's state and members, by the API that describes groups of its type."""

import struct
from dataclasses import dataclass, field
from typing import Any

from kproxy.protocol.name_search import NameSearch
from kproxy.tools.client import Client, Refused, checked

_CLASSIC = (15, 5)
_APIS = {"consumer": (69, 1), "share": (77, 1), "streams": (89, 0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLine:
    """A member. `reads`: queues with their partitions; None: its protocol is its own."""

    member: str
    client: str
    host: str
    epoch: int | None = None
    instance: str | None = None
    reads: dict[str, list[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A group as its coordinator describes it."""

    group: str
    type: str
    state: str
    protocol: str
    epoch: int | None = None
    members: list[MemberLine] = field(default_factory=list)


def listed(client: Client, group: str) -> Any:
    """Return a group's line of the list of all. Raises Refused."""
    for one in client.groups(NameSearch(group, first=group, limit=1)):
        if one.group_id == group:
            return one
    raise Refused(f"there is no group {group}; `kproxy groups` lists those there are")


def group_state(client: Client, group: str) -> GroupState:
    """Return how a group stands. Raises Refused."""
    kind = listed(client, group).group_type
    key, version = _APIS.get(kind, _CLASSIC)
    names = "groups" if (key, version) == _CLASSIC else "group_ids"
    values = {"include_authorized_operations": False, names: (group,)}
    for node in client.by_coordinator([group]):
        for one in client.call(key, version, values, node).groups:
            checked(one.error_code, f"group {group}")
            return _classic(one, kind) if names == "groups" else _assigned(one, kind)
    raise Refused(f"group {group} has no coordinator now: ask again")


def _classic(one: Any, kind: str) -> GroupState:
    members = [
        MemberLine(
            member=member.member_id, client=member.client_id, host=member.client_host,
            instance=member.group_instance_id,
            reads=_consumers_assignment(member.member_assignment)
            if one.protocol_type == "consumer" else None,
        )
        for member in one.members
    ]  # fmt: skip
    return GroupState(
        group=one.group_id, type=kind, state=one.group_state, protocol=one.protocol_data,
        members=members,
    )  # fmt: skip


def _assigned(one: Any, kind: str) -> GroupState:
    members = [
        MemberLine(
            member=member.member_id, client=member.client_id, host=member.client_host,
            epoch=member.member_epoch, instance=getattr(member, "instance_id", None),
            reads=_reads(getattr(member.assignment, "topic_partitions", None)),
        )
        for member in one.members
    ]  # fmt: skip
    return GroupState(
        group=one.group_id, type=kind, state=one.group_state, epoch=one.group_epoch,
        protocol=getattr(one, "assignor_name", ""), members=members,
    )  # fmt: skip


def _reads(assigned: Any) -> dict[str, list[int]] | None:
    if assigned is None:  # tasks of Kafka Streams are no partitions
        return None
    return {topic.topic_name: sorted(topic.partitions) for topic in assigned}


def _consumers_assignment(data: bytes) -> dict[str, list[int]] | None:
    """Return what a classic member's bytes assign; None: they are no consumer's."""
    found: dict[str, list[int]] = {}
    try:
        (topics,) = struct.unpack_from(">i", data, 2) if data else (0,)
        at = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, at)
            name, at = data[at + 2 : at + 2 + length].decode(), at + 2 + length
            (count,) = struct.unpack_from(">i", data, at)
            if length < 0 or not 0 <= count <= len(data):
                return None
            found[name] = sorted(struct.unpack_from(f">{count}i", data, at + 4))
            at += 4 + 4 * count
    except (struct.error, UnicodeDecodeError):
        return None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LagLine:
    """A partition that a group has an offset on. `end`, `lag`: None where nobody serves it."""

    queue: str
    partition: int
    committed: int
    end: int | None
    lag: int | None


def lag_lines(client: Client, group: str) -> list[LagLine]:
    """Return each partition that a group has an offset on, the furthest behind first."""
    offsets = client.committed([group]).get(group, {})
    ends = client.offsets(client.leaders(sorted({name for name, _ in offsets})), -1)
    lines = []
    for (name, index), committed in offsets.items():
        end = ends.get((name, index))
        lag = None if end is None else max(0, end - committed)
        lines.append(LagLine(queue=name, partition=index, committed=committed, end=end, lag=lag))
    return sorted(lines, key=lambda one: (-(one.lag or 0), one.queue, one.partition))
