"""Commands that name many committed offsets: a form byte, then numbers and text of known length.

JSON, which older kproxies wrote and level 1 still has, begins with `{`: no form has that number.
Lengths: group, member (uint16 each), an offset's metadata (uint32); all integers are big-endian.
"""

import json
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.fields import Fields, pack_name, read_name
from kproxy.virtual.levels import BINARY_FROM, OLDEST, ORDERED_FROM
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId

_JSON = ord("{")
_FORM = 1
_ORDERED = 2  # the form of a COMMIT whose offsets keep its log offset; laid out as the first
_DELETION = Fields("BNIR")  # form, group, how many partitions
_PARTITION = struct.Struct(">16sI")
_EXPIRY = Fields("BNq?IR")  # form, group, version, nothing left, how many offsets
_EXPIRED = struct.Struct(">16sIq")  # queue, partition, time (ms)
_COMMIT = struct.Struct(">iI")  # epoch, how many offsets
_OFFSET = struct.Struct(">16sIqi?I")  # queue, partition, offset, leader epoch, deny, metadata bytes


class OffsetCommit(NamedTuple):
    """One offset of a COMMIT. `deny`: one before the committed one is refused."""

    queue_id: QueueId
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    deny: bool

    @property
    def key(self) -> PartitionKey:
        return self.queue_id, self.partition


def pack_offsets(offsets: Iterable[OffsetCommit]) -> bytes:
    """Return the offsets of a commit, one after another."""
    parts: list[bytes] = []
    pack = _OFFSET.pack
    for queue_id, partition, offset, leader_epoch, metadata, deny in offsets:
        data = metadata.encode()
        parts += (pack(queue_id, partition, offset, leader_epoch, deny, len(data)), data)
    return b"".join(parts)


def read_offsets(body: bytes, at: int, count: int) -> list[OffsetCommit]:
    """Return so many offsets, as `pack_offsets` has packed them."""
    offsets, unpack, size = [], _OFFSET.unpack_from, _OFFSET.size
    for _ in range(count):
        queue_id, partition, offset, leader_epoch, deny, length = unpack(body, at)
        at += size
        metadata = body[at : at + length].decode() if length else ""
        at += length
        offsets.append(OffsetCommit(queue_id, partition, offset, leader_epoch, metadata, deny))
    return offsets


