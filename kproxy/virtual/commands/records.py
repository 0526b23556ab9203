"""Commands of a partition's records: batches that come, are copied, compacted or trimmed."""

import struct
from typing import NamedTuple

from kproxy.virtual.commands.envelope import Body, Envelope, Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, of_kind
from kproxy.virtual.levels import COMPACTION_FROM, LIFE_FROM, OLDEST
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import NOT_COMPACTED, Compaction
from kproxy.virtual.types import QueueId

_FORM = 1


@of_kind(
    Kind.APPEND, DiskUse.ORDINARY, level=OLDEST,
    publishes=(RowKind.PARTITION, RowKind.PRODUCER, RowKind.NO_EFFECT, RowKind.OPEN_TRANSACTION,
               RowKind.OPEN_FIRST), carries_batch=True,
)  # fmt: skip
class Append:
    """A client's record batch, as it came. The hot path makes the envelope itself.

    `number`: when to look at the partition's retention (ms). `time_ms`: when it came, from
    `levels.PRODUCERS_FROM` on; its producer is remembered by that.
    """


IF_END = "kproxy.if-end-offset"
"""The header that says where a partition ends before its record."""
EXPECTED = struct.Struct(">Bq")
"""The bytes behind the batch of an APPEND_IF: the form, and the end that its writer expects."""


@of_kind(
    Kind.APPEND_IF, DiskUse.ORDINARY, level=LIFE_FROM,
    publishes=(RowKind.PARTITION, RowKind.PRODUCER, RowKind.NO_EFFECT, RowKind.OPEN_TRANSACTION,
               RowKind.OPEN_FIRST), carries_batch=True,
)  # fmt: skip
class AppendIf:
    """An APPEND that has no effect unless its partition ends where the writer expects.

    Behind the batch there is EXPECTED.
    """

    @staticmethod
    def body(batch: Body, end: int) -> bytes:
        return b"".join((batch, EXPECTED.pack(_FORM, end)))

    @staticmethod
    def end_of(envelope: Envelope) -> int:
        """Return the expected end. Raise ValueError for a form of a later kproxy."""
        body = envelope.body
        form, end = EXPECTED.unpack_from(body, len(body) - EXPECTED.size)
        if form != _FORM:
            raise later_form("a command APPEND_IF", form)
        return int(end)

    @staticmethod
    def batch_of(envelope: Envelope) -> Body:
        return envelope.body[: -EXPECTED.size]


@of_kind(
    Kind.COPY, DiskUse.MODEST, level=OLDEST, publishes=(RowKind.PARTITION, RowKind.NO_EFFECT),
    carries_batch=True,
)  # fmt: skip
class Copy:
    """A live batch, written again further on. `envelope.COPIED` is in front of it.

    `number`: its base offset. `time_ms`: as in a REPLACE, without generations.
    """


@of_kind(
    Kind.REPLACE, DiskUse.MODEST, level=COMPACTION_FROM,
    publishes=(RowKind.PARTITION, RowKind.NO_EFFECT), carries_batch=True,
)  # fmt: skip
class Replace:
    """A COPY of a batch that compaction has made smaller, or makes smaller with this.

    `time_ms`: the generation that it replaces, and the new one (`generations`). It has no effect
    where the batch is of another generation: it was made from what is not there any more.
    """

    @staticmethod
    def generations(envelope: Envelope) -> tuple[int, int]:
        """Return the generation that is replaced, and the new one."""
        return divmod(envelope.time_ms & 0xFFFF, 256)

    @staticmethod
    def is_routed(envelope: Envelope) -> bool:
        """Return whether the batch came from another queue (`rows.ROUTED`); of a COPY as well."""
        return bool(envelope.time_ms & ROUTED)


ROUTED = 1 << 16
"""The bit in the time of a COPY or REPLACE."""
_COMPACTED = struct.Struct(">QQQQqQQ")
_REMOVED = struct.Struct(">QB")


def _weight_of_compact(envelope: Envelope) -> int:
    return 1 + len(envelope.body) // _REMOVED.size


@of_kind(
    Kind.COMPACT, DiskUse.ALWAYS, _weight_of_compact, level=COMPACTION_FROM,
    publishes=(RowKind.PARTITION, RowKind.COMPACTION, RowKind.ABORTED),
)  # fmt: skip
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


@of_kind(
    Kind.TRIM, DiskUse.ALWAYS, level=OLDEST, publishes=(RowKind.PARTITION,),
    head="queue_id partition number=log_start time_ms", flag="spares",
)  # fmt: skip
class Trim(Command):
    """Records before `log_start` go; -1 stands for all there are.

    `spares`: but what a route has to pass on, by the time that it is applied. Needs the level
    SPARES_FROM.
    """

    queue_id: QueueId
    partition: int
    log_start: int
    time_ms: int = 0
    spares: bool = False
