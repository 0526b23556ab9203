"""Commands that name many committed offsets: a form byte, then numbers and text of known length.

JSON, which older kproxies wrote and level 1 still has, begins with `{`: no form has that number.
Lengths: group, member (uint16 each), an offset's metadata (uint32); all integers are big-endian.
"""

import json
import struct
from typing import Any, NamedTuple

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.fields import pack_name, read_name
from kproxy.virtual.levels import BINARY_FROM, OLDEST, ORDERED_FROM
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId

_JSON = ord("{")
_FORM = 1
_ORDERED = 2  # the form of a COMMIT whose offsets keep its log offset; laid out as the first
_COUNT = struct.Struct(">I")
_PARTITION = struct.Struct(">16sI")
_EXPIRE = struct.Struct(">q?I")  # version, nothing left, how many offsets
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
        return Envelope(Kind.COMMIT, time_ms=self.time_ms, body=self._encode(level))

    def _encode(self, level: int) -> bytes:
        if level < BINARY_FROM:
            return self._json()
        form = _ORDERED if level >= ORDERED_FROM else _FORM
        parts = [bytes([form]), pack_name(self.group), pack_name(self.member)]
        parts.append(_COMMIT.pack(self.epoch, len(self.offsets)))
        pack = _OFFSET.pack
        for queue_id, partition, offset, leader_epoch, metadata, deny in self.offsets:
            data = metadata.encode()
            parts += (pack(queue_id, partition, offset, leader_epoch, deny, len(data)), data)
        return b"".join(parts)

    def _json(self) -> bytes:
        values = {
            "group": self.group,
            "member": self.member,
            "epoch": self.epoch,
            "offsets": [[o.queue_id.hex(), *o[1:]] for o in self.offsets],
        }
        return _dumps(values)

    @staticmethod
    def decode(envelope: Envelope) -> "CommitOffsets":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        return _decode_commit(bytes(envelope.body), envelope.time_ms)


def _decode_commit(body: bytes, time_ms: int) -> CommitOffsets:
    if body[0] == _JSON:
        return _commit_of(json.loads(body), time_ms)
    ordered = body[0] == _ORDERED
    if not ordered:
        _check(body)
    group, at = read_name(body, 1)
    member, at = read_name(body, at)
    epoch, count = _COMMIT.unpack_from(body, at)
    at += _COMMIT.size
    offsets = []
    unpack, size = _OFFSET.unpack_from, _OFFSET.size
    for _ in range(count):
        queue_id, partition, offset, leader_epoch, deny, length = unpack(body, at)
        at += size
        metadata = body[at : at + length].decode() if length else ""
        at += length
        offsets.append(OffsetCommit(queue_id, partition, offset, leader_epoch, metadata, deny))
    return CommitOffsets(group, member, epoch, offsets, time_ms, ordered)


def _commit_of(values: dict[str, Any], time_ms: int) -> CommitOffsets:
    """Return a commit of the first logs: it names no member and allows or denies no rewind."""
    return CommitOffsets(
        values["group"],
        values.get("member", ""),
        values.get("epoch", -1),
        [
            OffsetCommit(
                QueueId(bytes.fromhex(queue_hex)), partition, offset, leader_epoch, metadata,
                bool(more and more[0]),
            )
            for queue_hex, partition, offset, leader_epoch, metadata, *more in values["offsets"]
        ],
        time_ms,
    )  # fmt: skip


@of_kind(Kind.DELETE_OFFSETS, DiskUse.ALWAYS, by_items, level=OLDEST, publishes=(RowKind.OFFSET,))
class DeleteOffsets(NamedTuple):
    """A group's committed offsets of these partitions go, whatever they are.

    So do those that wait for transactions, some at a time: the outcome's number is 1 if more wait.
    """

    group: str
    partitions: list[PartitionKey]

    def envelope(self, level: int) -> Envelope:
        """Return the envelope as this level has it."""
        return Envelope(Kind.DELETE_OFFSETS, body=self._encode(level))

    def _encode(self, level: int) -> bytes:
        if level < BINARY_FROM:
            return _dumps({
                "group": self.group, "partitions": [[q.hex(), i] for q, i in self.partitions],
            })  # fmt: skip
        parts = [bytes([_FORM]), pack_name(self.group), _COUNT.pack(len(self.partitions))]
        parts += [_PARTITION.pack(*key) for key in self.partitions]
        return b"".join(parts)

    @staticmethod
    def decode(envelope: Envelope) -> "DeleteOffsets":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        return _decode_deletion(bytes(envelope.body))


def _decode_deletion(body: bytes) -> DeleteOffsets:
    if body[0] == _JSON:
        values = json.loads(body)
        keys = [(QueueId(bytes.fromhex(q)), index) for q, index in values["partitions"]]
        return DeleteOffsets(values["group"], keys)
    _check(body)
    group, at = read_name(body, 1)
    (count,) = _COUNT.unpack_from(body, at)
    start = at + _COUNT.size
    found = _PARTITION.iter_unpack(body[start : start + count * _PARTITION.size])
    return DeleteOffsets(group, [(QueueId(queue_id), index) for queue_id, index in found])


@of_kind(
    Kind.EXPIRE, DiskUse.ALWAYS, by_items, level=OLDEST, publishes=(RowKind.OFFSET, RowKind.GROUP)
)
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
        return Envelope(Kind.EXPIRE, number=self.again_ms, body=self._encode(level))

    def _encode(self, level: int) -> bytes:
        if level < BINARY_FROM:
            return _dumps({
                "group": self.group, "after": self.after, "nothing_left": self.nothing_left,
                "offsets": [[q.hex(), *more] for q, *more in self.offsets],
            })  # fmt: skip
        parts = [bytes([_FORM]), pack_name(self.group)]
        parts.append(_EXPIRE.pack(self.after, self.nothing_left, len(self.offsets)))
        parts += [_EXPIRED.pack(*offset) for offset in self.offsets]
        return b"".join(parts)

    @staticmethod
    def decode(envelope: Envelope) -> "ExpireOffsets":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        return _decode_expiry(bytes(envelope.body), envelope.number)


def _decode_expiry(body: bytes, again_ms: int) -> ExpireOffsets:
    if body[0] == _JSON:
        values = json.loads(body)
        offsets = [(QueueId(bytes.fromhex(q)), i, time_ms) for q, i, time_ms in values["offsets"]]
        return ExpireOffsets(
            values["group"], values["after"], bool(values["nothing_left"]), offsets, again_ms
        )
    _check(body)
    group, at = read_name(body, 1)
    after, nothing_left, count = _EXPIRE.unpack_from(body, at)
    start = at + _EXPIRE.size
    found = _EXPIRED.iter_unpack(body[start : start + count * _EXPIRED.size])
    offsets = [(QueueId(queue_id), index, time_ms) for queue_id, index, time_ms in found]
    return ExpireOffsets(group, after, nothing_left, offsets, again_ms)


def _dumps(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


def _check(body: bytes) -> None:
    if body[0] != _FORM:
        raise later_form("a command's body", body[0])
