"""The available records of a share partition by lane, and whose turn is next. Pure.

Each offset that was looked at has its lane's number and the next offset of that lane, in arrays.
A lane's records that are available are a ring of such links, ascending; its last one is known. A
record that is taken leaves its lane and makes it *busy* till it is done or available again.

A lane is *ready* when it has an available record, is not too busy, not held and within its rate.
Ready lanes are in the rings. One that stops being ready in a ring is passed over when its turn
comes, and comes back once it is ready again.
"""

from array import array
from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from kproxy.shares.lanes.ring import LEVELS, Rings
from kproxy.shares.lanes.table import NONE, LaneTable

_MASK = 0x7FFFFFFF  # the part of an offset that is in a link: more than any window has
_CLEANED_MAX = 5000  # offsets in a row, some milliseconds
_DROPPED_MIN = 4096
_PART = 4  # the part of the arrays that is let go at once
_FORGOTTEN_MIN = 1000


class Turns(NamedTuple):
    """The rules of the choice, as numbers. `weights`: turns by a lane's hash, where not one."""

    in_flight: int = 0
    weights: dict[int, int] = {}  # noqa: RUF012 - never changed in place
    rate: float = 0.0
    """Seconds from one record of a lane to the next, on the average; 0: as fast as it goes."""
    burst: int = 1
    """Records that a lane may be given at once, where it has a rate."""
    prioritised: bool = False
    share: float = 0.0