@of_kind(
    Kind.COMMIT, DiskUse.MODEST, by_items, level=OLDEST, publishes=(RowKind.OFFSET, RowKind.GROUP)
)
class CommitOffsets(NamedTuple):
    """A member of a group, or nobody (epoch below 0), commits offsets.

    `ordered`: the fold keeps its log offset, to tell which commits of transactions are older.
    """

    group: str
    member: str
    epoch: int
    offsets: list[OffsetCommit]
    time_ms: int = 0
    ordered: bool = False

    def envelope(self, level: int) -> Envelope:
        """Return the envelope as this level has it."""
        if level < BINARY_FROM:
            said = {"group": self.group, "member": self.member, "epoch": self.epoch}
            body = _dumps(said | {"offsets": [[o.queue_id.hex(), *o[1:]] for o in self.offsets]})
        else:
            form = bytes([_ORDERED if level >= ORDERED_FROM else _FORM])
            head = form + pack_name(self.group) + pack_name(self.member)
            count = _COMMIT.pack(self.epoch, len(self.offsets))
            body = b"".join((head, count, pack_offsets(self.offsets)))
        return Envelope(Kind.COMMIT, time_ms=self.time_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "CommitOffsets":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body = bytes(envelope.body)
        if body[0] == _JSON:
            return _commit_of(json.loads(body), envelope.time_ms)
        ordered = body[0] == _ORDERED
        if not ordered:
            _check(body)
        group, at = read_name(body, 1)
        member, at = read_name(body, at)
        epoch, count = _COMMIT.unpack_from(body, at)
        offsets = read_offsets(body, at + _COMMIT.size, count)
        return CommitOffsets(group, member, epoch, offsets, envelope.time_ms, ordered)


def _commit_of(values: dict[str, Any], time_ms: int) -> CommitOffsets:
    """Return a commit of the first logs: it names no member and allows or denies no rewind."""
    offsets = [
        OffsetCommit._make(
            (QueueId(bytes.fromhex(queue_hex)), *more[:4], bool(more[4:] and more[4]))
        )
        for queue_hex, *more in values["offsets"]
    ]
    member, epoch = values.get("member", ""), values.get("epoch", -1)
    return CommitOffsets(values["group"], member, epoch, offsets, time_ms)


@of_kind(Kind.DELETE_OFFSETS, DiskUse.ALWAYS, by_items, level=OLDEST, publishes=(RowKind.OFFSET,))
class DeleteOffsets(NamedTuple):
    """A group's committed offsets of these partitions go, whatever they are.

    So do those that wait for transactions, some at a time: the outcome's number is 1 if more wait.
    """

    group: str
    partitions: list[PartitionKey]

    def envelope(self, level: int) -> Envelope:
        """Return the envelope as this level has it."""
        if level < BINARY_FROM:
            keys = [[queue_id.hex(), index] for queue_id, index in self.partitions]
            body = _dumps({"group": self.group, "partitions": keys})
        else:
            items = b"".join([_PARTITION.pack(*key) for key in self.partitions])
            body = _DELETION.pack(_FORM, self.group, len(self.partitions), items)
        return Envelope(Kind.DELETE_OFFSETS, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "DeleteOffsets":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body = bytes(envelope.body)
        if body[0] == _JSON:
            values = json.loads(body)
            keys = [(QueueId(bytes.fromhex(q)), index) for q, index in values["partitions"]]
            return DeleteOffsets(values["group"], keys)
        _check(body)
        _, group, _, items = _DELETION.read(body, 0)
        return DeleteOffsets(group, [(QueueId(q), i) for q, i in _PARTITION.iter_unpack(items)])


@of_kind(
    Kind.EXPIRE, DiskUse.ALWAYS, by_items, level=OLDEST,
    publishes=(RowKind.OFFSET, RowKind.GROUP, RowKind.MEMBER),
)  # fmt: skip
class ExpireOffsets(NamedTuple):
    """Offsets expire, if they are as old as when a group of version `after` was looked at.

    `again_ms`: when to look at the group again.
    """

    group: str
    after: int
    nothing_left: bool
    offsets: list[tuple[QueueId, int, int]]  # queue, partition, time of the commit (ms)
    again_ms: int = 0

    def envelope(self, level: int) -> Envelope:
        """Return the envelope as this level has it."""
        if level < BINARY_FROM:
            said = {"group": self.group, "after": self.after, "nothing_left": self.nothing_left}
            body = _dumps(said | {"offsets": [[q.hex(), *more] for q, *more in self.offsets]})
        else:
            items = b"".join([_EXPIRED.pack(*offset) for offset in self.offsets])
            numbers = self.after, self.nothing_left, len(self.offsets)
            body = _EXPIRY.pack(_FORM, self.group, *numbers, items)
        return Envelope(Kind.EXPIRE, number=self.again_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "ExpireOffsets":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body = bytes(envelope.body)
        if body[0] == _JSON:
            values = json.loads(body)
            offsets = [(QueueId(bytes.fromhex(q)), *more) for q, *more in values["offsets"]]
            group, after, nothing_left = values["group"], values["after"], values["nothing_left"]
        else:
            _check(body)
            _, group, after, nothing_left, _, items = _EXPIRY.read(body, 0)
            offsets = [
                (QueueId(queue_id), *more) for queue_id, *more in _EXPIRED.iter_unpack(items)
            ]
        return ExpireOffsets(group, after, bool(nothing_left), offsets, envelope.number)


def _dumps(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


def _check(body: bytes) -> None:
    if body[0] != _FORM:
        raise later_form("a command's body", body[0])
