"""A group of the consumer protocol (KIP-848), as Kafka's `ConsumerGroup`.

The coordinator decides which member has which partitions. A member learns it from the answers to
its heartbeats. The members' rows hold all of it, so a new coordinator continues where the old one
stopped. Only sessions start anew there: a silent member gets a whole session again.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from anyio import Lock

from kproxy.common.errors import Code
from kproxy.groups.assigning.assignors import PartitionSet, Target, queues_in_order
from kproxy.groups.assigning.reconciliation import reconcile
from kproxy.groups.model.classic_member import Protocols
from kproxy.groups.model.consumer_member import (
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    Progress,
    member_from_row,
)
from kproxy.groups.model.consumer_protocol import CONSUMER_PROTOCOL
from kproxy.groups.model.counters import AssignmentCounts, ProtocolCounts, SubscriptionCounts
from kproxy.groups.model.static_members import StaticMembers
from kproxy.groups.upkeep.timers import Alarms, Timers
from kproxy.loop.steps import EVERY, Steps, at_once, spent
from kproxy.virtual.rows.groups import NO_VERSION, Change, GroupRow, Row, Rows
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import PartitionKey, QueueId

DEFAULT_ASSIGNOR = "uniform"
_FENCED_WITHIN_S = 1.0
_LOGGED_BYTES = 4 << 20  # bytes of one command, about
_SESSION, _REVOKE = "session", "revoke"
_ROWS = 32  # take as long as `EVERY` partitions
NO_PARTS: PartitionSet = frozenset()

Still = Callable[[], bool]
"""Whether a member's time is over still."""
Fenced = list[tuple[Any, Still]]


class AssignmentResult(NamedTuple):
    """A target as an assignor made it, for the members that there were."""

    epoch: int
    assignor: str
    target: Target
    instances: dict[str, str]  # instance ids by member id


