"""A group whose members give up what others are to have before those get it.

Consumer groups and streams groups. A member that does not give up in its own rebalance timeout is
taken out.
"""

from typing import ClassVar, Protocol, TypeVar

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.assigning.reconciliation import reconcile
from kproxy.groups.model.assigned_group import AssignedGroup
from kproxy.groups.model.assigned_member import NONE
from kproxy.groups.model.revoking_member import Progress, RevokingMember
from kproxy.loop.steps import Steps, at_once, spent

Member = TypeVar("Member", bound=RevokingMember)
_Held = TypeVar("_Held", contravariant=True)
_REVOKE = "revoke"


class Holders(Protocol[_Held]):
    """The account of who has what, or has yet to give it up."""

    def count(self, member: _Held, parts: PartitionSet, by: int) -> Steps[None]:
        """Count that a member has these, or has them no more."""
        ...

    def others(self, member: _Held) -> Steps[PartitionSet]:
        """Return what a member is to get and cannot have yet."""
        ...


class RevokingGroup(AssignedGroup[Member]):
    """A group that takes its members to their targets step by step."""

    REVOKED_EPOCHS: ClassVar[int] = 0
    """The epochs by which a member moves on when it has given up what it had to."""
    holders: Holders[Member]

    def put_restored(self, member: Member) -> Steps[None]:
        """Put a member in as its row has it."""
        held = _union(member.assigned, member.revoking)
        assigned, revoking = member.assigned, member.revoking
        member.assigned = member.revoking = NONE  # counted in slices
        self.put(member)
        member.assigned, member.revoking = assigned, revoking
        yield from self.holders.count(member, held, 1)

    def remove(self, member_id: str) -> None:
        super().remove(member_id)
        self.alarms.cancel((_REVOKE, member_id))

    def _count(self, member: Member, by: int) -> None:
        super()._count(member, by)
        at_once(self.holders.count(member, _union(member.assigned, member.revoking), by))

    def give_time_to_revoke(self, member: Member, *, anew: bool = False) -> None:
        """Give a member that has to give up partitions its own rebalance timeout for it.

        `anew`: these are others than before.
        """
        if member.revoke_by is not None and (anew or member.progress != Progress.UNREVOKED):
            self.alarms.cancel((_REVOKE, member.id))
            member.revoke_by = None
        if member.progress == Progress.UNREVOKED and member.revoke_by is None:

            def due(now: float) -> None:
                self._coordinator.fence_soon(self, member, lambda: member.revoke_by is timer)

            by = self._coordinator.now() + max(0.0, member.rebalance_s)
            timer = member.revoke_by = self.alarms.set((_REVOKE, member.id), by, due)

    def reconcile(self, member: Member, owned: PartitionSet | None) -> Steps[None]:
        """Take a member a step towards its target."""
        before = (member.epoch, member.progress)
        if before == (self.target_epoch, Progress.STABLE):
            return
        assigned, revoking = member.assigned, member.revoking
        others = yield from self.holders.others(member)
        yield from reconcile(member, self.target_epoch, owned, others, self.REVOKED_EPOCHS)
        if member.assigned is not assigned or member.revoking is not revoking:
            held, held_before = _union(member.assigned, member.revoking), _union(assigned, revoking)
            gone, new = held_before - held, held - held_before
            yield from self.holders.count(member, gone, -1)
            yield from self.holders.count(member, new, 1)
            if gone or new or member.assigned != assigned:
                self.changed.add(member.id)
        if (member.epoch, member.progress) != before:
            self.changed.add(member.id)
        self.give_time_to_revoke(member, anew=member.revoking is not revoking)
        yield from spent(len(assigned) + len(revoking))

    def waits(self, member: Member) -> Steps[bool]:
        """Return whether something that a member is to have is still held by another."""
        return bool((yield from self.holders.others(member)))


def _union(one: PartitionSet, other: PartitionSet) -> PartitionSet:
    return one | other if other else one
