"""A member's steps towards its target, as in Kafka's `CurrentAssignmentBuilder`.

The member first revokes the partitions that are not in its target. Then it moves to the target's
epoch. Then it gets partitions as other members release them.
"""

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.assigned_member import NONE
from kproxy.groups.model.revoking_member import Progress, RevokingMember
from kproxy.loop.steps import Steps, spent


def reconcile(
    member: RevokingMember, target_epoch: int, owned: PartitionSet | None, others: PartitionSet,
    revoked_epochs: int,
) -> Steps[None]:  # fmt: skip
    """Take one step if one is due. `owned`: what it says it has; `others`: what others hold.

    `revoked_epochs`: by which it moves on when it has given up what it had to.
    """
    epoch = member.epoch
    if member.progress == Progress.STABLE and member.epoch == target_epoch:
        return
    if member.progress == Progress.UNREVOKED:
        if _still_owned(owned, member.revoking):
            return
        epoch += revoked_epochs
    count = len(member.assigned) + len(member.target)
    to_revoke = member.assigned - member.target
    yield from spent(count)
    kept = member.assigned - to_revoke if to_revoke else member.assigned
    wanted = member.target - member.assigned
    free = wanted - others if others else wanted
    yield from spent(2 * count)  # nothing has changed till here
    if to_revoke and _still_owned(owned, to_revoke):
        member.move_to(epoch)
        member.progress = Progress.UNREVOKED
        member.assigned, member.revoking = kept, to_revoke
        return
    member.move_to(target_epoch)
    if len(kept) + len(free) == len(member.target):
        member.assigned = member.target  # one set, not two that are equal
    elif free or to_revoke:
        member.assigned = kept | free
    member.revoking = NONE
    member.progress = Progress.UNRELEASED if len(free) < len(wanted) else Progress.STABLE


def _still_owned(owned: PartitionSet | None, parts: PartitionSet) -> bool:
    """Return whether it may still have some of these; a silent heartbeat leaves it open."""
    return owned is None or bool(owned & parts)
