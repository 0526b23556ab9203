"""Commands of queues: make, grow, configure and delete them, and tell other shards."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kproxy.virtual.commands.bodies import body_of, values_of
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import DiskUse, of_kind, one, turn
from kproxy.virtual.levels import OLDEST
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import QueueId

_ROWS = 2  # partitions made in one unit of weight
_PARTITIONS = re.compile(rb'"partitions": ?(\d{1,9})')
_QUEUE_ROWS = (
    RowKind.QUEUE, RowKind.PARTITION, RowKind.PENDING_ASSIGNMENT, RowKind.ROUTE_DEFINITION,
    RowKind.ROUTE,
)  # fmt: skip


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


@of_kind(
    Kind.CREATE,
    DiskUse.ORDINARY,
    _weight_of_create,
    level=OLDEST,
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
        body = body_of(name=self.name, partitions=self.partitions, configs=self.configs, **more)
        return Envelope(Kind.CREATE, self.queue_id, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "CreateQueue":
        values = values_of(envelope)
        return CreateQueue(
            envelope.queue_id, values["name"], values["partitions"], values["configs"],
            values.get("unasked", False),
        )  # fmt: skip


@of_kind(
    Kind.GROW,
    DiskUse.ORDINARY,
    _weight_of_grow,
    level=OLDEST,
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


@of_kind(
    Kind.CONFIGURE,
    DiskUse.MODEST,
    turn,
    level=OLDEST,
    publishes=_QUEUE_ROWS,
    answered_across_workers=True,
)
class ConfigureQueue(NamedTuple):
    """A queue's settings change; `replace_all` drops those that are not given."""

    queue_id: QueueId
    given: dict[str, str]
    dropped: list[str]
    replace_all: bool

    def envelope(self) -> Envelope:
        body = body_of(set=self.given, drop=self.dropped, all=self.replace_all)
        return Envelope(Kind.CONFIGURE, self.queue_id, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "ConfigureQueue":
        values = values_of(envelope)
        return ConfigureQueue(envelope.queue_id, values["set"], values["drop"], values["all"])


@of_kind(
    Kind.DELETE,
    DiskUse.ALWAYS,
    turn,
    level=OLDEST,
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
    level=OLDEST,
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
        body = body_of(name=self.name, partitions=self.partitions, **routes)
        return Envelope(
            Kind.ASSIGN_PARTITIONS,
            self.queue_id,
            number=self.as_of,
            time_ms=self.time_ms,
            body=body,
        )

    @staticmethod
    def decode(envelope: Envelope) -> "AssignPartitions":
        values = values_of(envelope)
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
    level=OLDEST,
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


@of_kind(Kind.DROP_TOMBSTONE, DiskUse.ALWAYS, one, level=OLDEST, publishes=(RowKind.ASSIGNMENT,))
class DropTombstone(NamedTuple):
    """No late command can speak of this deleted queue any more."""

    queue_id: QueueId

    def envelope(self) -> Envelope:
        return Envelope(Kind.DROP_TOMBSTONE, self.queue_id)

    @staticmethod
    def decode(envelope: Envelope) -> "DropTombstone":
        return DropTombstone(envelope.queue_id)
