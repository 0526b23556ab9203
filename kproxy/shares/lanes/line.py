"""Records of lanes that wait *in line*: they are given as they lie, in the order of the log. Pure.

Turns of many lanes with few records each are about the order of the log, and what lies together is
given together: that costs little more than without lanes. Records that would have others wait
for them are *linked*, and their lanes take turns. So is a record whose lane has none in line, where
those in line have many each: it has its turn within a round.
"""

from collections import deque
from collections.abc import Sequence

from kproxy.shares.lanes.records import LaneRecords
from kproxy.shares.lanes.table import NONE, hash_of

Stretch = tuple[int, int]
"""The first offset, and the one behind the last."""
PART_MAX = 512
"""Records that are put in line, and leave it, together."""
_JOINED_MAX = 64
_DISTINCT, _DISTINCT_OF = 3, 4  # so many records of a part are of a lane each, at least
_AHEAD = 4
"""A lane may have so many times what lanes have in line on the average, and one."""
PASSES_MAX = 5000
"""Lanes that are not ready and are passed over at once: some milliseconds."""
_ROUNDS = 8
"""Nobody new stands behind a line in which lanes have more on the average."""
_LONG = 500
_SLOW_S = 5.0  # the line is slow if it takes longer; then one on the average is enough for that
_WAITS_MAX = 255
_PART_BYTES = 200
_KNOWN_MAX, _KNOWN_BYTES = 1 << 14, 120  # lanes that are found without the table, bytes of one
_NAME_MAX, _NAMED_BYTES = 64, 120  # bytes of such a lane's name, and of what it takes
_SPARE = 8  # a part is given whole if that is only such a part of it more than asked for


