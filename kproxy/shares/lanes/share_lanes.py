"""The lanes of one share partition: they are looked for in batches that come, if there is room.

No batch is looked at twice. They are read on a thread, a *slice* at a time; few records that are in
memory at once. A poll waits until all is looked at that was there when it came, and so a lane that
begins behind a long backlog has its turn with the next answer.
"""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from kproxy.common.counters import Counters
from kproxy.loop.pace import Pace
from kproxy.metadata.lane_settings import LOOKAHEAD_MIN, LaneRules
from kproxy.security.parts import Parts
from kproxy.shard.shard import Shard
from kproxy.shares.lanes.batch_ends import BatchEnds
from kproxy.shares.lanes.cutting import OpenedBatches
from kproxy.shares.lanes.index import LaneIndex, Turns
from kproxy.shares.lanes.lane_window import LaneWindow
from kproxy.shares.lanes.reading import LaneReader, NotAtOnce, Part
from kproxy.shares.lanes.table import hash_of
from kproxy.shares.record_states import IS_AVAILABLE, IS_TAKEN
from kproxy.shares.taking import Limits, Stretch
from kproxy.store.damage import DamagedBatch
from kproxy.virtual.commands.shares import Cause, Hold, Run
from kproxy.virtual.rows.batches import NO_TRANSACTION
from kproxy.virtual.rows.shares import HELD_LANES
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

_BATCHES_MAX = 500  # in a slice
_RECORDS_MAX = 20_000  # in a slice: some 50 ms of a thread
_AT_ONCE = 2000  # records that are looked at without a thread: some milliseconds at most
_AT_ONCE_BYTES = 512 << 10
_HELD_AT_ONCE = 1000  # rows of held lanes
_OPENED = 8  # the part of the memory that such batches have


class Aborted(Protocol):
    """The aborted transactions of a stretch up to `end`."""

    end: int

    def has(self, producer_id: int, offset: int) -> bool: ...


