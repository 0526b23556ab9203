"""A group of the consumer protocol (KIP-848), as Kafka's `ConsumerGroup`.

A partition goes to its new member once the old one has given it up. Members of the classic protocol
may be among the others.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kproxy.common.errors import Code
from kproxy.groups.assigning.assignors import queues_in_order
from kproxy.groups.model.assigned_group import (
    AssigningCoordinator,
    AssignmentResult,
    State,
)
from kproxy.groups.model.assigned_member import NONE
from kproxy.groups.model.classic_member import Protocols
from kproxy.groups.model.consumer_member import STATIC_LEAVE_EPOCH, ConsumerMember
from kproxy.groups.model.consumer_protocol import CONSUMER_PROTOCOL
from kproxy.groups.model.counters import AssignmentCounts, ProtocolCounts
from kproxy.groups.model.revoking_group import RevokingGroup
from kproxy.groups.model.revoking_member import Progress
from kproxy.groups.model.static_members import StaticMembers
from kproxy.loop.steps import EVERY, Steps, at_once
from kproxy.virtual.rows.groups import GroupRow, Row
from kproxy.virtual.types import PartitionKey, QueueId

DEFAULT_ASSIGNOR = "uniform"


class ConsumerGroup(RevokingGroup[ConsumerMember]):
    """A group that takes its members to their targets step by step."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL

    def __init__(self, group_id: str, coordinator: AssigningCoordinator) -> None:
        super().__init__(group_id, coordinator)
        self.assignor = DEFAULT_ASSIGNOR
        self.static_members = StaticMembers[ConsumerMember]()
        self.holders = AssignmentCounts()
        self._protocol_counts = ProtocolCounts()

    # -- rows

    def begin_restoring(self, head: GroupRow) -> None:
        super().begin_restoring(head)
        self.assignor = head.values["assignor"]

    def restore(self, member_id: str, row: Row) -> Steps[None]:
        yield from self.put_restored((yield from ConsumerMember.from_row(member_id, row)))

    def values(self) -> dict[str, Any]:
        return super().values() | {"assignor": self.assignor}

    @property
    def state(self) -> State:
        if self.ended or not self.members:
            return super().state
        if self.epoch > self.target_epoch:
            return State.ASSIGNING
        there = all(
            member.epoch in (self.target_epoch, STATIC_LEAVE_EPOCH)
            and member.progress == Progress.STABLE
            for member in self.members.values()
        )
        return State.STABLE if there else State.RECONCILING

    # -- members

    def _count(self, member: ConsumerMember, by: int) -> None:
        super()._count(member, by)
        if by > 0:
            self.static_members.add(member)
        else:
            self.static_members.remove(member)
        self._protocol_counts.count(member.protocols, by)

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
        at_once(self.holders.count(member, member.revoking - member.assigned, -1))
        member.revoking = NONE
        member.progress = Progress.STABLE
        self.give_time_to_revoke(member)
        self.changed.add(member.id)

    def rebalance_without(self) -> None:
        """Rebalance without members that left; give a new target, or go on as a classic group."""
        if not self.only_classic:
            super().rebalance_without()

    @property
    def only_classic(self) -> bool:
        """Whether nobody of the consumer protocol is left, but somebody of the classic one is."""
        return bool(self.members) and all(member.classic for member in self.members.values())

    def _session_s(self, member: ConsumerMember) -> float:
        if member.classic:
            return member.session_s
        return self._coordinator.settings_of(self.id).consumer_session_timeout_ms / 1000

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

    # -- targets

    def choose_assignor(self) -> str:
        """Return the assignor that most members ask for."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor)
        return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR

    def _interval_s(self) -> float:
        return self._coordinator.settings_of(self.id).consumer_assignment_interval_ms / 1000

    def take_target(self, made: AssignmentResult, took_s: float = 0.0) -> None:
        self.assignor = made.assignor
        super().take_target(made, took_s)

    def _member_now(self, member_id: str, instances: dict[str, str]) -> ConsumerMember | None:
        """Return the member of an id, or of its instance id if that is another member's by now."""
        member = self.members.get(member_id)
        if member is None and member_id in instances:
            return self.static_members.find(instances[member_id])
        return member


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
