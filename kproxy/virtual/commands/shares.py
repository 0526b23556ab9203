"""Commands of share groups (KIP-932), and of records that are passed on from queue to queue.

- SHARE_SET, from the group's coordinator to the shards of the queues: make share partitions, give
  them another start, or drop them. Its *epoch* is the group's version: a late one is void. A
  dropped share partition leaves nothing that would make a late one void. A share partition
  that such a one has made is older than the group is `since`: the group makes it anew.
- SHARE, by the owner of a queue's shard alone: what becomes of records.
- FREE_LANES: lanes that a SHARE holds may go on.
- SHARE_QUEUES, in the group's shard: which queues have share partitions.
- SHARE_LOOK: where share partitions stand. It changes nothing.
- FORWARD: records that a shard takes over from another queue, once each.
- AIM_FORWARD, in the source's shard: where they go.
- SETTLE_FORWARD, in the source's shard: what was owed was taken.

A body: a form byte, then numbers and text of known length, big-endian.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, of_kind
from kproxy.virtual.levels import LANES_FROM, SHARES_FROM
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import CHUNK, NOWHERE, Position
from kproxy.virtual.types import PartitionKey, QueueId

SET_MAX = 500
"""Partitions in one SHARE_SET, SHARE_LOOK or SHARE_QUEUES."""
LATEST, EARLIEST = -1, -2
DEAD_LETTERS = 1
"""The stream of dead letters, in FORWARD."""

_FORM = 1
_FORM_HOLDS = 2  # the form of a SHARE that holds lanes
_FORM_PASSED_ON = 2  # the form of a FORWARD
_HEAD = struct.Struct(">BHI")
_SHARE = struct.Struct(">16sIQQII")
_RUN = struct.Struct(">IIBB")
_HOLD = struct.Struct(">16sIQQ")
_FORWARD = struct.Struct(">BB16sIQIqQIqH")
_LENGTH = struct.Struct(">H")  # at its end
_ITEM_BYTES = 20


def _weight(envelope: Envelope) -> int:
    return 1 + len(envelope.body) // _ITEM_BYTES


def _head(group: str, count: int, form: int) -> bytes:
    name = group.encode()
    return _HEAD.pack(form, len(name), count) + name


def _head_of(envelope: Envelope) -> tuple[bytes, str, int, int]:
    """Return (body, group, count, where the rest begins). Raise ValueError for a later form."""
    body = bytes(envelope.body)
    form, length, count = _HEAD.unpack_from(body)
    if form not in (_FORM, _FORM_HOLDS):
        raise later_form(f"a command {Kind(envelope.kind).name}", form)
    at = _HEAD.size + length
    return body, body[_HEAD.size : at].decode(), count, at


class ShareAction(IntEnum):
    """The action of SHARE_SET on a share partition."""

    INITIALISE = 0  # make it, where the group has none
    RESET = 1  # give it another start, and forget what is done
    DROP = 2
    RESOLVE = 3  # its start, which depends on a time, was found


class ShareChange(NamedTuple):
    """`start`: an offset, LATEST or EARLIEST. `since_ms`: where the owner is to look for it."""

    key: PartitionKey
    action: ShareAction
    epoch: int
    start: int = LATEST
    since_ms: int = NOWHERE


def _change(key: PartitionKey, action: int, epoch: int, start: int, since_ms: int) -> ShareChange:
    return ShareChange(key, ShareAction(action), epoch, start, since_ms)


_SHARE_ROWS = (RowKind.SHARE_PARTITION, RowKind.SHARE_STATES)


@of_kind(
    Kind.SHARE_SET, DiskUse.MODEST, _weight, level=SHARES_FROM,
    publishes=(*_SHARE_ROWS, RowKind.FORWARD_TARGET), head="number=since time_ms",
    body="#group:H #changes:I group:T changes:(PBQqq)", make=_change,
)  # fmt: skip
class SetShares(Command):
    """Share partitions of a group, in the shard of their queue partitions.

    `since`: what was made at an earlier epoch is not the group's: it was before it, or was dropped.
    """

    group: str
    changes: Sequence[ShareChange]
    time_ms: int
    since: int = 0


class Cause(IntEnum):
    """The reason why records were archived."""

    NONE = 0  # a gap, an aborted transaction, what is not there any more
    REJECTED = 1
    DELIVERY_LIMIT = 2
    EXPIRED = 3  # from LIFE_FROM on: only where a queue says that its records may


OWED = 0x80
"""The bit in the cause of a run: the dead-letter queue is to have these records."""


class Run(NamedTuple):
    """Records in a row that become the same. `byte`: `share_rows.state_byte`."""

    first: int
    records: int
    byte: int
    cause: int = Cause.NONE


class ShareRuns(NamedTuple):
    """The new states of a share partition's records. `epoch`: its row's. Runs are ascending.

    They are as in `Run`; those that are decoded are plain tuples, which take half of the time.
    """

    key: PartitionKey
    epoch: int
    runs: Sequence[tuple[int, int, int, int]]


class Hold(NamedTuple):
    """A lane, by its hash, that waits for an operator, as the record at an offset was given up."""

    key: PartitionKey
    lane: int
    offset: int


def _weight_of_states(envelope: Envelope) -> int:
    return _weight(envelope) + envelope.number // 2


@of_kind(
    Kind.SHARE, DiskUse.MODEST, _weight_of_states, level=SHARES_FROM,
    publishes=(*_SHARE_ROWS, RowKind.DEAD_LETTER, RowKind.HELD_LANE),
)  # fmt: skip
class ChangeShares(NamedTuple):
    """States of records, as their shard's owner decided; void from anybody else.

    The envelope's number says what is not seen by its length: about how many rows of states its
    runs go over. `holds`: lanes that are held by it; that needs the level LANES_FROM.
    """

    group: str
    partitions: Sequence[ShareRuns]
    time_ms: int
    holds: Sequence[Hold] = ()

    def envelope(self) -> Envelope:
        form = _FORM_HOLDS if self.holds else _FORM
        parts = [_head(self.group, len(self.partitions), form)]
        for key, epoch, runs in self.partitions:
            base = runs[0][0] if runs else 0
            parts.append(_SHARE.pack(*key, epoch, base, len(runs), 0))
            parts += [
                _RUN.pack(first - base, records, byte, cause)
                for first, records, byte, cause in runs
            ]
        parts += [_HOLD.pack(*key, lane, offset) for key, lane, offset in self.holds]
        records = sum([run[1] for one in self.partitions for run in one.runs])
        body = b"".join(parts)
        return Envelope(Kind.SHARE, number=records // CHUNK, time_ms=self.time_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "ChangeShares":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body, group, count, at = _head_of(envelope)
        partitions = []
        for _ in range(count):
            queue_id, index, epoch, base, runs, _ = _SHARE.unpack_from(body, at)
            at += _SHARE.size
            end = at + runs * _RUN.size
            found = [
                (base + delta, records, byte, cause)
                for delta, records, byte, cause in _RUN.iter_unpack(body[at:end])
            ]
            at = end
            partitions.append(ShareRuns((QueueId(queue_id), index), epoch, found))
        holds = tuple(
            Hold((QueueId(queue_id), index), lane, offset)
            for queue_id, index, lane, offset in _HOLD.iter_unpack(body[at:])
        )
        return ChangeShares(group, partitions, envelope.time_ms, holds)


@of_kind(
    Kind.FREE_LANES, DiskUse.ALWAYS, _weight, level=LANES_FROM, publishes=(RowKind.HELD_LANE,),
    answered_across_workers=True, body="key:P #group:H group:T lanes:(Q)",
)  # fmt: skip
class FreeLanes(Command):
    """Lanes of a share partition, by their hashes, that may go on."""

    key: PartitionKey
    group: str
    lanes: Sequence[tuple[int]]


@of_kind(
    Kind.SHARE_QUEUES, DiskUse.MODEST, _weight, level=SHARES_FROM, publishes=(RowKind.SHARE_QUEUE,),
    head="number=after", body="#group:H #queues:I group:T queues:(16sI)",
)  # fmt: skip
class NoteShareQueues(Command):
    """A note in the group's shard: a queue has so many share partitions; 0: none.

    Without effect if the group is not `after` any more.
    """

    group: str
    after: int
    queues: Sequence[tuple[QueueId, int]]


@of_kind(
    Kind.SHARE_LOOK, DiskUse.ALWAYS, _weight, level=SHARES_FROM, answered_across_workers=True,
    body="#group:H #keys:I group:T keys:(P)",
)  # fmt: skip
class LookAtShares(Command):
    """A question to the fold where share partitions stand.

    The outcome's `numbers` has for each: its start, -1 where there is none or it is not resolved,
    and how many records it has still to deliver or to see acknowledged, -1 likewise. A lag is below
    0 if it begins behind the end: so many are to be written before there is one for it.
    """

    group: str
    keys: Sequence[PartitionKey]


FORWARD_BYTES = _FORWARD.size
"""The bytes that a FORWARD has behind its batch, beside the group's name."""


