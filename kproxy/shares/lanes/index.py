"""The available records of a share partition by lane, and whose turn is next. Pure.

A record that is taken leaves its lane and makes it *busy* till it is done or available again.

A lane is *ready* when it has an available record, is not too busy, not held and within its rate.
Ready lanes are in the rings. One that stops being ready in a ring is passed over when its turn
comes, and comes back once it is ready again.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from kproxy.shares.lanes.line import LinedRecords
from kproxy.shares.lanes.records import EXPIRING_BYTES, MASK
from kproxy.shares.lanes.ring import LEVELS, TATS_MAX, Rings, unfinished
from kproxy.shares.lanes.table import NONE

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


class LaneIndex(LinedRecords):
    """The lanes of the offsets from `start` to `end`. Times are seconds that the caller gives."""

    __slots__ = (
        "_held", "_left", "_resting", "_rests", "_rings", "_tats", "_tats_max", "_turns",
        "_weights",
    )  # fmt: skip

    def __init__(self, start: int, turns: Turns, salt: int) -> None:
        super().__init__(start, turns.prioritised, salt, turns.in_flight)
        self._turns = turns
        self._rings = Rings(LEVELS if turns.prioritised else 1, turns.share)
        self._held: set[int] = set()  # hashes
        self._weights: dict[int, int] = {}  # by number, where not one
        self._left: dict[int, int] = {}  # turns that a lane has left in a row
        self._tats: dict[int, float] = {}  # when a lane's records would all be due, by its rate
        self._tats_max = _FORGOTTEN_MIN
        self._rests: set[int] = set()
        self._resting: list[tuple[float, int]] = []  # until when, lane

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        records = (9 if self._levels is not None else 8) * len(self._lanes)
        more = 200 * len(self._tats) + EXPIRING_BYTES * len(self.expiring) + self.line_size
        return records + self.table.size + self._rings.size + more

    @property
    def is_ready(self) -> bool:
        """Whether there may be a record to be taken, or to be archived as it has expired."""
        return bool(self._rings or self.lined or self.expired)

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
        tails, known = table.tails, self._known
        at = len(lanes)
        more = offsets[-1] + 1 - base - at
        lanes.extend([NONE] * more)
        links.extend([NONE] * more)
        if self._levels is not None:
            self._levels.extend(bytes(more))
            for offset, level in zip(offsets, levels or (), strict=True):
                self._levels[offset - base] = level
        for offset, hashed in zip(offsets, hashes, strict=True):
            lane = known.get(hashed, NONE)
            if lane == NONE:
                lane = self._lane_of(hashed)
            at = offset - base
            lanes[at] = lane
            if taken and offset in taken:
                self._make_busy(lane)
                continue
            tail = tails[lane]
            if tail == NONE:
                links[at] = tails[lane] = offset & MASK
                self._enter(lane)
            else:
                before = (tail - base) & MASK
                links[at] = links[before]
                links[before] = tails[lane] = offset & MASK
        self.available += len(offsets) - len(taken)

    def _new_lane(self, hashed: int) -> int:
        lane = self.table.add(hashed, self._may_leave)
        self._left.pop(lane, None)
        self._weights.pop(lane, None)
        self._owed.discard(lane)
        self._linked.pop(lane, None)
        weight = self._turns.weights.get(hashed)
        if weight is not None:
            self._weights[lane] = weight
        return lane

    def _may_leave(self, lane: int) -> bool:
        """Return whether a lane without available records is forgotten."""
        if lane in self._busy or lane in self._rests or lane in self._tats:
            return False
        return self._forgets(lane)

    # -- turns

    def _is_ready(self, lane: int) -> bool:
        if self.table.tails[lane] == NONE:
            return False
        most = self._turns.in_flight
        if most and self._busy.get(lane, 0) >= most:
            return False
        if lane in self._rests or self._waits_in_line(lane):
            return False
        return not self._held or self.table.hashes[lane] not in self._held

    def _enter(self, lane: int) -> None:
        """Put a lane into the ring of its first record, if it is ready."""
        if not self._is_ready(lane):
            return
        level = 0
        if self._levels is not None:
            level = self._levels[self._head(lane) - self._base]
        if lane in self._owed:
            self._owed.discard(lane)
            self._credit += 1.0
            self._rings.by_level[level].add_first(lane)
        elif lane in self._left:
            self._rings.by_level[level].add_first(lane)
        else:
            self._rings.by_level[level].add(lane)

    def turns_before_line(self, count: int) -> int:
        """Return how many of so many turns lanes in the rings have, before those in line."""
        if not self.lined:
            return count
        lanes = self._rings.by_level[0].length
        if not lanes:
            self._credit = 0.0
            return 0
        share = count * lanes / (lanes + self.lined_lanes)
        self._credit = min(self._credit, lanes) + share
        turns = min(count, int(self._credit))
        self._credit -= turns
        return turns

    def take(self, now: float, now_ms: int = 0) -> int:
        """Take the record whose turn it is; -1: there is none. After `clean`.

        Records that have expired by `now_ms` before it in its lane leave for `expired`; that is no
        turn, nor of the lane's rate.
        """
        rings = self._rings
        while self.passes and (level := rings.next_level()) >= 0:
            lane = rings.by_level[level].pop()
            if not self._is_ready(lane):
                self.passes -= 1
                continue
            if self.expiring:
                if not self._leave_expired(lane, now_ms):
                    self._enter(lane)
                    return -1
                if self.table.tails[lane] == NONE:
                    continue
            head = self._head(lane)
            if self._levels is not None and self._levels[head - self._base] != level:
                self._enter(lane)
                self.passes -= 1
                continue
            if self._turns.rate and not self._within_rate(lane, now):
                self.passes -= 1
                continue
            rings.had_turn(level)
            self._unlink_head(lane, head)
            self._make_busy(lane)
            self._end_turn(lane)
            return head
        return -1

    def take_fresh(self, count: int, states: bytearray, start: int, now_ms: int = 0) -> list[int]:
        """Take as many records at most as `take` would, before one that was delivered already, or
        has expired.

        `states`: a byte for each record from `start` on, 0 for one that never was. Lanes with
        rates, weights or levels give nothing here.
        """
        found: list[int] = []
        turns = self._turns
        if turns.prioritised or turns.rate or turns.weights or self._left or self._held:
            return found
        (ring,) = self._rings.by_level
        tails, links, base, busy = self.table.tails, self._next, self._base, self._busy
        most, expiring = turns.in_flight, self.expiring
        passes, waits = self.passes, bool(self.lined)
        while passes and len(found) < count and ring.length:
            lane = ring.first
            tail = tails[lane]
            flying = busy.get(lane, 0) if most else 0
            if tail == NONE or (most and flying >= most) or (waits and self._waits_in_line(lane)):
                ring.pop()
                passes -= 1
                continue
            last = (tail - base) & MASK
            at = (links[last] - base) & MASK
            if states[base + at - start]:
                break
            if expiring and expiring.get(base + at, now_ms + 1) <= now_ms:
                break
            found.append(base + at)
            if most:
                flying += 1
                busy[lane] = flying
            if at == last:
                tails[lane] = NONE
                ring.pop()
                continue
            links[last] = links[at]
            if most and flying >= most:
                ring.pop()
            else:
                ring.turn()
        self.passes = passes
        self.available -= len(found)
        self.taken += len(found)
        return found

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
        self._tats = unfinished(self._tats, now)
        self._tats_max = min(TATS_MAX, max(_FORGOTTEN_MIN, 2 * len(self._tats)))

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

    def put_back(self, offset: int) -> None:
        """Put a record back that was not given after all: its lane keeps its turn."""
        lane = self._free_place(offset)
        self._link(lane, offset)
        self._left[lane] = self._left.get(lane, 0) + 1
        self._enter(lane)

    def returned(self, first: int, end: int) -> list[tuple[int, int]]:
        """Have taken records available again, at their places in their lanes.

        Return the stretches, of what was looked at, that are of no lane: who held them took them
        with the records around. Expired ones are stretches of their own.
        """
        lanes, base, expiring = self._lanes, self._base, self.expiring
        strays: list[tuple[int, int]] = []
        for offset in range(min(end, self.end) - 1, first - 1, -1):
            if lanes[offset - base] == NONE:
                if (
                    strays and strays[-1][0] == offset + 1
                    and (offset in expiring) == (offset + 1 in expiring)
                ):  # fmt: skip
                    strays[-1] = offset, strays[-1][1]
                else:
                    strays.append((offset, offset + 1))
                continue
            lane = self._free_place(offset)
            self._link(lane, offset)
            self._enter(lane)
        return strays

    def done(self, offsets: Iterable[int]) -> None:
        """Forget records that were taken: they are done."""
        base, lanes, busy, most = self._base, self._lanes, self._busy, self._turns.in_flight
        count, expiring = len(lanes), self.expiring
        for offset in offsets:
            at = offset - base
            if expiring:
                expiring.pop(offset, None)
            if not 0 <= at < count or (lane := lanes[at]) == NONE:
                continue
            lanes[at] = NONE
            self.taken -= 1
            if not most:
                continue
            left = busy[lane] - 1
            if left:
                busy[lane] = left
            else:
                del busy[lane]
            if left == most - 1:  # else it is as ready as before
                self._enter(lane)

    def done_run(self, first: int, end: int) -> None:
        """Do as `done` for records in a row."""
        first, end = max(first, self._base), min(end, self.end)
        if self._turns.in_flight or self.expiring:
            self.done(range(first, end))
        elif first < end:
            part, count = slice(first - self._base, end - self._base), end - first
            self.taken -= count - self._lanes[part].count(NONE)
            self._lanes[part] = array("I", [NONE]) * count

    def _make_busy(self, lane: int) -> None:
        self.taken += 1
        if self._turns.in_flight:
            self._busy[lane] = self._busy.get(lane, 0) + 1

    def _free_place(self, offset: int) -> int:
        """Return the lane of a record that is on its way no more.

        With no bound a lane without records is not kept for those on their way: its number may be
        another's by now, and that is as if both had one name.
        """
        lane = self._lanes[offset - self._base]
        self.taken -= 1
        if not self._turns.in_flight:
            return lane
        busy = self._busy[lane] - 1
        if busy > 0:
            self._busy[lane] = busy
        else:
            del self._busy[lane]
        return lane

    def trim(self, start: int, taken: Collection[int]) -> None:
        """Note a later start; `taken`: the records before it that were taken. Then `clean`."""
        self.done(taken)
        self.start = max(self.start, start)

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
