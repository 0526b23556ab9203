"""The common part of the heartbeats of consumer, share and streams groups.

Rules, order of checks, codes and messages follow Kafka's `GroupMetadataManager` (4.3).
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from anyio import CancelScope

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.coordinator import Coordinator, storage_code
from kproxy.groups.model.assigned_group import AssignedGroup
from kproxy.groups.model.assigned_member import AssignedMember
from kproxy.loop.steps import done, once_in_order

JOIN_EPOCH, LEAVE_EPOCH = 0, -1


class Asked(Protocol):
    """The fields by which any heartbeat says whose it is."""

    @property
    def group_id(self) -> str: ...
    @property
    def member_id(self) -> str: ...
    @property
    def member_epoch(self) -> int: ...


G = TypeVar("G", bound=AssignedGroup[Any])
A = TypeVar("A", bound=Asked)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """The fields of a member's heartbeat. None is for what has not changed since the last."""

    group_id: str
    member_id: str
    member_epoch: int
    rack: str | None
    topics: Collection[str] | None
    client_id: str
    host: str

    @property
    def joins(self) -> bool:
        return self.member_epoch == JOIN_EPOCH


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer to a member; `assigned` is None if that has not changed."""

    member_id: str
    member_epoch: int
    assigned: PartitionSet | None


def refuse_first(problems: Iterable[tuple[bool, str]]) -> None:
    """Raise KafkaError (INVALID_REQUEST) for the first problem that was found."""
    for found, message in problems:
        if found:
            raise KafkaError(Code.INVALID_REQUEST, message)


def id_problems(asked: HeartbeatRequest) -> list[tuple[bool, str]]:
    """Return whether the ids of a request are empty, with what to say of it."""
    return [
        (not asked.group_id.strip(), "GroupId can't be empty."),
        (asked.rack is not None and not asked.rack.strip(), "RackId can't be empty."),
    ]


def unknown(asked: Asked) -> KafkaError:
    message = f"Member {asked.member_id} is not a member of group {asked.group_id}."
    return KafkaError(Code.UNKNOWN_MEMBER_ID, message)


def check_room(group: AssignedGroup[Any], members_max: int) -> None:
    """Raise KafkaError if a group takes no more members."""
    if len(group.members) >= members_max:
        raise KafkaError(
            Code.GROUP_MAX_SIZE_REACHED,
            f"The {group.kind} group has reached its maximum capacity of {members_max} members.",
        )


def fenced(
    group: AssignedGroup[Any], member: AssignedMember, epoch: int, why: str = ""
) -> KafkaError:
    """Return the fault of a member that is not as far as the group knows it to be."""
    how = "greater" if epoch > member.epoch else "smaller"
    return KafkaError(
        Code.FENCED_MEMBER_EPOCH,
        f"The {group.kind} group member has a {how} member epoch ({epoch}) than the one known by"
        f" the group coordinator ({member.epoch}){why}. The member must abandon all its partitions"
        " and rejoin.",
    )


async def update(
    group: AssignedGroup[Any], member: AssignedMember, asked: HeartbeatRequest,
    regex: str | None = None, **more: object,
) -> bool:  # fmt: skip
    """Take over what the request says; return whether the subscription changed.

    `more`: other attributes of the member; None for what is not said.
    """
    there = member.id in group.members
    said = {"client_id": asked.client_id, "host": asked.host, "rack": asked.rack, **more}
    for name, value in said.items():
        if value is not None and value != getattr(member, name):
            setattr(member, name, value)
            if there:
                group.changed.add(member.id)
    topics = member.topics
    if asked.topics is not None:
        topics = tuple(await done(once_in_order(asked.topics)))
    regex = member.regex if regex is None else regex
    if (topics, regex) == (member.topics, member.regex):
        return False
    group.subscribe(member, topics, regex)
    if there:
        group.changed.add(member.id)
    return True


def result_of(member: AssignedMember, before: PartitionSet, *, whole: bool) -> HeartbeatResult:
    """Return what a member is told: what it has, if that has changed, or if it is `whole`."""
    whole = whole or (member.assigned is not before and member.assigned != before)
    return HeartbeatResult(member.id, member.epoch, member.assigned if whole else None)


async def change(
    coordinator: Coordinator, group: G | None, asked: A,
    leave: Callable[[Coordinator, G, A], Awaitable[R]],
    stay: Callable[[Coordinator, G, A], Awaitable[R]], kind: str,
) -> R:  # fmt: skip
    """Let a member leave or stay, under its group's lock, and finish the logging of that.

    `kind`: the group's, where there is none. Raise KafkaError: it is no group or no member,
    nothing was changed, or the log failed.
    """
    leaves = asked.member_epoch == LEAVE_EPOCH
    if group is None:
        if coordinator.head(asked.group_id) is not None:
            raise unknown(asked)
        what = "Group" if leaves else kind
        raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"{what} {asked.group_id} not found.")
    with CancelScope(shield=True):
        async with group.lock:
            try:
                if group.ended or not coordinator.has(group):
                    raise KafkaError(Code.NOT_COORDINATOR)
                result = await (leave if leaves else stay)(coordinator, group, asked)
            finally:
                if group.idle:
                    coordinator.forget(group)
    return result


async def log(coordinator: Coordinator, group: AssignedGroup[Any]) -> None:
    """Log the changes of a group whose lock is held. Raise KafkaError."""
    if code := await coordinator.log_changes(group):
        raise KafkaError(storage_code(code))
