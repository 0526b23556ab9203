"""A member of a group whose coordinator assigns: what it wants, has and is to have."""

import struct
from itertools import islice, starmap
from typing import ClassVar, Self

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.classic_member import Protocols
from kproxy.loop.steps import EVERY, Steps, spent
from kproxy.virtual.rows.groups import Row
from kproxy.virtual.types import PartitionKey

NONE: PartitionSet = frozenset()
_PART = struct.Struct(">16sI")
PART_BYTES = _PART.size  # a row has about so many for each partition
_NAME_BYTES = 30


class AssignedMember:
    """Times are seconds. Changed in place, under its group's lock, and then logged."""

    FIELDS: ClassVar[tuple[str, ...]] = (
        "epoch", "rack", "client_id", "host", "topics", "protocols",
    )  # fmt: skip
    """The attributes that its row has as they are."""

    protocols: Protocols = ()
    """The protocols of a consumer group's member that still speaks the classic protocol."""

    def __init__(self, member_id: str) -> None:
        self.id = member_id
        self.instance: str | None = None
        self.rack: str | None = None
        self.client_id = ""
        self.host = ""
        self.topics: tuple[str, ...] = ()
        self.regex = ""
        self.epoch = 0
        self.previous_epoch = 0
        self.assigned: PartitionSet = NONE
        self.target: PartitionSet = NONE
        self.deadline = 0.0

    def move_to(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch

    @property
    def weight(self) -> int:
        """The bytes of its row, about."""
        parts = len(self.assigned) + len(self.target)
        texts = len(self.client_id) + len(self.rack or "") + len(self.regex)
        return PART_BYTES * parts + _NAME_BYTES * len(self.topics) + texts

    def row(self) -> Steps[Row]:
        target = assigned = yield from pack_parts(self.assigned)
        if self.target is not self.assigned:
            target = yield from pack_parts(self.target)
        row: Row = {name: getattr(self, name) for name in self.FIELDS}
        return row | {"previous": self.previous_epoch, "assigned": assigned, "target": target}

    @classmethod
    def from_row(cls, member_id: str, row: Row) -> Steps[Self]:
        """Return a member as its row has it."""
        member = cls(member_id)
        for name in cls.FIELDS:
            value = row[name]
            setattr(member, name, tuple(value) if isinstance(value, list) else value)
        member.previous_epoch = row["previous"]
        member.assigned = member.target = yield from unpack_parts(row["assigned"])
        if row["target"] != row["assigned"]:
            member.target = yield from unpack_parts(row["target"])
        return member


def pack_parts(parts: PartitionSet) -> Steps[bytes]:
    """Pack partitions into 20 bytes each: for groups over thousands of queues."""
    packed, left = [], iter(parts)
    while piece := b"".join(starmap(_PART.pack, islice(left, EVERY))):
        packed.append(piece)
        yield from spent(len(piece) // PART_BYTES)
    return b"".join(packed)


def unpack_parts(data: bytes) -> Steps[PartitionSet]:
    size, found = EVERY * PART_BYTES, set[PartitionKey]()
    if len(data) <= size:
        return frozenset(_PART.iter_unpack(data))
    for start in range(0, len(data), size):
        found.update(_PART.iter_unpack(data[start : start + size]))
        yield
    return frozenset(found)
