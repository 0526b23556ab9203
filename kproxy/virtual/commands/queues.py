"""Commands of queues: make, grow, configure and delete them, and tell other shards."""

import re
from collections.abc import Sequence
from typing import Any

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, of_kind, turn
from kproxy.virtual.levels import LIFE_FROM, OLDEST
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import QueueId

_ROWS = 2  # partitions made in one unit of weight
_PARTITIONS = re.compile(rb'"partitions": ?(\d{1,9})')
_QUEUE_ROWS = (
    RowKind.QUEUE, RowKind.PARTITION, RowKind.PENDING_ASSIGNMENT, RowKind.ROUTE_DEFINITION,
    RowKind.ROUTE,
)  # fmt: skip


def _partitions(envelope: Envelope) -> int:
    """Return how many partitions a body names, without decoding it."""
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
    Kind.CREATE, DiskUse.ORDINARY, _weight_of_create, level=OLDEST, publishes=_QUEUE_ROWS,
    answered_across_workers=True, head="queue_id", json="name partitions configs unasked?",
)  # fmt: skip
class CreateQueue(Command):
    """A new queue, in its home shard. `unasked` (`rows.Queue`) needs the level UNASKED_FROM."""

    queue_id: QueueId
    name: str
    partitions: int
    configs: dict[str, str]
    unasked: bool = False


@of_kind(
    Kind.GROW, DiskUse.ORDINARY, _weight_of_grow, level=OLDEST, publishes=_QUEUE_ROWS,
    answered_across_workers=True, head="queue_id number=partitions",
)  # fmt: skip
class GrowQueue(Command):
    """A queue gets more partitions: so many in all."""

    queue_id: QueueId
    partitions: int


@of_kind(
    Kind.CONFIGURE, DiskUse.MODEST, turn, level=OLDEST, publishes=_QUEUE_ROWS,
    answered_across_workers=True, head="queue_id",
    json="set=given drop=dropped all=replace_all waits?",
)  # fmt: skip
class ConfigureQueue(Command):
    """A queue's settings change; `replace_all` drops those that are not given.

    `waits`: refused, or put off, where a partition has no room for the epoch of a route that it
    begins. Needs the level WAITS_FROM.
    """

    queue_id: QueueId
    given: dict[str, str]
    dropped: list[str]
    replace_all: bool
    waits: bool = False


@of_kind(
    Kind.DELETE, DiskUse.ALWAYS, turn, level=OLDEST,
    publishes=(*_QUEUE_ROWS, RowKind.SWEEP_QUEUE, RowKind.COMPACTION, RowKind.DELAY),
    answered_across_workers=True, head="queue_id",
)  # fmt: skip
class DeleteQueue(Command):
    """A queue goes, with its records."""

    queue_id: QueueId


@of_kind(
    Kind.EXPIRE_QUEUE, DiskUse.ALWAYS, turn, level=LIFE_FROM,
    publishes=(*_QUEUE_ROWS, RowKind.SWEEP_QUEUE, RowKind.COMPACTION, RowKind.DELAY),
    answered_across_workers=True, head="queue_id number=end time_ms",
)  # fmt: skip
class ExpireQueue(Command):
    """A queue goes as nobody has used it for long, by the shard's owner alone.

    `end`: where it ended when its owner looked. `time_ms`: when that was.
    """

    queue_id: QueueId
    end: int
    time_ms: int


@of_kind(
    Kind.ASSIGN_PARTITIONS, DiskUse.ALWAYS, _weight_of_assignment, level=OLDEST,
    publishes=(RowKind.PARTITION, RowKind.SWEEP_QUEUE, RowKind.ASSIGNMENT, RowKind.COMPACTION,
               RowKind.ROUTE, RowKind.DELAY),
    answered_across_workers=True, head="queue_id number=as_of time_ms",
    json="name partitions routes? waits?",
)  # fmt: skip
class AssignPartitions(Command):
    """A home shard tells another shard how many partitions its queue has; 0: it is deleted.

    `as_of`: the log offset in the home shard at which that was decided. `routes`: all routes from
    the queue (`route_definitions.to_tell`). `waits`: as in CONFIGURE, put off where there is no
    room.
    """

    queue_id: QueueId
    name: str
    partitions: int
    as_of: int
    time_ms: int
    routes: Sequence[Sequence[Any]] = ()
    waits: bool = False


@of_kind(
    Kind.QUEUE_READY, DiskUse.ALWAYS, level=OLDEST,
    publishes=(*_QUEUE_ROWS, RowKind.SWEEP_QUEUE, RowKind.COMPACTION), head="queue_id number=as_of",
    flag="refused",
)  # fmt: skip
class QueueReady(Command):
    """A note in the home shard: all other shards have folded what it decided at `as_of`.

    `refused`: but that of its source has no room for its route.
    """

    queue_id: QueueId
    as_of: int
    refused: bool = False


@of_kind(
    Kind.DROP_TOMBSTONE, DiskUse.ALWAYS, level=OLDEST, publishes=(RowKind.ASSIGNMENT,),
    head="queue_id",
)  # fmt: skip
class DropTombstone(Command):
    """No late command can speak of this deleted queue any more."""

    queue_id: QueueId
