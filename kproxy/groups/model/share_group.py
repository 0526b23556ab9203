"""A share group (KIP-932), as Kafka's `ShareGroup`: who its members are, and who has what.

The state of records is kept beside the records, not here: a group only knows of which queue
partitions it has *share partitions*, and assigns no others. The members' rows hold all of it, so a
new coordinator goes on where the old one stopped; sessions start anew there.
"""

from enum import StrEnum
from typing import Any, Protocol

from anyio import Lock

from kproxy.common.errors import Code
from kproxy.groups.assigning.simple_assignor import SIMPLE
from kproxy.groups.model.consumer_group import AssignmentResult, Still
from kproxy.groups.model.counters import SubscriptionCounts
from kproxy.groups.model.share_member import ShareMember, member_from_row
from kproxy.groups.upkeep.timers import Alarms, Timers
from kproxy.loop.steps import Steps
from kproxy.virtual.rows.groups import NO_VERSION, Change, GroupRow, Row, Rows
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId

SHARE_PROTOCOL = "share"
_FENCED_WITHIN_S = 1.0
_LOGGED_BYTES = 4 << 20  # bytes of one command, about
_ROWS = 32


class State(StrEnum):
    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareCoordinator(Protocol):
    """The services of its coordinator that a group needs."""

    timers: Timers

    def now(self) -> float: ...
    def fence_soon(self, group: "ShareGroup", member: ShareMember, still: Still) -> None:
        """Take a member out that was not heard of; if it still is so when its turn comes."""
        ...

    def share_session_s(self, group_id: str) -> float: ...
    def share_assignment_interval_s(self, group_id: str) -> float: ...


