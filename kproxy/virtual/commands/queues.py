"""Commands: one class for each kind of envelope, with its fields, its bytes and its traits.

`envelope` encodes, `decode` reads. Bytes are written to logs for ever: a class never changes the
meaning of a form that was written. Commands that name many offsets are in `offset_commands`; they
have a binary form from level 2 on. Those of transactions are in `transaction_commands`.

To add a kind: add it to `Kind`, write its class here, and its method in the fold. `of_kind` asks
for its traits; `tests/virtual/test_commands.py` holds each kind against them.

Classes are named tuples: frozen, and three times as fast to make as frozen dataclasses (measured).
"""

import re
import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import orjson  # a tenth of what the standard library's costs for each new queue (measured)

from kproxy.virtual.commands.access import Secure
from kproxy.virtual.commands.delays import Due, Later
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.commands.offsets import CommitOffsets, DeleteOffsets, ExpireOffsets
from kproxy.virtual.commands.producers import ForgetProducers
from kproxy.virtual.commands.restore import Restored
from kproxy.virtual.commands.routes import Cut, DefineRoute, ForgetLanded, Ship
from kproxy.virtual.commands.shares import (
    AimForward,
    ChangeShares,
    Forward,
    LookAtShares,
    NoteShareQueues,
    SetShares,
    SettleForward,
)
from kproxy.virtual.commands.traits import TRAITS, DiskUse, by_items, of_kind, one, turn
from kproxy.virtual.commands.transactions import (
    Begin,
    Complete,
    End,
    Enlist,
    ExpireTransaction,
    InitProducer,
    Marker,
    TransactionCommit,
)
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows.groups import Rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import NOT_COMPACTED, Compaction
from kproxy.virtual.types import QueueId

__all__ = [
    "TRAITS",
    "AimForward",
    "AllocateProducerId",
    "Append",
    "AssignPartitions",
    "Begin",
    "ChangeGroup",
    "ChangeShares",
    "Claim",
    "CommitOffsets",
    "Compact",
    "Complete",
    "ConfigureGroup",
    "ConfigureQueue",
    "Copy",
    "CreateQueue",
    "Cut",
    "DefineRoute",
    "DeleteGroup",
    "DeleteOffsets",
    "DeleteQueue",
    "DropTombstone",
    "Due",
    "End",
    "Enlist",
    "ExpireOffsets",
    "ExpireTransaction",
    "Foreign",
    "ForgetLanded",
    "ForgetProducers",
    "Forward",
    "GrowQueue",
    "InitProducer",
    "Later",
    "LookAtShares",
    "Marker",
    "NoteShareQueues",
    "QueueReady",
    "Replace",
    "Restored",
    "Secure",
    "SetShares",
    "SettleForward",
    "Ship",
    "TransactionCommit",
    "Trim",
]  # fmt: skip
_ROWS = 2  # partitions made in one unit of weight
_PARTITIONS = re.compile(rb'"partitions": ?(\d{1,9})')
_QUEUE_ROWS = (
    RowKind.QUEUE, RowKind.PARTITION, RowKind.PENDING_ASSIGNMENT, RowKind.ROUTE_DEFINITION,
    RowKind.ROUTE,
)  # fmt: skip


def _body(**values: Any) -> bytes:
    return orjson.dumps(values)


def _values(envelope: Envelope) -> dict[str, Any]:
    decoded = orjson.loads(envelope.body)
    assert isinstance(decoded, dict)
    return decoded


def _partitions(envelope: Envelope) -> int:
    """How many partitions a body names, without decoding it."""
    found = _PARTITIONS.search(envelope.body)
    return int(found[1]) if found else 0


def _weight_of_create(envelope: Envelope) -> int:
    return 1 + _partitions(envelope) // _ROWS


def _weight_of_grow(envelope: Envelope) -> int:
    return 1 + envelope.number // _ROWS


def _weight_of_assignment(envelope: Envelope) -> int:
    partitions = _partitions(envelope)
    return 1 + partitions // _ROWS if partitions else turn(envelope)  # none left: a deletion


# -- records


