"""Commands of routes: records of a queue that are passed on to other queues, once each.

- ROUTE, in the home shard of the source's name: a definer's route, or that it is gone.
- CUT, in the source's shard, by its owner alone: what is passed on next, and in how many parts.
- SHIP, in the shard of the targets: one part of a cut, a batch for each target.
- FORGET_LANDED: nothing comes any more by these routes.

Cuts are logged before anything of them is shipped. So who has to ship again what may have landed
makes the same parts: each target's batch is in a part that its name alone decides.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, of_kind, turn
from kproxy.virtual.fields import Fields
from kproxy.virtual.levels import ROUTES_FROM
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId

TARGETS_MAX = 1000
"""The most targets of one SHIP; `routes.cutting` puts about half as many into one."""

_FORM = 1
_FORM_AFTER = 2  # a SHIP that says where its cut begins
# First what has the place of a batch's base offset and length, for who looks for damaged frames.
_SHIP = struct.Struct(">QIB16sHBQqHH")
_AFTER = struct.Struct(">Q")
_SPAN_AT = 12
_TARGET = struct.Struct(">BI")
_PLAIN = 1 << 31  # with the length of a target's batch
_LANDED = Fields("UP")
_KEY = Fields("Y")


@of_kind(
    Kind.ROUTE, DiskUse.MODEST, turn, level=ROUTES_FROM,
    publishes=(RowKind.ROUTE, RowKind.ROUTE_DEFINITION, RowKind.PENDING_ASSIGNMENT,
               RowKind.PARTITION), answered_across_workers=True,
    head="queue_id=definer number=as_of", json="source spec from_start waits?",
)  # fmt: skip
class DefineRoute(Command):
    """A note in the home shard of the queue name `source`: a route, or with `spec` "" its end.

    Void where a later one of its definer was there before. `as_of`: a log offset of the definer's
    home shard. `waits`: as in CONFIGURE, put off where there is no room.
    """

    definer: QueueId
    source: str
    spec: str
    from_start: bool
    as_of: int
    waits: bool = False


@of_kind(
    Kind.CUT, DiskUse.MODEST, level=ROUTES_FROM, publishes=(RowKind.ROUTE, RowKind.PARTITION),
    head="key=source number=after", body="through:Q parts:H made:I definer:U",
)  # fmt: skip
class Cut(Command):
    """All before `after` has landed; what lies before `through` is shipped next.

    `after` is where the last cut ended; void where it is not. `made`: queues that were made for
    what has landed since the last one.
    """

    source: PartitionKey
    definer: QueueId
    after: int
    through: int
    parts: int
    made: int = 0


class Target(NamedTuple):
    """A queue, and where its batch lies in the body of a SHIP."""

    name: str
    position: int
    length: int
    plain: bool = False
    """Whether it is made without settings, where it is not there."""


class Batches(NamedTuple):
    """The batches of a SHIP as its body has them, behind its settings: lengths, names, batches."""

    targets: int
    data: bytes

    @staticmethod
    def of(found: Sequence[tuple[str, bytes | memoryview]], plain: str = "") -> "Batches":
        """Return those of (target, its batch). `plain`: it is made without the SHIP's `configs`."""
        assert len(found) <= TARGETS_MAX, f"{len(found)} targets in a SHIP"
        names = [name.encode() for name, _ in found]
        table = [
            _TARGET.pack(len(n), len(d) | (_PLAIN if name == plain else 0))
            for (name, d), n in zip(found, names, strict=True)
        ]
        return Batches(len(found), b"".join([*table, *names, *[data for _, data in found]]))


def _weight_of_ship(envelope: Envelope) -> int:
    return 1 + 2 * envelope.number