class LaneMemory:
    """The memory of all lanes of a worker, and how much there may be of it: no group has all."""

    def __init__(self, bytes_max: int, counters: Counters, salt: int | None = None) -> None:
        self.counters = counters
        self.salt = secrets.randbits(64) if salt is None else salt
        self._parts = Parts(bytes_max)
        self.opened = OpenedBatches(bytes_max // _OPENED)
        """The batches that records are cut out of, beside the lanes."""

    @property
    def used(self) -> int:
        return self._parts.used

    def may(self, group: str) -> bool:
        """Return whether a group's lanes may have more."""
        return self._parts.may(group)

    def count(self, group: str, more: int) -> None:
        """Count so many bytes more of a group's, or less."""
        if more > 0:
            self._parts.take(group, more)
        elif more:
            self._parts.give_back(group, -more)


class ShareLanes:
    """The lanes of a share partition, while it has any. `until`: records before it may be held."""

    def __init__(
        self, shard: Shard, key: PartitionKey, group: str, window: LaneWindow, rules: LaneRules,
        committed: bool, memory: LaneMemory, epoch: int = 0, expires: bool = False,
        before: "ShareLanes | None" = None,
    ) -> None:  # fmt: skip
        """Begin to look for lanes; `before`: those in whose place they are."""
        self.rules, self.committed, self._expires = rules, committed, expires
        self.reader = LaneReader(rules, expires=expires)
        self.index = window.lanes = LaneIndex(window.start, turns_of(rules), memory.salt)
        window.holes.clear()
        self._shard, self._key, self._group = shard, key, group
        self._window = window
        self.ends = BatchEnds()
        self._memory = memory
        self._counted = 0  # bytes of the memory
        self._scanned: anyio.Event | None = None  # while a slice is read
        self._aborted: Aborted | None = None
        self._is_short = False
        self._until = window.start
        self.is_sure_now()
        self._bytes = self._records = 0
        self._before: LaneIndex | None = None
        """The lanes of what is held and was not looked at again, if records have the same ones."""
        if before is not None and before.rules.names_like(rules) and not self.is_sure:
            self._before = before.index
        self._epoch = epoch
        self._held_at: bytes | None = None  # the row that is to be looked at next
        self._held: set[int] = set()
        self.is_stale = rules.holds
        """Whether the rows may say other lanes that are held than are."""

    @property
    def group(self) -> str:
        return self._group

    def is_by(self, rules: LaneRules | None, committed: bool, expires: bool) -> bool:
        """Return whether these are the lanes by such rules."""
        return (self.rules, self.committed, self._expires) == (rules, committed, expires)

    def hold(self, lane: int) -> None:
        """Hold a lane, as the log says."""
        self.index.hold(lane)
        if self._held_at is not None:  # its row may be one that was passed
            self._held.add(lane)

    def hold_again(self) -> bool:
        """Hold the lanes that the rows say are held, and no others, if that is not done.

        Return whether it is: so many rows are looked at at once.
        """
        if self._held_at is None:
            if not self.is_stale:
                return True
            self.is_stale = False
        start, end = HELD_LANES.range(self._key, self._group)
        walk = self._shard.state.kv.walk(self._held_at or start, end)
        rows = list(islice(walk, _HELD_AT_ONCE))
        for row, data in rows:
            if HELD_LANES.decode(data).epoch == self._epoch:
                self._held.add(HELD_LANES.parts(row)[2])
        self._held_at = rows[-1][0] + b"\0" if len(rows) == _HELD_AT_ONCE else None
        if self._held_at is not None:
            return False
        for lane in self.index.held - self._held:
            self.index.free(lane)
        for lane in self._held:
            self.index.hold(lane)
        self._held.clear()
        return not self.is_stale

    def holds_of(self, runs: Sequence[Run]) -> list[Hold]:
        """Return the lanes that are to be held, as records of theirs are given up.

        One that has expired was not: nobody has tried it in vain.
        """
        if not self.rules.holds:
            return []
        found: dict[int, Hold] = {}
        for run in runs:
            if run.cause not in {Cause.NONE, Cause.EXPIRED}:
                for offset in range(run.first, run.first + run.records):
                    lane = self.index.lane_of(offset)
                    if lane < 0 and self._before is not None:
                        lane = self._before.lane_of(offset)
                    if lane >= 0:
                        found[lane] = Hold(self._key, lane, offset)
        return list(found.values())

    @property
    def bytes_each(self) -> float:
        """The bytes of a record, on the average of what was looked at last."""
        return self._bytes / self._records if self._records else 0.0

    def within(self, limits: Limits, bytes_max: int) -> Limits:
        """Return limits with as many records as so many bytes have, about; one at least."""
        each = max(1.0, self.bytes_each)
        return limits._replace(records_max=min(limits.records_max, max(1, int(bytes_max / each))))

    def close(self) -> None:
        """Give its memory back."""
        self._memory.count(self._group, -self._counted)
        self._counted = 0

    def end_of_look(self, end: int) -> int:
        """Return up to which offset lanes are looked for, of a partition that ends there."""
        index = self.index
        most = index.start + self.rules.lookahead
        if not self._memory.may(self._group):
            shorter = max(index.end, index.start + LOOKAHEAD_MIN)
            if shorter < min(most, end):
                self._note_short(shorter - index.start)
            most = min(most, shorter)
        return min(max(most, self._until), end)

    def _note_short(self, records: int) -> None:
        if not self._is_short:
            self._is_short = True
            self._memory.counters.share_lookaheads_shortened += 1
            _log.warning(
                "lanes_shortened", group=self._group, shard=self._shard.shard, lookahead=records,
                wanted=self.rules.lookahead,
            )  # fmt: skip

    @property
    def is_sure(self) -> bool:
        """Whether all records were looked at that may have been held before there were lanes."""
        return self.index.end >= min(self._until, self._window.end)

    def is_sure_now(self) -> bool:
        """Return `is_sure`, as of what is held by now."""
        window = self._window
        taken = window._taken_before(window.end)
        self._until = taken[-1] + 1 if taken else window.start
        return self.is_sure

    # -- looking

    def is_damaged(self, end: int) -> bool:
        """Whether the batch that is to be looked at next, before `end`, is known to be damaged."""
        damage, at = self._shard.segments.damage, self.index.end
        if not damage.seen:
            return False
        batch, _ = next(self._shard.state.stored_spans(self._key, at, end), (None, 0))
        return batch is not None and batch[0] <= at and damage.at(batch[1], batch[2])

    def plan(self, aborted: Aborted | None) -> None:
        """Note what was aborted, for the next slice."""
        self._aborted = aborted

    def _stretches(self, end: int) -> list[Stretch]:
        """Return batches and holes from where nobody has looked yet, as much as a slice has."""
        at = self.index.end
        found: list[Stretch] = []
        self._bytes, self._records = self._bytes // 2, self._records // 2
        left = _RECORDS_MAX
        for batch, last in self._shard.state.stored_spans(self._key, at, end):
            if batch[0] > at:
                found.append((at, batch[0] - 1, None))
            self._bytes += batch[3]
            self._records += last + 1 - batch[0]
            found.append((max(batch[0], at), last, batch))
            self.ends.note(batch[0], last)
            left -= last + 1 - max(at, batch[0])
            at = last + 1
            if left <= 0 or len(found) >= _BATCHES_MAX:
                return found
        if at < end:
            found.append((at, end - 1, None))
        return found

    async def scan(self, end: int, readers: CapacityLimiter) -> None:
        """Look at one more slice, or wait for who does. Raise OSError."""
        if self._scanned is not None:
            await self._scanned.wait()
            return
        if self.scan_at_once(end):
            return
        stretches, segments = self._stretches(end), self._shard.segments
        if not stretches:
            return
        self._scanned = anyio.Event()
        parts: list[Part] = []
        try:
            numbers = {batch[1] for _, _, batch in stretches if batch is not None}
            with suppress(DamagedBatch), segments.pinned(numbers):  # the next look says so
                parts = await to_thread.run_sync(
                    lambda: self.reader.read(segments, stretches, _RECORDS_MAX, wait=True),
                    limiter=readers,
                )
            pace = Pace()
            for part in parts:
                self._add(part)
                await pace.step()
        finally:
            scanned, self._scanned = self._scanned, None
            scanned.set()
            self._count()

    def scan_at_once(self, end: int) -> bool:
        """Look at some records that are in memory; return whether any were looked at.

        A thread for them would cost more than it spares: they are parsed under the interpreter's
        lock.
        """
        if self._scanned is not None:
            return False
        stretches = self._stretches(min(end, self.index.end + _AT_ONCE))
        if sum(batch[3] for _, _, batch in stretches if batch is not None) > _AT_ONCE_BYTES:
            return False
        try:
            parts = self.reader.read(self._shard.segments, stretches, _RECORDS_MAX, wait=False)
        except (NotAtOnce, OSError):
            return False
        for part in parts:
            self._add(part)
        self._count()
        return True

    def _count(self) -> None:
        if self._window.lanes is not self.index:
            return  # it was closed while a thread read
        if self.is_sure:
            self._before = None
        self.ends.trim(self.index.start)
        size = self.index.size + self.ends.size
        self._memory.count(self._group, size - self._counted)
        self._counted = size

    def _add(self, part: Part) -> None:
        """Add records to their lanes; leave out those that are done, were aborted or trimmed."""
        index, window = self.index, self._window
        first = max(part.first, index.end, window.start)
        if part.end <= first or window.lanes is not index:
            return
        states = window.see(first, part.end)
        names, hashes, levels = part.names, part.hashes, part.levels
        offsets = range(part.first, part.end) if names else part.offsets
        if part.transaction != NO_TRANSACTION and self._aborted is not None:
            if self._aborted.has(part.transaction, part.base):
                offsets = names = ()
        if not part.is_readable:
            self._memory.counters.share_lanes_unread += part.end - first
        is_new = states.count(0) == len(states)
        if names and is_new and first == part.first:
            index.pass_to(first)
            index.add_named(first, names)
            return
        if names:
            hashes = list(map(hash_of, names))
        if offsets and (offsets[0] < first or not is_new):
            kept = [
                at for at, offset in enumerate(offsets)
                if offset >= first and (IS_AVAILABLE[states[offset - first]]
                                        or IS_TAKEN[states[offset - first]])
            ]  # fmt: skip
            offsets = [offsets[at] for at in kept]
            hashes = [hashes[at] for at in kept]
            levels = None if levels is None else [levels[at] for at in kept]
        if offsets:
            taken = set() if is_new else {at for at in offsets if IS_TAKEN[states[at - first]]}
            index.add(offsets, hashes, levels, taken)
            if part.expiring:
                known = set(offsets)
                index.expiring.update(one for one in part.expiring if one[0] in known)
        index.pass_to(part.end)
        if len(offsets) < part.end - first:
            self._note_holes(first, part.end, offsets, states)

    def _note_holes(self, first: int, end: int, offsets: object, states: bytes) -> None:
        """Have archived what has no record, and is not done."""
        known = set(offsets)  # type: ignore[call-overload]
        holes, begun = self._window.holes, -1
        if not known and states.count(0) == len(states):
            holes.append((first, end))
            return
        for offset in range(first, end):
            is_hole = offset not in known and IS_AVAILABLE[states[offset - first]]
            if is_hole and begun < 0:
                begun = offset
            elif not is_hole and begun >= 0:
                holes.append((begun, offset))
                begun = -1
        if begun >= 0:
            holes.append((begun, end))


def turns_of(rules: LaneRules) -> Turns:
    return Turns(
        in_flight=rules.in_flight,
        weights={hash_of(name.encode()): weight for name, weight in rules.weights},
        rate=rules.every_s,
        burst=rules.burst,
        prioritised=bool(rules.priority),
        share=rules.share,
    )
