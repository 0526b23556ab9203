"""The counts of a shard: queues, partitions, groups, bytes, and records that wait.

The fold counts with each change, in memory. The `F` row has the counts as they were at one log
offset, and is written before each flush of the rows. At an open it counts if the rows stand for
that offset. Otherwise an older kproxy has moved them on, or there is none yet, and `counted` walks
over the rows once.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Protocol

from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.delays import DELAYS
from kproxy.virtual.rows.groups import decode_group
from kproxy.virtual.rows.kinds import RowKind

GROUP_KINDS = ("offsets", "classic", "consumer", "share", "streams")
_FORM = struct.Struct(">Q4q4q")
_WITH_STREAMS = struct.Struct(">Q4q5q")
"""The form once there are streams groups: kproxies below their level read the other one alone."""
_STEP_ROWS = 4096
COUNTS_KEY = RowKind.COUNTS.letter


class _Rows(Protocol):
    def get(self, key: bytes) -> bytes | None: ...
    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]: ...


def _nothing() -> None:
    pass


class Counts:
    """The counts of one shard. `bytes`: of live batches, each with what frames it in the log.
    `waiting`: records that are not due yet."""

    __slots__ = ("bytes", "groups", "partitions", "queues", "waiting")

    def __init__(self) -> None:
        self.queues = 0
        self.partitions = 0
        self.bytes = 0
        self.waiting = 0
        self.groups = dict.fromkeys(GROUP_KINDS, 0)
        """The groups by kind; "offsets": a group that never had members."""

    def encode(self, next_offset: int) -> bytes:
        """Return the row; `next_offset`: the log offset that the rows stand for with it."""
        groups = [self.groups[kind] for kind in GROUP_KINDS]
        if not self.groups["streams"]:
            del groups[-1]
        form = _WITH_STREAMS if self.groups["streams"] else _FORM
        return form.pack(
            next_offset, self.queues, self.partitions, self.bytes, self.waiting, *groups
        )

    def values(self) -> tuple[int, ...]:
        """Return all of them, to be compared."""
        return (self.queues, self.partitions, self.bytes, self.waiting, *self.groups.values())


def restored(kv: _Rows, next_offset: int) -> Counts | None:
    """Return the counts of the row if it stands for this log offset; None: it does not."""
    data = kv.get(COUNTS_KEY)
    form = next((one for one in (_FORM, _WITH_STREAMS) if len(data or b"") == one.size), None)
    if data is None or form is None:
        return None
    as_of, queues, partitions, size, waiting, *groups = form.unpack(data)
    if as_of != next_offset:
        return None
    counts = Counts()
    counts.queues, counts.partitions, counts.bytes = queues, partitions, size
    counts.waiting = waiting
    counts.groups |= zip(GROUP_KINDS, groups, strict=False)
    return counts


def counted(kv: _Rows, step: Callable[[], None] = _nothing) -> Counts:
    """Return the counts by a walk over all these rows: a million a second or so, on this thread.

    `step` is called now and then, and may raise.
    """
    counts = Counts()

    def of(kind: RowKind) -> Iterator[tuple[bytes, bytes]]:
        for number, row in enumerate(kv.scan(*kind.range())):
            if not number % _STEP_ROWS:
                step()
            yield row

    counts.queues = sum(1 for _ in of(RowKind.QUEUE))
    counts.partitions = sum(1 for key, _ in of(RowKind.PARTITION) if not rows.is_hidden(key))
    counts.bytes = sum(rows.decode_live_bytes(data) for _, data in of(RowKind.LIVE_BYTES))
    for _, data in of(RowKind.DELAY):
        counts.waiting += DELAYS.decode(data).records
    for _, data in of(RowKind.GROUP):
        counts.groups[decode_group(data).kind] += 1
    return counts