@of_kind(
    Kind.SHIP, DiskUse.ORDINARY, _weight_of_ship, level=ROUTES_FROM,
    publishes=(RowKind.PARTITION, RowKind.QUEUE, RowKind.NO_EFFECT, RowKind.ROUTE_LANDED,
               RowKind.ROUTE, RowKind.PENDING_ASSIGNMENT), answered_across_workers=True,
)  # fmt: skip
class Ship(NamedTuple):
    """One part of a cut, for the targets of one shard. Void where it was taken before.

    Targets are found by name when it is applied, and made where they are not there, with these
    `configs`, by ids that `salt` and the time give. `only`: the one target is the definer, and is
    not made. `look_ms`: as in an APPEND, when to look at the retention of a target that has no
    settings but these. `after`: no record before that offset is in it; -1: it does not say.
    """

    source: PartitionKey
    definer: QueueId
    through: int
    part: int
    targets: Sequence[Target]
    only: bool
    salt: int
    time_ms: int
    look_ms: int
    configs: dict[str, str]
    after: int = -1

    @staticmethod
    def envelope(
        source: PartitionKey, definer: QueueId, through: int, part: int, batches: Batches, *,
        only: bool, salt: int, time_ms: int, look_ms: int, configs: dict[str, str], after: int = -1,
    ) -> Envelope:  # fmt: skip
        """Make an envelope. `after` needs the level SHIPS_FROM."""
        form, begins = (_FORM, b"") if after < 0 else (_FORM_AFTER, _AFTER.pack(after))
        settings = orjson.dumps(configs) if configs else b""
        size = _SHIP.size - _SPAN_AT + len(begins) + len(settings) + len(batches.data)
        head = _SHIP.pack(
            through, size, form, definer, part, only, salt, look_ms, len(settings), batches.targets
        )
        body = b"".join((head, begins, settings, batches.data))
        return Envelope(Kind.SHIP, *source, number=batches.targets, time_ms=time_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "Ship":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body = envelope.body
        through, _, form, definer, part, only, salt, look_ms, length, count = _SHIP.unpack_from(
            body
        )
        at, after = _SHIP.size, -1
        if form == _FORM_AFTER:
            (after,) = _AFTER.unpack_from(body, at)
            at += _AFTER.size
        elif form != _FORM:
            raise later_form("a command SHIP", form)
        configs = orjson.loads(body[at : at + length]) if length else {}
        at += length
        sizes = list(_TARGET.iter_unpack(body[at : at + count * _TARGET.size]))
        at += count * _TARGET.size
        position = at + sum(size for size, _ in sizes)
        targets = []
        for size, said in sizes:
            length, name = said & ~_PLAIN, str(body[at : at + size], "ascii")
            targets.append(Target(name, position, length, bool(said & _PLAIN)))
            at += size
            position += length
        return Ship(
            (envelope.queue_id, envelope.partition), QueueId(definer), through, part, targets,
            bool(only), salt, envelope.time_ms, look_ms, configs, after,
        )  # fmt: skip


@of_kind(
    Kind.FORGET_LANDED, DiskUse.ALWAYS, level=ROUTES_FROM,
    publishes=(RowKind.ROUTE_LANDED, RowKind.FORWARDED),
)  # fmt: skip
class ForgetLanded(NamedTuple):
    """The end of these routes: their sources or definers are gone, for long.

    Void for what was used after `time_ms`. `forwarded`: keys of FORWARDED rows of such sources;
    they need the level FORGETS_FROM, and have no time: whoever sends this has waited.
    """

    routes: Sequence[tuple[QueueId, PartitionKey]]
    time_ms: int
    forwarded: Sequence[bytes] = ()

    def envelope(self) -> Envelope:
        assert not (self.routes and self.forwarded)  # one or the other
        body = b"".join(
            [_LANDED.pack(*route) for route in self.routes]
            + [_KEY.pack(key) for key in self.forwarded]
        )
        count = len(self.forwarded)
        return Envelope(Kind.FORGET_LANDED, number=count, time_ms=self.time_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "ForgetLanded":
        body = bytes(envelope.body)
        if envelope.number:
            return ForgetLanded([], envelope.time_ms, [key for (key,) in _KEY.items(body, 0)])
        return ForgetLanded(
            [(definer, source) for definer, source in _LANDED.items(body, 0)], envelope.time_ms
        )
