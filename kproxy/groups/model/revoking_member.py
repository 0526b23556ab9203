"""A member of a group that gives up partitions before others get them: what, and how far it is."""

from enum import StrEnum
from typing import ClassVar, Self

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.assigned_member import (
    NONE,
    PART_BYTES,
    AssignedMember,
    pack_parts,
    unpack_parts,
)
from kproxy.groups.upkeep.timers import Timer
from kproxy.loop.steps import Steps
from kproxy.virtual.rows.groups import Row


class Progress(StrEnum):
    """The standing of a member towards its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # it has yet to give something up
    UNRELEASED = "unreleased"  # others have yet to give up what it is to have


class RevokingMember(AssignedMember):
    """A member with its own rebalance timeout."""

    FIELDS: ClassVar[tuple[str, ...]] = (*AssignedMember.FIELDS, "rebalance_s", "progress")

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.rebalance_s = -1.0
        self.progress = Progress.STABLE
        self.revoking: PartitionSet = NONE
        self.revoke_by: Timer | None = None

    @property
    def weight(self) -> int:
        return super().weight + PART_BYTES * len(self.revoking)

    def row(self) -> Steps[Row]:
        row = yield from super().row()
        revoking = yield from pack_parts(self.revoking)
        return row | {"revoking": revoking}

    @classmethod
    def from_row(cls, member_id: str, row: Row) -> Steps[Self]:
        member = yield from super().from_row(member_id, row)
        member.progress = Progress(row["progress"])
        member.revoking = yield from unpack_parts(row["revoking"])
        return member