@of_kind(
    Kind.APPEND,
    DiskUse.ORDINARY,
    one,
    publishes=(
        RowKind.PARTITION, RowKind.PRODUCER, RowKind.NO_EFFECT, RowKind.OPEN_TRANSACTION,
        RowKind.OPEN_FIRST,
    ),
    carries_batch=True,
)  # fmt: skip
class Append:
    """A client's record batch, as it came. The hot path makes the envelope itself.

    `number`: when to look at the partition's retention (ms). `time_ms`: when it came, from
    `levels.PRODUCERS_FROM` on; its producer is remembered by that.
    """


@of_kind(
    Kind.COPY,
    DiskUse.MODEST,
    one,
    publishes=(RowKind.PARTITION, RowKind.NO_EFFECT),
    carries_batch=True,
)
class Copy:
    """A live batch, written again further on. `envelope.COPIED` is in front of it.

    `number`: its base offset. `time_ms`: as in a REPLACE, without generations.
    """


@of_kind(
    Kind.REPLACE,
    DiskUse.MODEST,
    one,
    publishes=(RowKind.PARTITION, RowKind.NO_EFFECT),
    carries_batch=True,
)
class Replace:
    """As COPY, of a batch that compaction has made smaller, or makes smaller with this.

    `time_ms`: the generation that it replaces, and the new one (`generations`). It has no effect
    where the batch is of another generation: it was made from what is not there any more.
    """

    @staticmethod
    def generations(envelope: Envelope) -> tuple[int, int]:
        """The generation that is replaced, and the new one."""
        return divmod(envelope.time_ms & 0xFFFF, 256)

    @staticmethod
    def is_routed(envelope: Envelope) -> bool:
        """Whether the batch came from another queue (`rows.ROUTED`); of a COPY as well."""
        return bool(envelope.time_ms & ROUTED)


ROUTED = 1 << 16
"""In the time of a COPY or REPLACE."""
_COMPACTED = struct.Struct(">QQQQqQQ")
_REMOVED = struct.Struct(">QB")


def _weight_of_compact(envelope: Envelope) -> int:
    return 1 + len(envelope.body) // _REMOVED.size