class State(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerCoordinator(Protocol):
    """The services of its coordinator that a group needs."""

    timers: Timers

    def now(self) -> float: ...
    def fence_soon(self, group: "ConsumerGroup", member: ConsumerMember, still: Still) -> None:
        """Take a member out that was not heard of, or did not give up in time; if it still is so
        when its turn comes."""
        ...

    def consumer_session_s(self, group_id: str) -> float: ...
    def consumer_assignment_interval_s(self, group_id: str) -> float: ...


class ConsumerGroup:
    """A group, changed only under `lock`; `changed` and `gone` are members to log."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL

    def __init__(self, group_id: str, coordinator: ConsumerCoordinator) -> None:
        self.id = group_id
        self._coordinator = coordinator
        self.alarms = Alarms(coordinator.timers)
        self.members: dict[str, ConsumerMember] = {}
        self.epoch = self.target_epoch = 1  # as Kafka counts
        self.assign_again_at = 0.0
        self.assignor = DEFAULT_ASSIGNOR
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
        self.static_members = StaticMembers[ConsumerMember]()
        self._holders = AssignmentCounts()
        self.subscription_counts = SubscriptionCounts()
        self._protocol_counts = ProtocolCounts()
        self._logged: dict[str, Any] | None = None  # the head's values

    # -- rows

    def begin_restoring(self, head: GroupRow) -> None:
        """Become what the rows say; everybody has a whole session to be heard of again."""
        self.version = head.version
        self.epoch = head.values["epoch"]
        self.target_epoch = head.values["target_epoch"]
        self.assignor = head.values["assignor"]
        self.topology = head.values["topology"]
        self._logged = head.values

    def restore(self, member_id: str, row: Row) -> None:
        self.put(member_from_row(member_id, row))

    def end_restoring(self) -> None:
        self.changed.clear()

    def values(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "target_epoch": self.target_epoch,
            "assignor": self.assignor,
            "topology": self.topology,
            "protocol_type": CONSUMER_PROTOCOL,
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
        if not self.members:
            return State.EMPTY
        if self.epoch > self.target_epoch:
            return State.ASSIGNING
        there = all(
            member.epoch in (self.target_epoch, STATIC_LEAVE_EPOCH)
            and member.progress == Progress.STABLE
            for member in self.members.values()
        )
        return State.STABLE if there else State.RECONCILING

    # -- members

    def put(self, member: ConsumerMember) -> None:
        """Put a member in as it is from now on."""
        known = self.members.get(member.id)
        if known is not member:
            if known is not None:
                self._uncount(known)
            self._count(member)
        if known is None or known.deadline == 0:
            member.deadline = self._coordinator.now() + self._session_s(member)
            self._watch(member)
        self.members[member.id] = member
        self.changed.add(member.id)
        self.gone.discard(member.id)

    def remove(self, member_id: str) -> ConsumerMember:
        member = self.members.pop(member_id)
        self._uncount(member)
        self.alarms.cancel((_SESSION, member_id))
        self.alarms.cancel((_REVOKE, member_id))
        self.changed.discard(member_id)
        self.gone.add(member_id)
        return member

    def _count(self, member: ConsumerMember) -> None:
        self.static_members.add(member)
        at_once(self._holders.count(_union(member.assigned, member.revoking), 1))
        self.subscription_counts.count(member, 1)
        self._protocol_counts.count(member.protocols, 1)

    def _uncount(self, member: ConsumerMember) -> None:
        self.static_members.remove(member)
        at_once(self._holders.count(_union(member.assigned, member.revoking), -1))
        self.subscription_counts.count(member, -1)
        self._protocol_counts.count(member.protocols, -1)

    def subscribe(self, member: ConsumerMember, topics: tuple[str, ...], regex: str) -> None:
        """Set what a member reads from now on."""
        there = self.members.get(member.id) is member
        if there:
            self.subscription_counts.count(member, -1)
        member.topics, member.regex = topics, regex
        if there:
            self.subscription_counts.count(member, 1)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member of the classic protocol with these fits in."""
        return protocol_type == CONSUMER_PROTOCOL and self._protocol_counts.fit(protocols)

    def speak(self, member: ConsumerMember, protocols: Protocols) -> None:
        """Set what a member supports from now on; nothing is the consumer protocol itself."""
        if self.members.get(member.id) is member:
            self._protocol_counts.count(member.protocols, -1)
            self._protocol_counts.count(protocols, 1)
        member.protocols = protocols

    def leave_as_static(self, member: ConsumerMember) -> None:
        """Let a static member go that may be back; keep for it what it had."""
        member.move_to(STATIC_LEAVE_EPOCH)
        at_once(self._holders.count(member.revoking - member.assigned, -1))
        member.revoking = NO_PARTS
        member.progress = Progress.STABLE
        self.give_time_to_revoke(member)
        self.changed.add(member.id)

    def rebalance_without(self) -> None:
        """Rebalance without members that left; give a new target, or go on as a classic group."""
        if not self.only_classic:
            self.epoch += 1

    @property
    def only_classic(self) -> bool:
        """Whether nobody of the consumer protocol is left, but somebody of the classic one is."""
        return bool(self.members) and all(member.classic for member in self.members.values())

    def _session_s(self, member: ConsumerMember) -> float:
        if member.classic:
            return member.session_s
        return self._coordinator.consumer_session_s(self.id)

    def renew_session(self, member: ConsumerMember) -> None:
        """Give it a whole session again; watch the shorter one of two deadlines anew."""
        before = member.deadline
        member.deadline = self._coordinator.now() + self._session_s(member)
        if member.deadline < before:
            self._watch(member)

    def _watch(self, member: ConsumerMember) -> None:
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

    def give_time_to_revoke(self, member: ConsumerMember) -> None:
        """Give a member that has to give up partitions its own rebalance timeout for it."""
        if member.progress != Progress.UNREVOKED:
            if member.revoke_by is not None:
                self.alarms.cancel((_REVOKE, member.id))
                member.revoke_by = None
        elif member.revoke_by is None:

            def due(now: float) -> None:
                self._coordinator.fence_soon(self, member, lambda: member.revoke_by is timer)

            by = self._coordinator.now() + max(0.0, member.rebalance_s)
            timer = member.revoke_by = self.alarms.set((_REVOKE, member.id), by, due)

    def replace_static(self, known: ConsumerMember, member_id: str) -> ConsumerMember:
        """Put a static member that is back under its new id: it has what it had, from epoch 0 on.

        As Kafka's `getOrMaybeCreateStaticMember`, in either protocol. `put` adds the new member.
        """
        self.remove(known.id)
        member = known.copy(member_id)
        member.epoch = member.previous_epoch = 0
        return member

    def commit_fault(self, member_id: str, instance: str | None, epoch: int, version: int) -> Code:
        """Return why this may not commit now; without members anyone may."""
        if epoch < 0 and not self.members:
            return Code.NONE
        member = self.members.get(member_id)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        if member.classic:
            return Code.NONE if epoch == member.epoch else Code.ILLEGAL_GENERATION
        if version < 9:  # it knows no way to say that the epoch is stale
            return Code.UNSUPPORTED_VERSION
        return Code.NONE if epoch == member.epoch else Code.STALE_MEMBER_EPOCH

    # -- the queues that they read

    def unresolved(self) -> bool:
        return any(regex not in self.resolved for regex in self.subscription_counts.regexes)

    def subscribed(self) -> frozenset[str]:
        return self.subscription_counts.names(self.resolved)

    def choose_assignor(self) -> str:
        """Return the assignor that most members ask for."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor)
        return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR

    def may_assign(self) -> bool:
        """Return whether a new target is due, and the last one not too fresh."""
        due = self.target_epoch < self.epoch and not self.assigning
        return due and self._coordinator.now() >= self.assign_again_at

    def reads_others(self) -> None:
        """Note that the queues that it reads are others, or have more partitions."""

    def assignable(self, queue: Queue) -> int:
        """Return how many partitions of a queue may be assigned: all."""
        return queue.partitions

    def begin_target(self) -> None:
        """Note that a target is being made."""

    def take_target(self, made: AssignmentResult, took_s: float = 0.0) -> None:
        """Take a target; members that came since it was begun have theirs from the next one."""
        self.assignor = made.assignor
        for member_id, parts in made.target.items():
            member = self.members.get(member_id)
            if member is None and member_id in made.instances:
                member = self.static_members.find(made.instances[member_id])
            if member is not None and member.target is not parts and member.target != parts:
                member.target = parts
                self.changed.add(member.id)
        self.target_epoch = made.epoch
        self.assign_again_at = self._coordinator.now() + max(
            self._coordinator.consumer_assignment_interval_s(self.id), took_s
        )

    def reconcile(self, member: ConsumerMember, owned: PartitionSet | None) -> Steps[None]:
        """Take a member a step towards its target."""
        before = (member.epoch, member.progress)
        if before == (self.target_epoch, Progress.STABLE):
            return
        assigned, revoking = member.assigned, member.revoking
        others = yield from self._holders.others(member)
        yield from reconcile(member, self.target_epoch, owned, others)
        if member.assigned is not assigned or member.revoking is not revoking:
            held, held_before = _union(member.assigned, member.revoking), _union(assigned, revoking)
            gone, new = held_before - held, held - held_before
            yield from self._holders.count(gone, -1)
            yield from self._holders.count(new, 1)
            if gone or new or member.assigned != assigned:
                self.changed.add(member.id)
        if (member.epoch, member.progress) != before:
            self.changed.add(member.id)
        self.give_time_to_revoke(member)
        yield from spent(len(assigned) + len(revoking))

    def waits(self, member: ConsumerMember) -> Steps[bool]:
        """Return whether something that a member is to have is still held by another."""
        return bool((yield from self._holders.others(member)))

    def end(self, code: Code) -> None:
        self.ended = True
        self.alarms.end()


def _union(one: PartitionSet, other: PartitionSet) -> PartitionSet:
    return one | other if other else one


def by_queue(parts: Iterable[PartitionKey]) -> dict[QueueId, list[int]]:
    return at_once(steps_by_queue(parts))


def steps_by_queue(parts: Iterable[PartitionKey]) -> Steps[dict[QueueId, list[int]]]:
    found: dict[QueueId, list[int]] = {}
    for number, (queue_id, index) in enumerate(parts, 1):
        found.setdefault(queue_id, []).append(index)
        if number % EVERY == 0:
            yield
    in_order = {}
    for number, queue_id in enumerate((yield from queues_in_order(found)), 1):
        indices = in_order[queue_id] = found[queue_id]
        if len(indices) > 1:
            indices.sort()
        if number % EVERY == 0:
            yield
    return in_order