class LinedRecords(LaneRecords):
    """The records of lanes, those in line and those that are linked."""

    __slots__ = (
        "_began", "_busy", "_credit", "_guarded", "_in_flight", "_known", "_line", "_named",
        "_owed", "_waits", "lined", "lined_lanes", "now", "passes", "taken",
    )  # fmt: skip

    def __init__(self, start: int, prioritised: bool, salt: int, in_flight: int = 0) -> None:
        super().__init__(start, prioritised, salt)
        self.taken = 0
        """The records that were taken, and are neither done nor available again."""
        self._line: deque[tuple[int, int, int, float]] = deque()
        """Parts: the first offset, the one behind, how many are in line, since when about."""
        self.now = self._began = 0.0
        self._waits = bytearray()  # how many records of a lane are in line, by its number
        self.passes = PASSES_MAX
        """The lanes that are not ready and may still be passed over, before none is looked for."""
        self._in_flight = in_flight
        self._busy: dict[int, int] = {}  # records of a lane on their way, where these are bounded
        self._owed: set[int] = set()  # lanes that were busy when they would have had a turn
        self._credit = 0.0  # turns that lanes in the rings have before those in line
        self._known: dict[int | bytes | None, int] = {}
        """The numbers of lanes by their hashes, or by their names, of some at hand."""
        self._named: dict[int, bytes | None] = {}  # names that are at hand, by number
        self._guarded: set[int] = set()  # numbers of lanes that are about to have records
        self.lined = self.lined_lanes = 0
        """The records that are in line, and the lanes that have any."""

    @property
    def line_size(self) -> int:
        """The bytes that the line takes, and lanes at hand, about."""
        at_hand = _KNOWN_BYTES * len(self._known) + _NAMED_BYTES * len(self._named)
        return len(self._waits) + _PART_BYTES * len(self._line) + at_hand

    def _enter(self, lane: int) -> None:
        raise NotImplementedError

    def _new_lane(self, hashed: int) -> int:
        raise NotImplementedError

    def _waits_in_line(self, lane: int) -> bool:
        """Return whether a lane has records in line that may come before its linked ones."""
        if lane >= len(self._waits) or not self._waits[lane]:
            return False
        return not self._line or self._head(lane) >= self._line[0][0]

    # -- lanes at hand

    def add_named(self, first: int, names: Sequence[bytes | None]) -> None:
        """Add records of lanes with these names, without a gap, from `end` on; none is taken.

        As many as may be stand in line. Not where there are rates, weights, levels or held lanes.
        """
        known = self._known
        for begin in range(0, len(names), PART_MAX):
            some = names[begin : begin + PART_MAX]
            lanes: list[int] = list(map(known.get, some))  # type: ignore[arg-type]
            if None in lanes:
                self._guarded.update(lanes)
                for at, lane in enumerate(lanes):
                    if lane is None:
                        lanes[at] = self._lane_named(some[at])
                self._guarded.clear()
            self._stand_in_line(first + begin, lanes)

    def _lane_named(self, name: bytes | None) -> int:
        lane = self._known.get(name, NONE)
        if lane == NONE:
            lane = self._lane_of(hash_of(name), name)
        self._guarded.add(lane)
        return lane

    def _lane_of(self, hashed: int, name: bytes | None = b"") -> int:
        """Return the number of a lane, a new one if need be, and keep it at hand."""
        lane = self.table.find(hashed)
        if lane == NONE:
            lane = self._new_lane(hashed)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
            self._named.clear()
        if len(self.table) <= 2 * _KNOWN_MAX:  # with more of them few would be found again
            if name == b"":
                self._known[hashed] = lane
            elif (name is None or len(name) <= _NAME_MAX) and lane not in self._named:
                self._known[name] = lane
                self._named[lane] = name
        return lane

    def _forgets(self, lane: int) -> bool:
        """Forget a lane without linked records, unless some are in line, or come."""
        if lane in self._guarded or (lane < len(self._waits) and self._waits[lane]):
            return False
        self._known.pop(self.table.hashes[lane], None)
        if lane in self._named:
            self._known.pop(self._named.pop(lane), None)
        return True

    # -- coming

    def at(self, now: float) -> None:
        """Note the time."""
        self._began = self._began or now
        self.now = now

    @property
    def _is_slow(self) -> bool:
        """Whether those who are first in line came long ago."""
        return bool(self._line) and self.now - (self._line[0][3] or self._began) > _SLOW_S

    def _stand_in_line(self, first: int, lanes: Sequence[int]) -> None:
        """Add a part, of records that are there without a gap, behind all others."""
        count = len(lanes)
        self._lanes.extend(lanes)
        self._next.extend([NONE] * count)
        if len(set(lanes)) * _DISTINCT_OF < count * _DISTINCT:
            linked: Sequence[int] = range(count)
        else:
            linked = self._lined_of(lanes)
        for at in linked:
            self._link(lanes[at], first + at)
            self._enter(lanes[at])
        lined = count - len(linked)
        self.lined += lined
        self.available += lined
        if not lined:
            return
        line, end = self._line, first + count
        if line and line[-1][1] == first and line[-1][1] - line[-1][0] < _JOINED_MAX:
            begun, _, before, since = line.pop()
            line.append((begun, end, before + lined, since))
        else:
            line.append((first, end, lined, self.now))

    def _lined_of(self, lanes: Sequence[int]) -> list[int]:
        """Count the records of a part that stand in line; return the places of the others."""
        waits, tails = self._waits, self.table.tails
        waits.extend(bytes(len(tails) - len(waits)))
        each = self.lined / self.lined_lanes if self.lined_lanes else 1.0
        most = min(_WAITS_MAX, 1 + int(_AHEAD * each))
        is_late = self.lined > _LONG and each > (1 if self._is_slow else _ROUNDS)
        any_linked = self.available > self.lined
        fresh = 0
        linked: list[int] = []
        for at, lane in enumerate(lanes):
            before = waits[lane]
            if not before:
                if is_late or (any_linked and tails[lane] != NONE):
                    linked.append(at)
                    continue
                fresh += 1
            elif before >= most or (any_linked and tails[lane] != NONE):
                linked.append(at)
                continue
            waits[lane] = before + 1
        self.lined_lanes += fresh
        return linked

    # -- leaving

    def take_line(self, count: int, most: int = 0) -> list[Stretch]:
        """Take records of the line; return them as stretches, ascending. After `clean`.

        They are so many, or some more, where that ends a part: about `most` of them.
        """
        found: list[Stretch] = []
        in_flight = self._in_flight
        while count > 0 and self._line and self.passes > 0:
            first, end, lined, since = self._line.popleft()
            before, passed = self.lined, list[int]()
            whole = end - first
            if lined == whole and not in_flight:
                fits = whole <= count or whole - whole // _SPARE <= most
                upto = end if fits else first + count
                self._leave_together(first, upto)
                some = [(first, upto)]
            else:
                upto, some = self._leave_each(first, end, count, in_flight, passed)
            if upto < end:
                self._line.appendleft((upto, end, lined - (before - self.lined), since))
            for lane in passed:
                self._enter(lane)
            for begin, behind in some:
                count -= behind - begin
                most -= behind - begin
                if found and found[-1][1] == begin:
                    found[-1] = found[-1][0], behind
                else:
                    found.append((begin, behind))
        self.taken += sum([end - first for first, end in found])
        return found

    def _leave_together(self, first: int, end: int) -> None:
        """Let records leave the line. Their lanes go on with what is linked of them."""
        waits, tails, gone = self._waits, self.table.tails, 0
        any_linked = self.available > self.lined
        for lane in self._lanes[first - self._base : end - self._base]:
            left = waits[lane] - 1
            waits[lane] = left
            if not left:
                gone += 1
                if any_linked and tails[lane] != NONE:
                    self._enter(lane)
        self.lined_lanes -= gone
        self.lined -= end - first
        self.available -= end - first

    def _leave_each(
        self, first: int, end: int, count: int, in_flight: int, passed: list[int]
    ) -> tuple[int, list[Stretch]]:  # fmt: skip
        """Take so many records of a part in which others are linked or done, or in order.

        Return up to where, and what was taken. A record that is not its lane's turn is linked, and
        the lane is `passed`.
        """
        found: list[Stretch] = []
        lanes, links, base, waits = self._lanes, self._next, self._base, self._waits
        tails, busy = self.table.tails, self._busy
        begin, offset = -1, first - 1
        while count > 0 and (offset := offset + 1) < end:
            at = offset - base
            lane = lanes[at]
            if lane == NONE or links[at] != NONE:
                if begin >= 0:
                    found.append((begin, offset))
                    begin = -1
                continue
            self.lined -= 1
            left = waits[lane] = waits[lane] - 1
            self.lined_lanes -= not left
            self.available -= 1
            is_oldest = tails[lane] == NONE or self._head(lane) > offset
            if in_flight and not (is_oldest and (flying := busy.get(lane, 0)) < in_flight):
                if is_oldest:
                    self._owed.add(lane)
                else:
                    self._credit += 1.0
                self._link(lane, offset)
                self.passes -= 1
                passed.append(lane)
                if begin >= 0:
                    found.append((begin, offset))
                    begin = -1
                continue
            if in_flight:
                busy[lane] = flying + 1
            if not left and tails[lane] != NONE:
                passed.append(lane)
            count -= 1
            if begin < 0:
                begin = offset
        upto = min(offset + 1, end)
        if begin >= 0:
            found.append((begin, upto))
        return upto, found

    def _leave_before(self, start: int) -> None:
        """Let records before an offset leave the line: there are none any more."""
        lanes, links, base, waits = self._lanes, self._next, self._base, self._waits
        while self._line and self._line[0][0] < start:
            first, end, lined, since = self._line.popleft()
            before, passed = self.lined, list[int]()
            upto = min(end, start)
            for at in range(first - base, upto - base):
                lane = lanes[at]
                if lane != NONE and links[at] == NONE:
                    lanes[at] = NONE
                    waits[lane] -= 1
                    self.lined -= 1
                    self.available -= 1
                    if not waits[lane]:
                        self.lined_lanes -= 1
                        passed.append(lane)
            if upto < end:
                self._line.appendleft((upto, end, lined - (before - self.lined), since))
            for lane in passed:
                self._enter(lane)
