"""A group whose coordinator decides which member has which partitions (KIP-848, KIP-932).

A member learns it from the answers to its heartbeats. The members' rows hold all of it, so a new
coordinator continues where the old one stopped. Only sessions start anew there: a silent member
gets a whole session again.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from anyio import Lock

from kproxy.common.errors import Code
from kproxy.groups.assigning.assignors import Target
from kproxy.groups.model.assigned_member import AssignedMember
from kproxy.groups.model.counters import SubscriptionCounts
from kproxy.groups.upkeep.timers import Alarms, Timers
from kproxy.loop.steps import Steps
from kproxy.metadata.group_settings import GroupSettings
from kproxy.virtual.rows.groups import NO_VERSION, Change, GroupRow, Row, Rows
from kproxy.virtual.rows.queues import Queue

_FENCED_WITHIN_S = 1.0
_LOGGED_BYTES = 4 << 20  # bytes of one command, about
_SESSION = "session"
_ROWS = 32  # take as long as `EVERY` partitions

Still = Callable[[], bool]
"""Whether a member's time is over still."""
Fenced = list[tuple[Any, Still]]
Member = TypeVar("Member", bound=AssignedMember)


class State(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class AssignmentResult(NamedTuple):
    """A target as an assignor made it, for the members that there were."""

    epoch: int
    assignor: str
    target: Target
    instances: dict[str, str]  # instance ids by member id


class AssigningCoordinator(Protocol):
    """The services of its coordinator that a group needs."""

    timers: Timers

    @property
    def settings_of(self) -> Callable[[str], GroupSettings]:
        """The settings of a group, asked at each use."""
        ...

    def now(self) -> float: ...
    @property
    def fence_soon(self) -> Callable[["AssignedGroup[Any]", Any, Still], None]:
        """Take a member out that was not heard of, or did not give up in time; if it still is so
        when its turn comes."""
        ...


class AssignedGroup(Generic[Member]):
    """A group, changed only under `lock`; `changed` and `gone` are members to log."""

    kind: ClassVar[str]
    protocol_type: ClassVar[str]

    def __init__(self, group_id: str, coordinator: AssigningCoordinator) -> None:
        self.id = group_id
        self._coordinator = coordinator
        self.alarms = Alarms(coordinator.timers)
        self.members: dict[str, Member] = {}
        self.epoch = self.target_epoch = 1  # as Kafka counts
        self.assign_again_at = 0.0
        self.topology = 0  # hash of the queues that the target was made for
        self.version = NO_VERSION
        self.lock = Lock()
        self.changed: set[str] = set()
        self.gone: set[str] = set()
        self.ended = False
        self.resolved: dict[str, frozenset[str]] = {}  # names by regex
        self.resolved_changes = -1  # the catalogue's changes when it was last looked at
        self.refresh_again_at = self.resolve_again_at = 0.0
        self.resolving = self.assigning = False  # beside what members ask for
        self.subscription_counts = SubscriptionCounts()
        self._logged: dict[str, Any] | None = None  # the head's values

    # -- rows

    def begin_restoring(self, head: GroupRow) -> None:
        """Become what the rows say; everybody has a whole session to be heard of again."""
        self.version = head.version
        self.epoch = head.values["epoch"]
        self.target_epoch = head.values["target_epoch"]
        self.topology = head.values["topology"]
        self._logged = head.values

    def restore(self, member_id: str, row: Row) -> Steps[None]:
        raise NotImplementedError

    def end_restoring(self) -> None:
        self.changed.clear()

    def values(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "target_epoch": self.target_epoch,
            "topology": self.topology,
            "protocol_type": self.protocol_type,
        }

    def change(self) -> Steps[Change]:
        """Return what to log next; the first part, if it is more than one command holds.

        Until the last part is logged the group stands as it did: without it, what was meant is
        decided anew, by a new coordinator.
        """
        rows: Rows = dict.fromkeys(self.gone)
        size, count = 0, len(self.members)
        for number, member_id in enumerate(self.changed, 1):
            member = self.members[member_id]
            size += member.weight
            if number > 1 and size > _LOGGED_BYTES and self._logged is not None:
                return Change(self._logged, count, rows)
            rows[member_id] = yield from member.row()
            if number % _ROWS == 0:
                yield
        return Change(self.values(), count, rows)

    def was_logged(self, change: Change) -> None:
        self._logged = change.values
        self.changed.difference_update(change.rows)
        self.gone.difference_update(change.rows)

    @property
    def unlogged(self) -> bool:
        return bool(self.changed or self.gone)

    @property
    def idle(self) -> bool:
        return not self.members

    @property
    def state(self) -> State:
        if self.ended:
            return State.DEAD
        return State.STABLE if self.members else State.EMPTY

    # -- members

    def put(self, member: Member) -> None:
        """Put a member in as it is from now on."""
        known = self.members.get(member.id)
        if known is not member:
            if known is not None:
                self._count(known, -1)
            self._count(member, 1)
        if known is None or known.deadline == 0:
            member.deadline = self._coordinator.now() + self._session_s(member)
            self._watch(member)
        self.members[member.id] = member
        self.changed.add(member.id)
        self.gone.discard(member.id)

    def remove(self, member_id: str) -> None:
        self._count(self.members.pop(member_id), -1)
        self.alarms.cancel((_SESSION, member_id))
        self.changed.discard(member_id)
        self.gone.add(member_id)

    def _count(self, member: Member, by: int) -> None:
        """Count what a member is there with, once more or once less."""
        self.subscription_counts.count(member, by)

    def subscribe(self, member: Member, topics: tuple[str, ...], regex: str = "") -> None:
        """Set what a member reads from now on."""
        there = self.members.get(member.id) is member
        if there:
            self.subscription_counts.count(member, -1)
        member.topics, member.regex = topics, regex
        if there:
            self.subscription_counts.count(member, 1)

    def rebalance_without(self) -> None:
        """Rebalance after members were taken out; others get another target."""
        self.epoch += 1

    def _session_s(self, member: Member) -> float:
        raise NotImplementedError

    def renew_session(self, member: Member) -> None:
        """Give it a whole session again; watch the shorter one of two deadlines anew."""
        before = member.deadline
        member.deadline = self._coordinator.now() + self._session_s(member)
        if member.deadline < before:
            self._watch(member)

    def _watch(self, member: Member) -> None:
        member_id = member.id
        self.alarms.set(
            (_SESSION, member_id), member.deadline, lambda now: self._expire(member_id, now)
        )

    def _expire(self, member_id: str, now: float) -> float | None:
        member = self.members.get(member_id)
        if member is None or self.ended:
            return None
        if member.deadline > now:
            return member.deadline
        self._coordinator.fence_soon(
            self, member, lambda: member.deadline <= self._coordinator.now()
        )
        return now + _FENCED_WITHIN_S  # by then it has been taken out, or been heard of

    def commit_fault(self, member_id: str, instance: str | None, epoch: int, version: int) -> Code:
        raise NotImplementedError

    # -- the queues that they read

    def unresolved(self) -> bool:
        return any(regex not in self.resolved for regex in self.subscription_counts.regexes)

    def subscribed(self) -> frozenset[str]:
        return self.subscription_counts.names(self.resolved)

    def reads_others(self) -> None:
        """Note that the queues that it reads are others, or have more partitions."""

    def assignable(self, queue: Queue) -> int:
        """Return how many partitions of a queue may be assigned."""
        return queue.partitions

    # -- targets

    def choose_assignor(self) -> str:
        raise NotImplementedError

    def _interval_s(self) -> float:
        """Return the time from one target to the next."""
        raise NotImplementedError

    def may_assign(self) -> bool:
        """Return whether a new target is due, and the last one not too fresh."""
        due = self.target_epoch < self.epoch and not self.assigning
        return due and self._coordinator.now() >= self.assign_again_at

    def begin_target(self) -> None:
        """Note that a target is being made, of what is assignable now."""

    def take_target(self, made: AssignmentResult, took_s: float = 0.0) -> None:
        """Take a target; members that came since it was begun have theirs from the next one."""
        for member_id, parts in made.target.items():
            member = self._member_now(member_id, made.instances)
            if member is not None and member.target is not parts and member.target != parts:
                member.target = parts
                self.changed.add(member.id)
        self.target_epoch = made.epoch
        self.assign_again_at = self._coordinator.now() + max(self._interval_s(), took_s)

    def _member_now(self, member_id: str, instances: dict[str, str]) -> Member | None:
        """Return the member that a target's part is for by now."""
        return self.members.get(member_id)

    def end(self, code: Code) -> None:
        self.ended = True
        self.alarms.end()
