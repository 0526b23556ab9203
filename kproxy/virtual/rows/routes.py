"""Rows of routes: records of a queue, the *source*, that are passed on to other queues.

A route is defined by the settings of a queue, its *definer*: an entrance is the definer of its own
route, a queue with a filter the definer of a route from another queue. A *redrive* is a route out
of a queue that ends where the queue ended when it was set: its definer is not the queue itself, but
an id of its own (`redrive_id`), so that the same records may be passed on once more.

- A ROUTE_DEFINITION is in the home shard of the source's name, whether the source is there or not.
- A ROUTE is beside the records: how far a partition of the source was passed on.
- A ROUTE_LANDED is in each shard that gets records: how much of one partition's cut it has taken.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from kproxy.virtual.fields import Fields
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.schema import FORM, Get, Keys, Rows
from kproxy.virtual.types import PartitionKey, QueueId

_ROUTE = Fields("BQQHQQHR")
_EPOCH = Fields("QZ")
_DEFINITION = Fields("UQ?Z")
EPOCHS_MAX = 64
"""The most epochs of one route. With as many, a change is refused or put off until more is passed
on; below the level WAITS_FROM, and of a definer that goes, it takes the last one's place."""
DEFINITIONS_MAX = 100
"""The most definitions of routes from one queue; of ended ones the oldest are forgotten."""
SOURCE_PARTITIONS_MAX, PARTITION_ROUTES_MAX = 2000, 10_000
"""Partitions of a queue that routes are from, and those times its routes: a command may change them
all."""
PARTS_MAX = 64
"""Parts of a cut for one shard: a bit each."""


class Epoch(NamedTuple):
    """The `spec` by which records go from the offset `start` on; b"": nowhere."""

    start: int
    spec: bytes


class Route(NamedTuple):
    """The progress of a route: what lies before `landed` has landed in all shards; what lies before
    `cut` is on its way.

    `parts`: in how many parts each shard gets the records between. `made`: queues that were made
    for it. `as_of`: the log offset, in the source's home shard, of what was told last.
    """

    landed: int
    cut: int
    parts: int
    made: int
    as_of: int
    epochs: tuple[Epoch, ...]

    @property
    def ends(self) -> int | None:
        """The offset from which on nothing is passed on; None: it goes on."""
        last = self.epochs[-1]
        return None if last.spec else last.start

    @property
    def is_over(self) -> bool:
        """Whether all of it has landed, and nothing comes any more."""
        return self.ends is not None and self.landed >= self.ends

    def encode(self) -> bytes:
        epochs = b"".join([_EPOCH.pack(*epoch) for epoch in self.epochs])
        return _ROUTE.pack(FORM, *self[:5], len(self.epochs), epochs)


def decode_route(data: bytes) -> Route:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    form, landed, cut, parts, made, as_of, _, epochs = _ROUTE.read(data, 0)
    if form != FORM:
        raise later_form("a row of kind P", form)
    found = tuple(map(Epoch._make, _EPOCH.items(epochs, 0)))
    return Route(landed, cut, parts, made, as_of, found)


def ends_with(data: bytes, spec: bytes) -> bool:
    """Return whether the last epoch of an encoded route has this spec, which is text."""
    return data.endswith(len(spec).to_bytes(4, "big") + spec)


_REDRIVE = 0xFF
"""The first byte of a redrive's id. A queue's begins with a time, of 47 bits."""


def redrive_id(queue_id: QueueId, job: str) -> QueueId:
    """Return the definer of a redrive out of a queue; `job` tells it from those before it."""
    told = blake2b(bytes(queue_id) + job.encode(), digest_size=15).digest()
    return QueueId(bytes([_REDRIVE]) + told)


def is_redrive(definer: QueueId) -> bool:
    """Return whether a definer is a redrive's."""
    return definer[0] == _REDRIVE


ROUTES = Keys(RowKind.ROUTE, "PU")
"""The routes by source partition and definer."""


def landed_of(found: Iterable[tuple[bytes, bytes]]) -> Iterator[int]:
    """Yield up to which offset each of these rows has passed on what it is to."""
    for key, data in found:
        route = decode_route(data)
        if not (is_redrive(ROUTES.parts(key)[1]) and route.is_over):
            yield route.landed


def route_in(get: Get, source: PartitionKey, definer: QueueId) -> Route | None:
    """Return a route. Raise ValueError for a form of a later kproxy."""
    data = get(ROUTES.key(source, definer))
    return None if data is None else decode_route(data)


# -- rows of the source's home shard


class Definition(NamedTuple):
    """A route, whatever the source is by now. `as_of`: when the definer's home shard said so.

    `from_start`: of a source that was there before it, all records are passed on.
    """

    definer: QueueId
    as_of: int
    from_start: bool
    spec: bytes  # b"": there is none any more


DEFINITIONS = Keys(RowKind.ROUTE_DEFINITION, "T")
"""All definitions of routes from a queue of this name are one row."""


def encode_definitions(definitions: Sequence[Definition]) -> bytes:
    return bytes([FORM]) + b"".join([_DEFINITION.pack(*one) for one in definitions])


def decode_definitions(data: bytes) -> list[Definition]:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    if data[0] != FORM:
        raise later_form("a row of kind X", data[0])
    return [Definition._make(values) for values in _DEFINITION.items(data, 1)]


def routes_max(partitions: int) -> int:
    """Return how many routes may be from a queue of so many partitions."""
    if partitions > SOURCE_PARTITIONS_MAX:
        return 0
    return min(DEFINITIONS_MAX, PARTITION_ROUTES_MAX // max(1, partitions))


# -- landed parts


class Landed(NamedTuple):
    """`taken`: a bit for each part of the cut that ends at `through`. `used_ms`: when, last."""

    through: int
    taken: int
    used_ms: int

    def has(self, through: int, part: int) -> bool:
        """Return whether this part of the cut that ends there was taken before."""
        if through != self.through:
            return through < self.through
        return bool(self.taken >> part & 1)

    def with_part(self, through: int, part: int, now_ms: int) -> "Landed":
        """Return the row once that part was taken."""
        taken = self.taken if through == self.through else 0
        return Landed(through, taken | 1 << part, max(now_ms, self.used_ms))


NOTHING_LANDED = Landed(0, 0, 0)


ROUTE_PARTS = Rows(RowKind.ROUTE_LANDED, "UP", Landed, "QQq")
"""The parts that landed, by definer and source partition."""