class LaneIndex:
    """The lanes of the offsets from `start` to `end`. Times are seconds that the caller gives."""

    __slots__ = (
        "_base", "_busy", "_cleaned", "_held", "_lanes", "_left", "_levels", "_next", "_resting",
        "_rests", "_rings", "_tats", "_tats_max", "_turns", "_weights", "available", "start",
        "table", "taken",
    )  # fmt: skip

    def __init__(self, start: int, turns: Turns, salt: int) -> None:
        self.start = start
        self._base = self._cleaned = start
        self._turns = turns
        self._lanes = array("I")
        self._next = array("I")
        self._levels = bytearray() if turns.prioritised else None
        self.table = LaneTable(salt)
        self._rings = Rings(LEVELS if turns.prioritised else 1, turns.share)
        self._busy: dict[int, int] = {}
        self._held: set[int] = set()  # hashes
        self._weights: dict[int, int] = {}  # by number, where not one
        self._left: dict[int, int] = {}  # turns that a lane has left in a row
        self._tats: dict[int, float] = {}  # when a lane's records would all be due, by its rate
        self._tats_max = _FORGOTTEN_MIN
        self._rests: set[int] = set()
        self._resting: list[tuple[float, int]] = []  # until when, lane
        self.available = 0
        """The records that are available, in lanes that are ready or not."""
        self.taken = 0
        """The records that were taken, and are neither done nor available again."""

    @property
    def end(self) -> int:
        """The offset behind all that was looked at."""
        return self._base + len(self._lanes)

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        records = (9 if self._levels is not None else 8) * len(self._lanes)
        return records + self.table.size + self._rings.size + 200 * len(self._tats)

    @property
    def is_ready(self) -> bool:
        """Whether there may be a record to be taken."""
        return bool(self._rings)

    @property
    def due(self) -> float:
        """The time when a lane that has reached its rate may go on; infinity: none waits."""
        return self._resting[0][0] if self._resting else inf

    # -- records

    def add(
        self, offsets: Sequence[int], hashes: Sequence[int], levels: Sequence[int] | None = None,
        taken: Collection[int] = (),
    ) -> None:  # fmt: skip
        """Add records, ascending, from `end` on; offsets between them have none.

        `taken`: those of them that are not available, and not done.
        """
        table, lanes, links, base = self.table, self._lanes, self._next, self._base
        tails, find = table.tails, table.find
        at = len(lanes)
        more = offsets[-1] + 1 - base - at
        lanes.extend([NONE] * more)
        links.extend([NONE] * more)
        if self._levels is not None:
            self._levels.extend(bytes(more))
            for offset, level in zip(offsets, levels or (), strict=True):
                self._levels[offset - base] = level
        for offset, hashed in zip(offsets, hashes, strict=True):
            lane = find(hashed)
            if lane == NONE:
                lane = self._new_lane(hashed)
            at = offset - base
            lanes[at] = lane
            if taken and offset in taken:
                self._make_busy(lane)
                continue
            tail = tails[lane]
            if tail == NONE:
                links[at] = tails[lane] = offset & _MASK
                self._enter(lane)
            else:
                before = (tail - base) & _MASK
                links[at] = links[before]
                links[before] = tails[lane] = offset & _MASK
        self.available += len(offsets) - len(taken)

    def pass_to(self, end: int) -> None:
        """Note that there is no record before this offset that was not added."""
        more = end - self.end
        if more > 0:
            self._lanes.extend([NONE] * more)
            self._next.extend([NONE] * more)
            if self._levels is not None:
                self._levels.extend(bytes(more))

    def _new_lane(self, hashed: int) -> int:
        lane = self.table.add(hashed, self._is_idle)
        self._left.pop(lane, None)
        self._weights.pop(lane, None)
        weight = self._turns.weights.get(hashed)
        if weight is not None:
            self._weights[lane] = weight
        return lane

    def _is_idle(self, lane: int) -> bool:
        """Return whether a lane without available records may be forgotten."""
        return lane not in self._busy and lane not in self._rests and lane not in self._tats

    def _head(self, lane: int) -> int:
        """Return the first available record of a lane that has one."""
        base = self._base
        tail = (self.table.tails[lane] - base) & _MASK
        return base + ((self._next[tail] - base) & _MASK)

    def _unlink_head(self, lane: int, head: int) -> None:
        links, base, tails = self._next, self._base, self.table.tails
        tail = tails[lane]
        if tail == head & _MASK:
            tails[lane] = NONE
        else:
            links[(tail - base) & _MASK] = links[head - base]
        self.available -= 1

    def _link(self, lane: int, offset: int) -> None:
        """Put a record back in its place: mostly it is the first one."""
        links, base, tails = self._next, self._base, self.table.tails
        at, short = offset - base, offset & _MASK
        self.available += 1
        tail = tails[lane]
        if tail == NONE:
            links[at] = tails[lane] = short
            return
        last = (tail - base) & _MASK
        before = last
        if at > last:
            tails[lane] = short
        else:
            while (following := (links[before] - base) & _MASK) < at:
                before = following
        links[at] = links[before]
        links[before] = short

    def lane_of(self, offset: int) -> int:
        """Return the hash of the lane of a record that was added and is not done; -1: unknown."""
        at = offset - self._base
        if not 0 <= at < len(self._lanes) or (lane := self._lanes[at]) == NONE:
            return -1
        return self.table.hashes[lane]

    # -- turns

    def _is_ready(self, lane: int) -> bool:
        if self.table.tails[lane] == NONE:
            return False
        most = self._turns.in_flight
        if most and self._busy.get(lane, 0) >= most:
            return False
        if lane in self._rests:
            return False
        return not self._held or self.table.hashes[lane] not in self._held

    def _enter(self, lane: int) -> None:
        """Put a lane into the ring of its first record, if it is ready."""
        if not self._is_ready(lane):
            return
        level = 0
        if self._levels is not None:
            level = self._levels[self._head(lane) - self._base]
        if lane in self._left:
            self._rings.by_level[level].add_first(lane)
        else:
            self._rings.by_level[level].add(lane)

    def take(self, now: float) -> int:
        """Take the record whose turn it is; -1: there is none. After `clean`."""
        rings = self._rings
        while (level := rings.next_level()) >= 0:
            lane = rings.by_level[level].pop()
            if not self._is_ready(lane):
                continue
            head = self._head(lane)
            if self._levels is not None and self._levels[head - self._base] != level:
                self._enter(lane)
                continue
            if self._turns.rate and not self._within_rate(lane, now):
                continue
            rings.had_turn(level)
            self._unlink_head(lane, head)
            self._make_busy(lane)
            self._end_turn(lane)
            return head
        return -1

    def _end_turn(self, lane: int) -> None:
        left = self._left.pop(lane, 0) or self._weights.get(lane, 1)
        if left > 1:
            self._left[lane] = left - 1
        self._enter(lane)

    def _within_rate(self, lane: int, now: float) -> bool:
        """Count a record of a lane; if it comes too early, let the lane rest."""
        every, burst = self._turns.rate, self._turns.burst
        tat = max(self._tats.get(lane, 0.0), now)
        until = tat - every * (burst - 1)
        if until > now:
            self._rests.add(lane)
            heappush(self._resting, (until, lane))
            return False
        if len(self._tats) >= self._tats_max:
            self._forget_tats(now)
        self._tats[lane] = tat + every
        return True

    def _forget_tats(self, now: float) -> None:
        self._tats = {lane: tat for lane, tat in self._tats.items() if tat > now}
        self._tats_max = max(_FORGOTTEN_MIN, 2 * len(self._tats))

    def resume(self, now: float) -> bool:
        """Let lanes go on that have rested; return whether there are any."""
        resumed = False
        while self._resting and self._resting[0][0] <= now:
            _, lane = heappop(self._resting)
            self._rests.discard(lane)
            self._enter(lane)
            resumed = True
        return resumed

    # -- what becomes of records that were taken

    def is_busy_with(self, offset: int) -> bool:
        """Return whether a record was added, and has a lane still."""
        at = offset - self._base
        return 0 <= at < len(self._lanes) and self._lanes[at] != NONE

    def put_back(self, offset: int) -> None:
        """Put a record back that was not given after all: its lane keeps its turn."""
        lane = self._free_place(offset)
        self._link(lane, offset)
        self._left[lane] = self._left.get(lane, 0) + 1
        self._enter(lane)

    def returned(self, first: int, end: int) -> None:
        """Have taken records available again, at their places in their lanes."""
        for offset in range(end - 1, first - 1, -1):
            if self.is_busy_with(offset):
                lane = self._free_place(offset)
                self._link(lane, offset)
                self._enter(lane)

    def done(self, first: int, end: int) -> None:
        """Forget records that were taken: they are done."""
        base = self._base
        for offset in range(first, end):
            if self.is_busy_with(offset):
                lane = self._free_place(offset)
                self._lanes[offset - base] = NONE
                self._enter(lane)

    def _make_busy(self, lane: int) -> None:
        self.taken += 1
        self._busy[lane] = self._busy.get(lane, 0) + 1

    def _free_place(self, offset: int) -> int:
        lane = self._lanes[offset - self._base]
        self.taken -= 1
        busy = self._busy[lane] - 1
        if busy > 0:
            self._busy[lane] = busy
        else:
            del self._busy[lane]
        return lane

    def trim(self, start: int, taken: Collection[int]) -> None:
        """Note a later start; `taken`: the records before it that were taken. Then `clean`."""
        for offset in taken:
            self.done(offset, offset + 1)
        self.start = max(self.start, start)

    def clean(self) -> bool:
        """Forget records before the start, so many at a time; return whether that was all."""
        base, lanes = self._base, self._lanes
        upto = min(self.start, self.end, self._cleaned + _CLEANED_MAX)
        for offset in range(self._cleaned, upto):
            lane = lanes[offset - base]
            if lane != NONE:
                self._unlink_head(lane, offset)
                lanes[offset - base] = NONE
        self._cleaned = max(self._cleaned, upto)
        if self._cleaned == self.end:
            self._let_go(len(lanes))
            self._base = self._cleaned = max(self.start, self._base)
        else:
            gone = self._cleaned - base
            if gone >= max(_DROPPED_MIN, len(lanes) // _PART):
                self._let_go(gone)
        return self._cleaned >= self.start

    def _let_go(self, count: int) -> None:
        del self._lanes[:count]
        del self._next[:count]
        if self._levels is not None:
            del self._levels[:count]
        self._base += count

    # -- held lanes

    def hold(self, hashed: int) -> None:
        """Let a lane wait until it is freed."""
        self._held.add(hashed)

    def free(self, hashed: int) -> None:
        """Let a lane that was held go on."""
        self._held.discard(hashed)
        lane = self.table.find(hashed)
        if lane != NONE:
            self._enter(lane)

    @property
    def held(self) -> frozenset[int]:
        """The hashes of lanes that wait until they are freed."""
        return frozenset(self._held)

    # -- for people

    @property
    def resting(self) -> int:
        """The number of lanes that have reached their rate."""
        return len(self._rests)

    def lanes_between(self, first: int, end: int) -> Iterator[int]:
        """Yield the lane's number of each record that is not done, as far as it was looked at."""
        base = self._base
        return (lane for lane in self._lanes[max(0, first - base) : end - base] if lane != NONE)

    def first_of(self, hashed: int) -> int:
        """Return the first record of a lane that is not done; -1: there is none."""
        lane = self.table.find(hashed)
        if lane == NONE:
            return -1
        try:
            return self._base + self._lanes.index(lane, max(0, self.start - self._base))
        except ValueError:
            return -1
