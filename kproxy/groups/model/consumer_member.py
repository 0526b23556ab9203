"""A member of a consumer group (KIP-848): what it wants, has, is to have, and how far it is."""

import copy
import struct
from enum import StrEnum
from itertools import islice, starmap
from typing import Any

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.classic_member import Protocols
from kproxy.groups.upkeep.timers import Timer
from kproxy.loop.steps import EVERY, Steps, spent

STATIC_LEAVE_EPOCH = -2
"""Epoch of a static member that has left and may be back."""
NONE: PartitionSet = frozenset()
_PART = struct.Struct(">16sI")
_NAME_BYTES = 30


class Progress(StrEnum):
    """The standing of a member towards its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # it has yet to give something up
    UNRELEASED = "unreleased"  # others have yet to give up what it is to have


class ConsumerMember:
    """Times are seconds. Changed in place, under its group's lock, and then logged."""

    def __init__(self, member_id: str) -> None:
        self.id = member_id
        self.instance: str | None = None
        self.rack: str | None = None
        self.client_id = ""
        self.host = ""
        self.rebalance_s = -1.0
        self.topics: tuple[str, ...] = ()
        self.regex = ""
        self.assignor: str | None = None
        self.epoch = 0
        self.previous_epoch = 0
        self.progress = Progress.STABLE
        self.assigned: PartitionSet = NONE
        self.revoking: PartitionSet = NONE
        self.target: PartitionSet = NONE
        self.protocols: Protocols = ()  # protocols of a member that still speaks the classic one
        self.session_s = 0.0  # likewise
        self.deadline = 0.0
        self.revoke_by: Timer | None = None

    @property
    def classic(self) -> bool:
        return bool(self.protocols)

    def copy(self, member_id: str) -> "ConsumerMember":
        """Return the same under another id, with no time set."""
        made = copy.copy(self)
        made.id, made.deadline, made.revoke_by = member_id, 0.0, None
        return made

    def move_to(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch

    @property
    def weight(self) -> int:
        """The bytes of its row, about."""
        parts = len(self.assigned) + len(self.revoking) + len(self.target)
        return _PART.size * parts + _NAME_BYTES * len(self.topics)

    def row(self) -> Steps[dict[str, Any]]:
        assigned = yield from pack_parts(self.assigned)
        target = assigned
        if self.target is not self.assigned:
            target = yield from pack_parts(self.target)
        revoking = yield from pack_parts(self.revoking)
        return {
            "epoch": self.epoch,
            "previous": self.previous_epoch,
            "instance": self.instance,
            "rack": self.rack,
            "client_id": self.client_id,
            "host": self.host,
            "rebalance_s": self.rebalance_s,
            "topics": self.topics,
            "regex": self.regex,
            "assignor": self.assignor,
            "progress": self.progress,
            "assigned": assigned,
            "revoking": revoking,
            "target": target,
            "protocols": self.protocols,
            "session_s": self.session_s,
        }


def member_from_row(member_id: str, row: dict[str, Any]) -> ConsumerMember:
    """Return a member as its row has it."""
    member = ConsumerMember(member_id)
    member.epoch = row["epoch"]
    member.previous_epoch = row["previous"]
    member.instance = row["instance"]
    member.rack = row["rack"]
    member.client_id = row["client_id"]
    member.host = row["host"]
    member.rebalance_s = row["rebalance_s"]
    member.topics = tuple(row["topics"])
    member.regex = row["regex"]
    member.assignor = row["assignor"]
    member.progress = Progress(row["progress"])
    member.assigned = member.target = unpack_parts(row["assigned"])
    member.revoking = unpack_parts(row["revoking"])
    if row["target"] != row["assigned"]:
        member.target = unpack_parts(row["target"])
    member.protocols = tuple(row["protocols"])
    member.session_s = row["session_s"]
    return member


def pack_parts(parts: PartitionSet) -> Steps[bytes]:
    """Pack partitions into 20 bytes each: for groups over thousands of queues."""
    packed, left = [], iter(parts)
    while piece := b"".join(starmap(_PART.pack, islice(left, EVERY))):
        packed.append(piece)
        yield from spent(len(piece) // _PART.size)
    return b"".join(packed)


def unpack_parts(data: bytes) -> PartitionSet:
    return frozenset(_PART.iter_unpack(data))
