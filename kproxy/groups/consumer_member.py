"""A member of a consumer group (KIP-848): what it wants, has, is to have, and how far it is."""

import copy
from base64 import b64decode, b64encode
from enum import StrEnum
from typing import Any

from kproxy.groups.assignors import Parts
from kproxy.groups.member import Protocols, decode_protocols, encode_protocols
from kproxy.groups.timers import Timer
from kproxy.virtual.types import PartitionKey, QueueId

LEFT_FOR_NOW = -2
"""Epoch of a static member that has left and may be back."""
NONE: Parts = frozenset()


class Progress(StrEnum):
    """Where a member stands with its target."""

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
        self.assigned: Parts = NONE
        self.revoking: Parts = NONE
        self.target: Parts = NONE
        self.protocols: Protocols = ()  # of one that still speaks the classic protocol
        self.session_s = 0.0  # likewise
        self.deadline = 0.0
        self.timer: Timer | None = None  # of its deadline
        self.revoke_by: Timer | None = None

    @property
    def classic(self) -> bool:
        return bool(self.protocols)

    def copy(self, member_id: str) -> "ConsumerMember":
        """The same under another id, with no time set."""
        made = copy.copy(self)
        made.id, made.deadline, made.timer, made.revoke_by = member_id, 0.0, None, None
        return made

    def cancel_timers(self) -> None:
        for timer in (self.timer, self.revoke_by):
            if timer is not None:
                timer.cancel()

    def move_to(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch

    def row(self) -> dict[str, Any]:
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
            "assigned": encode_parts(self.assigned),
            "revoking": encode_parts(self.revoking),
            "target": encode_parts(self.target),
            "protocols": encode_protocols(self.protocols),
            "session_s": self.session_s,
        }


def restored(member_id: str, row: dict[str, Any]) -> ConsumerMember:
    """A member as its row has it."""
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
    member.assigned = decode_parts(row["assigned"])
    member.revoking = decode_parts(row["revoking"])
    member.target = decode_parts(row["target"])
    member.protocols = decode_protocols(row["protocols"])
    member.session_s = row["session_s"]
    return member


def encode_parts(parts: Parts) -> str:
    """20 bytes a partition: for groups over thousands of queues."""
    return b64encode(b"".join(q + i.to_bytes(4, "big") for q, i in sorted(parts))).decode()


def decode_parts(text: str) -> Parts:
    data = b64decode(text)
    found: list[PartitionKey] = []
    for at in range(0, len(data), 20):
        queue_id, index = data[at : at + 16], data[at + 16 : at + 20]
        found.append((QueueId(queue_id), int.from_bytes(index, "big")))
    return frozenset(found)
