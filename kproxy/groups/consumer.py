"""A consumer group (KIP-848): the coordinator decides who has what, members follow by heartbeats.

As Kafka's `ConsumerGroup` and `GroupMetadataManager`. Everything that matters is in the members'
rows, so a new coordinator goes on where the old one was; only the time until a silent member is
given up starts anew.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from anyio import CapacityLimiter, Lock, to_thread

from kproxy.errors import Code
from kproxy.groups.assignors import ASSIGNORS, Parts, Wish
from kproxy.groups.consumer_member import LEFT_FOR_NOW, ConsumerMember, Progress, restored
from kproxy.groups.embedded_protocol import CONSUMER_PROTOCOL
from kproxy.groups.reconciling import reconcile
from kproxy.groups.timers import Alarms, Timers
from kproxy.virtual.group_rows import NO_VERSION, Head
from kproxy.virtual.rows import Queue
from kproxy.virtual.types import PartitionKey, QueueId

DEFAULT_ASSIGNOR = "uniform"


class State(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


_ASSIGNED_AT_ONCE = 1000  # members and partitions: some ten milliseconds, where wishes differ
_SESSION, _REVOKE = "session", "revoke"


class Home(Protocol):
    """What a group needs of its coordinator."""

    timers: Timers

    def now(self) -> float: ...
    def fence_soon(self, group: "ConsumerGroup", member_id: str) -> None:
        """Take a member out that was not heard of, or did not give up in time."""
        ...

    @property
    def assigning(self) -> CapacityLimiter:
        """How many targets are made on threads at a time."""
        ...

    @property
    def consumer_session_s(self) -> float: ...
    @property
    def assignment_interval_s(self) -> float: ...


class ConsumerGroup:
    """Changed only under `lock`; `changed` and `gone` are members to log."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL

    def __init__(self, group_id: str, home: Home) -> None:
        self.id = group_id
        self._home = home
        self.alarms = Alarms(home.timers)
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
        self.seen_changes = -1  # of the catalogue, when it was last looked at
        self.look_again_at = 0.0

    # -- rows

    def restore(self, head: Head, members: dict[str, dict[str, Any]]) -> None:
        """Become what the rows say; everybody has a whole session to be heard of again."""
        self.version = head.version
        self.epoch = head.values["epoch"]
        self.target_epoch = head.values["target_epoch"]
        self.assignor = head.values["assignor"]
        self.topology = head.values["topology"]
        for member_id, row in members.items():
            self.put(restored(member_id, row))
        self.changed.clear()

    def values(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "target_epoch": self.target_epoch,
            "assignor": self.assignor,
            "topology": self.topology,
            "protocol_type": CONSUMER_PROTOCOL,
        }

    def rows(self) -> dict[str, dict[str, Any] | None]:
        rows: dict[str, dict[str, Any] | None] = dict.fromkeys(self.gone)
        for member_id in self.changed & self.members.keys():
            rows[member_id] = self.members[member_id].row()
        return rows

    def was_logged(self) -> None:
        self.changed.clear()
        self.gone.clear()

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
            member.epoch in (self.target_epoch, LEFT_FOR_NOW) and member.progress == Progress.STABLE
            for member in self.members.values()
        )
        return State.STABLE if there else State.RECONCILING

    # -- members

    def put(self, member: ConsumerMember) -> None:
        """A member as it is from now on."""
        known = self.members.get(member.id)
        if known is None or known.deadline == 0:
            member.deadline = self._home.now() + self._session_s(member)
            self._watch(member)
        self.members[member.id] = member
        self.changed.add(member.id)
        self.gone.discard(member.id)

    def take_out(self, member_id: str) -> ConsumerMember:
        member = self.members.pop(member_id)
        self.alarms.cancel((_SESSION, member_id))
        self.alarms.cancel((_REVOKE, member_id))
        self.changed.discard(member_id)
        self.gone.add(member_id)
        return member

    def depart(self, *member_ids: str) -> None:
        """Members are gone; the others get another target, or go on as a classic group."""
        for member_id in member_ids:
            self.take_out(member_id)
        if member_ids and not self.only_classic:
            self.epoch += 1

    @property
    def only_classic(self) -> bool:
        """Whether nobody of the consumer protocol is left, but somebody of the classic one is."""
        return {member.classic for member in self.members.values()} == {True}

    def _session_s(self, member: ConsumerMember) -> float:
        return member.session_s if member.classic else self._home.consumer_session_s

    def heard(self, member: ConsumerMember) -> None:
        """It has a whole session again; the shorter one of two deadlines is watched anew."""
        before = member.deadline
        member.deadline = self._home.now() + self._session_s(member)
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
        self._home.fence_soon(self, member_id)
        return None

    def give_time_to_revoke(self, member: ConsumerMember) -> None:
        """A member that has to give up partitions has its own rebalance timeout for it."""
        if member.progress != Progress.UNREVOKED:
            member.revoke_by = None
            return
        if member.revoke_by is None:
            by = member.revoke_by = self._home.now() + max(0.0, member.rebalance_s)
            member_id = member.id

            def due(now: float) -> None:
                there = self.members.get(member_id)
                if there is not None and there.revoke_by == by and not self.ended:
                    self._home.fence_soon(self, member_id)

            self.alarms.set((_REVOKE, member_id), by, due)

    def of_instance(self, instance: str) -> ConsumerMember | None:
        return next((m for m in self.members.values() if m.instance == instance), None)

    def commit_fault(self, member_id: str, instance: str | None, epoch: int, version: int) -> Code:
        """Why this may not commit now; without members anyone may."""
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

    # -- what they read

    def names_of(self, member: ConsumerMember) -> frozenset[str]:
        return frozenset(member.topics) | self.resolved.get(member.regex, frozenset())

    def regexes(self) -> set[str]:
        return {member.regex for member in self.members.values() if member.regex}

    def subscribed(self) -> frozenset[str] | None:
        return frozenset(n for member in self.members.values() for n in self.names_of(member))

    def choose_assignor(self) -> str:
        """What most members ask for."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor)
        return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR

    def may_assign(self) -> bool:
        """Whether a new target is due, and the last one not too fresh."""
        return self.target_epoch < self.epoch and self._home.now() >= self.assign_again_at

    async def assign(self, queues: Mapping[str, Queue]) -> None:
        """Make a target for the group's epoch: a large one on a thread."""
        epoch = self.epoch
        sizes = {queue.queue_id: queue.partitions for queue in queues.values()}
        ids_of: dict[frozenset[str], frozenset[QueueId]] = {}
        wishes = {}
        for member in self.members.values():
            names = self.names_of(member)
            if names not in ids_of:
                ids_of[names] = frozenset(queues[n].queue_id for n in names if n in queues)
            wishes[member.id] = Wish(ids_of[names], member.target, member.instance or member.id)
        self.assignor = self.choose_assignor()
        assign = ASSIGNORS[self.assignor]
        if len(wishes) + sum(sizes.values()) <= _ASSIGNED_AT_ONCE:
            targets = assign(wishes, sizes)
        else:
            targets = await to_thread.run_sync(assign, wishes, sizes, limiter=self._home.assigning)
        for member_id, parts in targets.items():
            if self.members[member_id].target != parts:
                self.members[member_id].target = parts
                self.changed.add(member_id)
        self.target_epoch = epoch
        self.assign_again_at = self._home.now() + self._home.assignment_interval_s

    def reconcile(self, member: ConsumerMember, owned: Parts | None) -> None:
        """Take a member a step towards its target."""
        before = (member.epoch, member.progress, member.assigned, member.revoking)
        others: frozenset[PartitionKey] = frozenset()
        if member.epoch != self.target_epoch or member.progress != Progress.STABLE:
            others = self._held_by_others(member)
        reconcile(member, self.target_epoch, owned, others)
        if (member.epoch, member.progress, member.assigned, member.revoking) != before:
            self.changed.add(member.id)
        self.give_time_to_revoke(member)

    def _held_by_others(self, member: ConsumerMember) -> frozenset[PartitionKey]:
        wanted = member.target - member.assigned
        if not wanted:
            return frozenset()
        held: set[PartitionKey] = set()
        for other in self.members.values():
            if other is not member:
                held |= wanted & other.assigned
                held |= wanted & other.revoking
        return frozenset(held)

    def waits(self, member: ConsumerMember) -> bool:
        """Whether something that a member is to have is still held by another."""
        return bool(self._held_by_others(member))

    def end(self, code: Code) -> None:
        self.ended = True
        self.alarms.end()


def by_queue(parts: Iterable[PartitionKey]) -> dict[QueueId, list[int]]:
    found: dict[QueueId, list[int]] = {}
    for queue_id, index in sorted(parts):
        found.setdefault(queue_id, []).append(index)
    return found
