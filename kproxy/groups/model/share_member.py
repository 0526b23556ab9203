"""A member of a share group (KIP-932): what it subscribes to, what it has, and what it is to have.

It gets its target at its next heartbeat. Partitions are shared: nobody has to give any up first.
"""

from typing import Any

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.consumer_member import NONE, pack_parts, unpack_parts
from kproxy.loop.steps import Steps
from kproxy.virtual.rows.groups import Row

_PART_BYTES, _NAME_BYTES = 20, 30


class ShareMember:
    """A member, changed in place under its group's lock, and then logged."""

    def __init__(self, member_id: str) -> None:
        self.id = member_id
        self.rack: str | None = None
        self.client_id = ""
        self.host = ""
        self.topics: tuple[str, ...] = ()
        self.epoch = 0
        self.previous_epoch = 0
        self.assigned: PartitionSet = NONE
        self.target: PartitionSet = NONE
        self.deadline = 0.0
        self.instance: str | None = None  # members of consumer groups may have one,
        self.regex = ""  # and subscribe so

    def move_to(self, epoch: int) -> None:
        self.previous_epoch, self.epoch = self.epoch, epoch

    @property
    def weight(self) -> int:
        """The bytes of its row, about."""
        parts = len(self.assigned) + len(self.target)
        return _PART_BYTES * parts + _NAME_BYTES * len(self.topics)

    def row(self) -> Steps[dict[str, Any]]:
        target = assigned = yield from pack_parts(self.assigned)
        if self.target is not self.assigned:
            target = yield from pack_parts(self.target)
        return {
            "epoch": self.epoch,
            "previous": self.previous_epoch,
            "rack": self.rack,
            "client_id": self.client_id,
            "host": self.host,
            "topics": self.topics,
            "assigned": assigned,
            "target": target,
            "protocols": (),
        }


def member_from_row(member_id: str, row: Row) -> ShareMember:
    """Return a member as its row has it."""
    member = ShareMember(member_id)
    member.epoch = row["epoch"]
    member.previous_epoch = row["previous"]
    member.rack = row["rack"]
    member.client_id = row["client_id"]
    member.host = row["host"]
    member.topics = tuple(row["topics"])
    member.assigned = member.target = unpack_parts(row["assigned"])
    if row["target"] != row["assigned"]:
        member.target = unpack_parts(row["target"])
    return member