class ShareGroup:
    """A group, changed only under `lock`; `changed` and `gone` are members to log."""

    kind = "share"
    protocol_type = SHARE_PROTOCOL

    def __init__(self, group_id: str, coordinator: ShareCoordinator) -> None:
        self.id = group_id
        self._coordinator = coordinator
        self.alarms = Alarms(coordinator.timers)
        self.members: dict[str, ShareMember] = {}
        self.epoch = self.target_epoch = 1  # as Kafka counts
        self.assign_again_at = 0.0
        self.topology = 0  # hash of the queues that the target was made for
        self.version = NO_VERSION
        self.since = 0
        """A log offset. Share partitions of an earlier epoch are not its own: they are of a group
        that had this name before, or were dropped, and a late command has made them again."""
        self.lock = Lock()
        self.changed: set[str] = set()
        self.gone: set[str] = set()
        self.ended = False
        self.resolved: dict[str, frozenset[str]] = {}  # nothing: there are no patterns
        self.resolved_changes = -1  # the catalogue's changes when it was last looked at
        self.refresh_again_at = self.resolve_again_at = 0.0
        self.resolving = self.assigning = False  # beside what members ask for
        self.subscription_counts = SubscriptionCounts()
        self.initialised: dict[QueueId, int] = {}
        """The number of a queue's partitions that have share partitions: these may be assigned."""
        self.unchecked = True  # whether queues lack some has yet to be looked at
        self.initialising = False  # beside what members ask for
        self.making = False
        """Whether there may be share partitions that no row tells of. It is logged before any is
        made: who ends midway leaves word of it."""
        self._left_some = False  # a former coordinator may have
        self._shares = 0  # share partitions there are
        self._shares_taken = 0  # and were, when the target was begun that is being made,
        self._target_shares = 0  # or the one that is
        self._logged: dict[str, Any] | None = None  # the head's values

    # -- rows

    def begin_restoring(self, head: GroupRow) -> None:
        """Become what the rows say; everybody has a whole session to be heard of again."""
        self.version = head.version
        self.epoch = head.values["epoch"]
        self.target_epoch = head.values["target_epoch"]
        self.topology = head.values["topology"]
        self._target_shares = head.values["shares"]
        self._left_some = head.values["making"]
        self.since = head.values.get("since", 0)
        self._logged = head.values

    def restore_queue(self, queue_id: QueueId, partitions: int) -> None:
        self.note_initialised(queue_id, partitions)

    def restore(self, member_id: str, row: Row) -> None:
        self.put(member_from_row(member_id, row))

    def end_restoring(self) -> None:
        self.changed.clear()
        if self.members and self._shares != self._target_shares:
            self.reassign()  # there are share partitions that were never assigned

    def values(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "target_epoch": self.target_epoch,
            "topology": self.topology,
            "shares": self._target_shares,
            "making": self.making or self._left_some,
            "since": self.since,
            "protocol_type": SHARE_PROTOCOL,
        }

    def change(self) -> Steps[Change]:
        """Return what to log next; the first part, if it is more than one command holds.

        Until the last part is logged the group stands as it did.
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

    @property
    def making_is_logged(self) -> bool:
        return self._logged is not None and bool(self._logged["making"])

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

    def put(self, member: ShareMember) -> None:
        """Put in a member that is there from now on."""
        if member.id not in self.members:
            self.subscription_counts.count(member, 1)
            member.deadline = self._coordinator.now() + self._session_s
            self._watch(member)
        self.members[member.id] = member
        self.changed.add(member.id)
        self.gone.discard(member.id)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self.subscription_counts.count(member, -1)
        self.alarms.cancel(member_id)
        self.changed.discard(member_id)
        self.gone.add(member_id)

    def subscribe(self, member: ShareMember, topics: tuple[str, ...]) -> None:
        """Set what a member reads from now on."""
        there = self.members.get(member.id) is member
        if there:
            self.subscription_counts.count(member, -1)
        member.topics = topics
        if there:
            self.subscription_counts.count(member, 1)

    def rebalance_without(self) -> None:
        """Rebalance after members were taken out; others get another target."""
        self.epoch += 1

    def reassign(self) -> None:
        """Make a new target due, if none is already."""
        if self.target_epoch == self.epoch:
            self.epoch += 1

    @property
    def _session_s(self) -> float:
        return self._coordinator.share_session_s(self.id)

    def renew_session(self, member: ShareMember) -> None:
        """Give it a whole session again; watch the shorter one of two deadlines anew."""
        before = member.deadline
        member.deadline = self._coordinator.now() + self._session_s
        if member.deadline < before:
            self._watch(member)

    def _watch(self, member: ShareMember) -> None:
        member_id = member.id
        self.alarms.set(member_id, member.deadline, lambda now: self._expire(member_id, now))

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
        """Refuse: nobody commits offsets here, a group of this id is no consumer group."""
        return Code.GROUP_ID_NOT_FOUND

    # -- the queues that they read

    def unresolved(self) -> bool:
        return False

    def subscribed(self) -> frozenset[str]:
        return self.subscription_counts.names(self.resolved)

    def choose_assignor(self) -> str:
        return SIMPLE

    def reads_others(self) -> None:
        """Note that the queues that it reads are others, or have more partitions."""
        self.unchecked = True

    def note_initialised(self, queue_id: QueueId, partitions: int) -> None:
        """Note share partitions of so many partitions of a queue; 0: none any more."""
        self._shares += partitions - self.initialised.pop(queue_id, 0)
        if partitions:
            self.initialised[queue_id] = partitions

    def assignable(self, queue: Queue) -> int:
        """Return how many partitions of a queue may be assigned."""
        return min(queue.partitions, self.initialised.get(queue.queue_id, 0))

    def may_assign(self) -> bool:
        """Return whether a new target is due, and the last one not too fresh."""
        due = self.target_epoch < self.epoch and not self.assigning
        return due and self._coordinator.now() >= self.assign_again_at

    def begin_target(self) -> None:
        """Note that a target is being made, of what is assignable now."""
        self._shares_taken = self._shares

    def take_target(self, made: AssignmentResult, took_s: float = 0.0) -> None:
        """Take a target; members that came since it was begun have theirs from the next one."""
        for member_id, parts in made.target.items():
            member = self.members.get(member_id)
            if member is not None and member.target is not parts and member.target != parts:
                member.target = parts
                self.changed.add(member_id)
        self.target_epoch = made.epoch
        self._target_shares = self._shares_taken
        interval_s = self._coordinator.share_assignment_interval_s(self.id)
        self.assign_again_at = self._coordinator.now() + max(interval_s, took_s)

    def reconcile(self, member: ShareMember) -> None:
        """Give a member its target."""
        if member.epoch != self.target_epoch:
            member.move_to(self.target_epoch)
            member.assigned = member.target
            self.changed.add(member.id)

    def end(self, code: Code) -> None:
        self.ended = True
        self.alarms.end()