@of_kind(
    Kind.FORWARD, DiskUse.ORDINARY, level=SHARES_FROM,
    publishes=(RowKind.PARTITION, RowKind.NO_EFFECT, RowKind.FORWARDED),
    answered_across_workers=True,
)  # fmt: skip
class Forward(NamedTuple):
    """A batch of records from another queue. Void where any of its positions was taken before.

    The envelope names the target. The body begins with the batch, so that it is read as it lies.
    `group`: what tells streams from the same source to the same target apart. `stream`: what kind
    they are. `look_ms`: as in an APPEND, when to look at the target's retention. `passed_on`: the
    target's routes pass it on, as what a producer has sent; that needs the level LETTERS_FROM.
    """

    target: PartitionKey
    stream: int
    source: PartitionKey
    group: str
    first: Position
    last: Position
    batch: bytes | memoryview
    look_ms: int = 0
    passed_on: bool = False

    def envelope(self) -> Envelope:
        name = self.group.encode()
        places = *self.first, *self.last
        form = _FORM_PASSED_ON if self.passed_on else _FORM
        tail = _FORWARD.pack(form, self.stream, *self.source, *places, len(name))
        return Envelope(
            Kind.FORWARD, *self.target, number=self.look_ms,
            body=b"".join((self.batch, name, tail)),
        )  # fmt: skip

    @staticmethod
    def decode(envelope: Envelope) -> "Forward":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body = bytes(envelope.body)
        at = len(body) - _FORWARD.size
        form, stream, queue_id, index, *places, length = _FORWARD.unpack_from(body, at)
        if form not in (_FORM, _FORM_PASSED_ON):
            raise later_form("a command FORWARD", form)
        return Forward(
            (envelope.queue_id, envelope.partition), stream, (QueueId(queue_id), index),
            body[at - length : at].decode(), Position(*places[:3]), Position(*places[3:]),
            body[: at - length], envelope.number, form == _FORM_PASSED_ON,
        )  # fmt: skip


