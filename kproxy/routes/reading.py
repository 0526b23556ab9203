"""Reads what a source partition has to pass on: planned on the loop, read on a thread."""

from typing import NamedTuple

from kproxy.fetching.aborted import AbortedSearch
from kproxy.loop.pace import Pace
from kproxy.protocol.batch import BatchHeader, read_header
from kproxy.protocol.records import Body
from kproxy.routes.cutting import Cutter, Parts, parts_of, records_of
from kproxy.shard.shard import Shard
from kproxy.store.segments import Segments
from kproxy.virtual.rows import Batch
from kproxy.virtual.types import PartitionKey

READ_BYTES = 1 << 20
_BATCHES_MAX = 2000

Aborted = dict[int, list[tuple[int, int]]]
"""By producer id: (first offset, the marker's) of its transactions that were aborted."""


class Plan(NamedTuple):
    """The stored batches of a stretch, with their base offsets, and where it ends."""

    stored: list[tuple[int, Batch]]
    aborted: Aborted
    end: int


async def plan(shard: Shard, source: PartitionKey, start: int, end: int, *, whole: bool) -> Plan:
    """What to read of the offsets from `start` to before `end`.

    As much as is read at once, or `whole`. What another queue has passed on is not passed on again.
    """
    stored: list[tuple[int, Batch]] = []
    size, planned, pace = 0, end, Pace()
    while True:
        rest = None
        for last_offset, batch in shard.state.batches(source, start, end + _LAST_DELTA_MAX):
            base_offset = last_offset - batch.last_delta
            if base_offset >= end:
                break
            if not whole and stored and (size >= READ_BYTES or len(stored) >= _BATCHES_MAX):
                planned = base_offset
                break
            if not batch.routed:
                stored.append((base_offset, batch))
                size += batch.length
            if pace.due:
                rest = last_offset + 1
                break
        if rest is None:
            break
        start = rest
        await pace.rest()
    aborted = await _aborted(shard, source, stored, planned, pace)
    return Plan(stored, aborted, planned)


_LAST_DELTA_MAX = 1 << 31  # a batch is filed by its last offset


async def _aborted(
    shard: Shard, source: PartitionKey, stored: list[tuple[int, Batch]], end: int, pace: Pace
) -> Aborted:
    row = shard.state.partition(source)
    found: Aborted = {}
    if row is None or not row.any_aborted or not stored:
        return found
    search = AbortedSearch(source, stored[0][0], end)
    while search.look(shard.state) < search.end:
        await pace.rest()
    for (producer_id, first_offset), marker in zip(search.found, search.markers, strict=True):
        found.setdefault(producer_id, []).append((first_offset, marker))
    return found


KEPT_RECORDS_MAX = 400_000
"""Of all passages of a worker: some 100 MB."""


class Kept:
    """The records of the batch that the last cut ended in: the next begins with it.

    `room`: so many may they be, or they are read again.
    """

    def __init__(self) -> None:
        self.place: tuple[int, int] | None = None
        self.found: list[Body] | bytes = b""
        self.room = 0

    @property
    def size(self) -> int:
        """In records."""
        return len(self.found) >> (8 if isinstance(self.found, bytes) else 0)


def gather(
    segments: Segments, planned: Plan, cutter: Cutter, kept: Kept, headers: frozenset[bytes]
) -> None:
    """Have the cutter take what is planned, in its order. On a thread. Raises OSError, EOFError."""
    for base_offset, batch in planned.stored:
        place = batch.segment, batch.position
        data = memoryview(bytearray(batch.length))
        segments.read_into(data, batch.segment, batch.position, True)
        head = read_header(data)
        if head.is_control or _is_aborted(head, base_offset, planned.aborted):
            continue
        found = kept.found if kept.place == place else None
        if found is None:
            found = records_of(head, bytes(data), headers=headers)
        if not cutter.take(base_offset, head, found):
            kept.place, kept.found = place, found
            if kept.size > kept.room:
                kept.place, kept.found = None, b""
            return
    kept.place, kept.found = None, b""
    cutter.gathered.through = planned.end


def _is_aborted(head: BatchHeader, base_offset: int, aborted: Aborted) -> bool:
    if not head.is_transactional:
        return False
    spans = aborted.get(head.producer_id, ())
    return any(first <= base_offset < marker for first, marker in spans)


def made(cutter: Cutter, parts: int) -> Parts:
    """What is shipped of it. On a thread."""
    return parts_of(cutter.gathered, parts)
