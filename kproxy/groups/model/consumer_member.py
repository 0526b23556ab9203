"""A member of a consumer group (KIP-848): what it has to give up, and how far it is."""

import copy
from enum import StrEnum
from typing import Self

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

STATIC_LEAVE_EPOCH = -2
"""Epoch of a static member that has left and may be back."""


class Progress(StrEnum):
    """The standing of a member towards its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # it has yet to give something up
    UNRELEASED = "unreleased"  # others have yet to give up what it is to have


class ConsumerMember(AssignedMember):
    """A member that may speak the classic protocol still."""

    FIELDS = (
        *AssignedMember.FIELDS, "instance", "rebalance_s", "regex", "assignor", "progress",
        "session_s",
    )  # fmt: skip

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.rebalance_s = -1.0
        self.assignor: str | None = None
        self.progress = Progress.STABLE
        self.revoking: PartitionSet = NONE
        self.session_s = 0.0  # it has its own while it speaks the classic protocol
        self.revoke_by: Timer | None = None

    @property
    def classic(self) -> bool:
        return bool(self.protocols)

    def copy(self, member_id: str) -> "ConsumerMember":
        """Return the same under another id, with no time set."""
        made = copy.copy(self)
        made.id, made.deadline, made.revoke_by = member_id, 0.0, None
        return made

    @property
    def weight(self) -> int:
        return super().weight + PART_BYTES * len(self.revoking)

    def row(self) -> Steps[Row]:
        row = yield from super().row()
        revoking = yield from pack_parts(self.revoking)
        return row | {"revoking": revoking}

    @classmethod
    def from_row(cls, member_id: str, row: Row) -> Self:
        member = super().from_row(member_id, row)
        member.progress = Progress(row["progress"])
        member.revoking = unpack_parts(row["revoking"])
        return member