def is_passed_on(envelope: Envelope) -> bool:
    """Return whether the target's routes pass on the batch of a FORWARD."""
    return envelope.body[len(envelope.body) - _FORWARD.size] == _FORM_PASSED_ON


def batch_of(envelope: Envelope) -> memoryview:
    """Return the batch that a FORWARD begins with: no more of it is read."""
    (length,) = _LENGTH.unpack_from(envelope.body, len(envelope.body) - _LENGTH.size)
    return memoryview(envelope.body)[: len(envelope.body) - _FORWARD.size - length]


@of_kind(
    Kind.AIM_FORWARD, DiskUse.ALWAYS, level=SHARES_FROM, publishes=(RowKind.FORWARD_TARGET,),
    head="key=source number=after", body="target:P group:T",
)  # fmt: skip
class AimForward(Command):
    """A note in the source's shard: where a stream goes from now on.

    It is logged before the first FORWARD there. So who has to send again what may have been taken
    sends it to where it was sent before, whatever is set by then. `after`: the log offset of the
    one that it comes in the place of, -1 for none; void where that is not the last one.
    """

    source: PartitionKey
    group: str
    target: PartitionKey
    after: int = -1


@of_kind(
    Kind.SETTLE_FORWARD, DiskUse.ALWAYS, _weight, level=SHARES_FROM,
    publishes=(RowKind.DEAD_LETTER,), body="#group:H #places:I group:T places:(QI)",
)  # fmt: skip
class SettleForward(Command):
    """The places of DEAD_LETTER rows that were taken, or given up."""

    places: Sequence[tuple[int, int]]
    group: str = ""  # nobody's