@of_kind(
    Kind.COMPACT,
    DiskUse.ALWAYS,
    _weight_of_compact,
    publishes=(RowKind.PARTITION, RowKind.COMPACTION, RowKind.ABORTED),
)
class Compact(NamedTuple):
    """Batches of which compaction leaves nothing; at the end of a pass, how far it came.

    `removed`: last offsets and generations. `progress`: None while the pass goes on.
    """

    queue_id: QueueId
    partition: int
    removed: list[tuple[int, int]]
    progress: Compaction | None = None

    def envelope(self) -> Envelope:
        body = _COMPACTED.pack(*(self.progress or NOT_COMPACTED)) + b"".join(
            _REMOVED.pack(*one) for one in self.removed
        )
        number = 0 if self.progress is None else 1
        return Envelope(Kind.COMPACT, self.queue_id, self.partition, number=number, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "Compact":
        progress = Compaction._make(_COMPACTED.unpack_from(envelope.body))
        removed = list(_REMOVED.iter_unpack(envelope.body[_COMPACTED.size :]))
        return Compact(
            envelope.queue_id, envelope.partition, removed, progress if envelope.number else None
        )


@of_kind(Kind.TRIM, DiskUse.ALWAYS, one, publishes=(RowKind.PARTITION,))
class Trim(NamedTuple):
    """Records before `log_start` go; -1 stands for all there are."""

    queue_id: QueueId
    partition: int
    log_start: int
    time_ms: int = 0

    def envelope(self) -> Envelope:
        return Envelope(
            Kind.TRIM, self.queue_id, self.partition, number=self.log_start, time_ms=self.time_ms
        )

    @staticmethod
    def decode(envelope: Envelope) -> "Trim":
        return Trim(envelope.queue_id, envelope.partition, envelope.number, envelope.time_ms)


# -- queues


@of_kind(
    Kind.CREATE,
    DiskUse.ORDINARY,
    _weight_of_create,
    publishes=_QUEUE_ROWS,
    answered_across_workers=True,
)
class CreateQueue(NamedTuple):
    """A new queue, in its home shard. `unasked` (`rows.Queue`) needs the level UNASKED_FROM."""

    queue_id: QueueId
    name: str
    partitions: int
    configs: dict[str, str]
    unasked: bool = False

    def envelope(self) -> Envelope:
        more = {"unasked": True} if self.unasked else {}
        body = _body(name=self.name, partitions=self.partitions, configs=self.configs, **more)
        return Envelope(Kind.CREATE, self.queue_id, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "CreateQueue":
        values = _values(envelope)
        return CreateQueue(
            envelope.queue_id, values["name"], values["partitions"], values["configs"],
            values.get("unasked", False),
        )  # fmt: skip


@of_kind(
    Kind.GROW,
    DiskUse.ORDINARY,
    _weight_of_grow,
    publishes=_QUEUE_ROWS,
    answered_across_workers=True,
)
class GrowQueue(NamedTuple):
    """A queue gets more partitions: so many in all."""

    queue_id: QueueId
    partitions: int

    def envelope(self) -> Envelope:
        return Envelope(Kind.GROW, self.queue_id, number=self.partitions)

    @staticmethod
    def decode(envelope: Envelope) -> "GrowQueue":
        return GrowQueue(envelope.queue_id, envelope.number)


@of_kind(Kind.CONFIGURE, DiskUse.MODEST, turn, publishes=_QUEUE_ROWS, answered_across_workers=True)
class ConfigureQueue(NamedTuple):
    """A queue's settings change; `replace_all` drops those that are not given."""

    queue_id: QueueId
    given: dict[str, str]
    dropped: list[str]
    replace_all: bool

    def envelope(self) -> Envelope:
        body = _body(set=self.given, drop=self.dropped, all=self.replace_all)
        return Envelope(Kind.CONFIGURE, self.queue_id, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "ConfigureQueue":
        values = _values(envelope)
        return ConfigureQueue(envelope.queue_id, values["set"], values["drop"], values["all"])


@of_kind(
    Kind.DELETE,
    DiskUse.ALWAYS,
    turn,
    publishes=(*_QUEUE_ROWS, RowKind.SWEEP_QUEUE, RowKind.COMPACTION, RowKind.DELAY),
    answered_across_workers=True,
)
class DeleteQueue(NamedTuple):
    """A queue goes, with its records."""

    queue_id: QueueId

    def envelope(self) -> Envelope:
        return Envelope(Kind.DELETE, self.queue_id)

    @staticmethod
    def decode(envelope: Envelope) -> "DeleteQueue":
        return DeleteQueue(envelope.queue_id)


@of_kind(
    Kind.ASSIGN_PARTITIONS,
    DiskUse.ALWAYS,
    _weight_of_assignment,
    publishes=(
        RowKind.PARTITION,
        RowKind.SWEEP_QUEUE,
        RowKind.ASSIGNMENT,
        RowKind.COMPACTION,
        RowKind.ROUTE,
        RowKind.DELAY,
    ),
    answered_across_workers=True,
)
class AssignPartitions(NamedTuple):
    """A home shard tells another shard how many partitions its queue has; 0: it is deleted.

    `as_of`: the log offset in the home shard at which that was decided. `routes`: all routes from
    the queue (`route_fold.to_tell`).
    """

    queue_id: QueueId
    name: str
    partitions: int
    as_of: int
    time_ms: int
    routes: Sequence[Sequence[Any]] = ()

    def envelope(self) -> Envelope:
        routes = {"routes": self.routes} if self.routes else {}
        body = _body(name=self.name, partitions=self.partitions, **routes)
        return Envelope(
            Kind.ASSIGN_PARTITIONS,
            self.queue_id,
            number=self.as_of,
            time_ms=self.time_ms,
            body=body,
        )

    @staticmethod
    def decode(envelope: Envelope) -> "AssignPartitions":
        values = _values(envelope)
        return AssignPartitions(
            envelope.queue_id,
            values["name"],
            values["partitions"],
            envelope.number,
            envelope.time_ms,
            values.get("routes", ()),
        )


_REFUSED = b"\1"


@of_kind(
    Kind.QUEUE_READY,
    DiskUse.ALWAYS,
    one,
    publishes=(*_QUEUE_ROWS, RowKind.SWEEP_QUEUE, RowKind.COMPACTION),
)
class QueueReady(NamedTuple):
    """In the home shard: all other shards have folded what it decided at `as_of`.

    `refused`: but that of its source has no room for its route.
    """

    queue_id: QueueId
    as_of: int
    refused: bool = False

    def envelope(self) -> Envelope:
        body = _REFUSED if self.refused else b""
        return Envelope(Kind.QUEUE_READY, self.queue_id, number=self.as_of, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "QueueReady":
        return QueueReady(envelope.queue_id, envelope.number, envelope.body == _REFUSED)


@of_kind(Kind.DROP_TOMBSTONE, DiskUse.ALWAYS, one, publishes=(RowKind.ASSIGNMENT,))
class DropTombstone(NamedTuple):
    """No late command can speak of this deleted queue any more."""

    queue_id: QueueId

    def envelope(self) -> Envelope:
        return Envelope(Kind.DROP_TOMBSTONE, self.queue_id)

    @staticmethod
    def decode(envelope: Envelope) -> "DropTombstone":
        return DropTombstone(envelope.queue_id)


# -- groups


@of_kind(Kind.GROUP, DiskUse.MODEST, by_items, publishes=(RowKind.GROUP, RowKind.MEMBER))
class ChangeGroup(NamedTuple):
    """A group as its coordinator decided it; without effect if the group is not `after` any more.

    `rows`: members that changed, as the fold puts them; None: one that left.
    """

    group: str
    after: int
    group_kind: str
    members: int
    values: dict[str, Any]
    rows: dict[str, bytes | None]
    time_ms: int = 0

    @staticmethod
    def encode(
        group: str,
        after: int,
        group_kind: str,
        members: int,
        values: dict[str, Any],
        rows: Rows,
        *,
        level: int,
        time_ms: int,
    ) -> Generator[None, None, Envelope]:
        """The envelope, from members as their coordinator has them. Yields every few rows."""
        said = {
            "group": group,
            "after": after,
            "kind": group_kind,
            "members": members,
            "values": values,
        }
        packed = level >= group_rows.PACKED_FROM
        body = yield from group_rows.encode_change(said, rows, packed=packed)
        return Envelope(Kind.GROUP, time_ms=time_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "ChangeGroup":
        values, rows = group_rows.decode_change(bytes(envelope.body))
        return ChangeGroup(
            values["group"],
            values["after"],
            values["kind"],
            values["members"],
            values["values"],
            rows,
            envelope.time_ms,
        )


@of_kind(Kind.DELETE_GROUP, DiskUse.ALWAYS, turn, publishes=(RowKind.GROUP, RowKind.OFFSET))
class DeleteGroup(NamedTuple):
    """An empty group goes, with its offsets."""

    group: str

    def envelope(self) -> Envelope:
        return Envelope(Kind.DELETE_GROUP, body=_body(group=self.group))

    @staticmethod
    def decode(envelope: Envelope) -> "DeleteGroup":
        return DeleteGroup(_values(envelope)["group"])


# -- the shard


@of_kind(Kind.PRODUCER_ID, DiskUse.ORDINARY, one)
class AllocateProducerId(NamedTuple):
    """A producer id that nobody has had."""

    def envelope(self) -> Envelope:
        return Envelope(Kind.PRODUCER_ID)

    @staticmethod
    def decode(envelope: Envelope) -> "AllocateProducerId":
        return AllocateProducerId()


@of_kind(Kind.CLAIM, DiskUse.ALWAYS, one, publishes=(RowKind.TERM,))
class Claim(NamedTuple):
    """The envelope's writer serves the shard from now on."""

    writer: int = 0

    def envelope(self) -> Envelope:
        """The log that sends it fills in the writer."""
        return Envelope(Kind.CLAIM, writer=self.writer)

    @staticmethod
    def decode(envelope: Envelope) -> "Claim":
        return Claim(envelope.writer)


@of_kind(Kind.FOREIGN, DiskUse.ORDINARY, by_items)
class Foreign(NamedTuple):
    """In the place of a record of the data topic that no kproxy wrote."""

    def envelope(self) -> Envelope:
        return Envelope(Kind.FOREIGN)

    @staticmethod
    def decode(envelope: Envelope) -> "Foreign":
        return Foreign()
