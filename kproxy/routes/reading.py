"""The reading of what a source partition passes on: planned on the loop, read on a thread."""

from collections.abc import Callable
from typing import NamedTuple

from kproxy.fetching.aborted import AbortedSearch
from kproxy.loop.pace import Pace
from kproxy.protocol.batch import BatchHeader, read_header
from kproxy.routes.cutting import Cutter, Parts, Reading, parts_of
from kproxy.shard.shard import Shard
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.types import PartitionKey

READ_BYTES = 1 << 20
_NO_KEY = 1  # the first byte of a record from its key on: a length of -1
_BATCHES_MAX = 2000

Aborted = dict[int, list[tuple[int, int]]]
"""The transactions that were aborted, by producer id: (first offset, the marker's)."""


class Plan(NamedTuple):
    """The stored batches of a stretch, with their base offsets, and where it ends."""

    stored: list[tuple[int, Batch]]
    aborted: Aborted
    end: int


async def plan(
    shard: Shard, source: PartitionKey, start: int, end: int, *, whole: bool, again: bool = False
) -> Plan:
    """Return what to read of the offsets from `start` to before `end`.

    As much as is read at once, or `whole`. Records that another queue has passed on are not passed
    on again, unless by a redrive (`again`): it ends, and counts how often.
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
            if again or not batch.routed:
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
"""The records of all passages of a worker: some 100 MB."""


class Kept:
    """The batch that the last cut ended in: the next one reads on in it.

    `room`: it may hold so many records, or it is read again from its start.
    """

    def __init__(self) -> None:
        self.place: tuple[int, int] | None = None
        self.batch: Reading | None = None
        self.room = 0

    @property
    def size(self) -> int:
        """The number of records."""
        return 0 if self.batch is None else self.batch.size

    def take(self, place: tuple[int, int], start: int) -> Reading | None:
        """Return the batch at a place, if it was not read beyond an offset."""
        batch, self.batch = self.batch, None
        return batch if batch is not None and self.place == place and batch.first <= start else None

    def keep(self, place: tuple[int, int], batch: Reading) -> None:
        if batch.size <= self.room:
            self.place, self.batch = place, batch


def gather(
    segments: Segments, planned: Plan, cutter: Cutter, kept: Kept, headers: frozenset[bytes]
) -> None:
    """Have the cutter take what is planned, in its order. On a thread. Raise OSError."""
    for base_offset, stored in planned.stored:
        place = stored.segment, stored.position
        batch = kept.take(place, max(cutter.start, base_offset))
        if batch is None:
            data = bytes(segments.batch(*place, stored.length) or b"")
            batch = Reading(base_offset, read_header(data), data, headers)
        # One that is kept may have been undecided then: nothing of it was taken.
        if batch.head.is_control or _is_aborted(batch.head, base_offset, planned.aborted):
            continue
        if not cutter.take(batch):
            kept.keep(place, batch)
            return
    cutter.gathered.through = planned.end


async def pass_over_keyless(cutter: Cutter, is_compacted: Callable[[str], bool]) -> None:
    """Take out what a redrive to origins would bring compacted queues without a key.

    They would drop it, and a Produce of it is refused. A record that is left out changes no part
    of another queue: so an owner that ships the cut again may know otherwise by then.
    """
    redrive, gathered, pace = cutter.gathered.spec.redrive, cutter.gathered, Pace()
    if redrive is None or redrive.to:
        return
    for targets in gathered.by_shard:
        for name, pieces in list(targets.items()):
            await pace.step()
            keyed = [piece for piece in pieces if piece[0][0] != _NO_KEY]
            left_out = len(pieces) - len(keyed)
            if not left_out or not is_compacted(name):
                continue
            targets[name] = keyed
            if not keyed:
                del targets[name]
            gathered.records -= left_out
            why = f"{left_out} have no key, and {name} is compacted: there they would be dropped"
            gathered.pass_over(left_out, why)


def _is_aborted(head: BatchHeader, base_offset: int, aborted: Aborted) -> bool:
    if not head.is_transactional:
        return False
    spans = aborted.get(head.producer_id, ())
    return any(first <= base_offset < marker for first, marker in spans)


def made(cutter: Cutter, parts: int) -> Parts:
    """Return what is shipped of a cut. On a thread."""
    return parts_of(cutter.gathered, parts)
