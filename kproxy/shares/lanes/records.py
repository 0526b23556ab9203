"""The records of lanes, in arrays: which lane each is of, and which record comes next there. Pure.

Each offset that was looked at has its lane's number and the next offset of that lane. A lane's
records that are available are a ring of such links, ascending; its last one is known.
"""

from array import array
from collections.abc import Iterator

from kproxy.shares.lanes.table import NONE, LaneTable

MASK = 0x7FFFFFFF
"""The part of an offset that is in a link: more than any window has."""
_CLEANED_MAX = 5000  # offsets in a row, some milliseconds
_DROPPED_MIN = 4096
_EXPIRED_MAX = 1000  # that leave their lanes at once: a run of the log each, where they are apart
EXPIRING_BYTES = 120  # a record whose time is known takes them
_LINKED_MAX = 4096
_PART = 4  # the part of the arrays that is let go at once


class LaneRecords:
    """The records of the offsets from `start` to `end`."""

    __slots__ = (
        "_base", "_cleaned", "_lanes", "_levels", "_linked", "_next", "available", "expired",
        "expiring", "start", "table",
    )  # fmt: skip

    def __init__(self, start: int, prioritised: bool, salt: int) -> None:
        self.start = start
        self._base = self._cleaned = start
        self._lanes = array("I")
        self._next = array("I")
        self._levels = bytearray() if prioritised else None
        self.table = LaneTable(salt)
        self._linked: dict[int, int] = {}  # the record put back last before others, by lane
        self.available = 0
        """The records that are available, in lanes that are ready or not."""
        self.expiring: dict[int, int] = {}
        """The time in milliseconds when a record expires, by offset, of those that do."""
        self.expired: list[int] = []
        """The records that have left their lanes as they have expired, and are to be archived."""

    @property
    def end(self) -> int:
        """The offset behind all that was looked at."""
        return self._base + len(self._lanes)

    def pass_to(self, end: int) -> None:
        """Note that there is no record before this offset that was not added."""
        more = end - self.end
        if more > 0:
            self._lanes.extend([NONE] * more)
            self._next.extend([NONE] * more)
            if self._levels is not None:
                self._levels.extend(bytes(more))

    def _head(self, lane: int) -> int:
        """Return the first available record of a lane that has one."""
        base = self._base
        tail = (self.table.tails[lane] - base) & MASK
        return base + ((self._next[tail] - base) & MASK)

    def _unlink_head(self, lane: int, head: int) -> None:
        links, base, tails = self._next, self._base, self.table.tails
        tail = tails[lane]
        if tail == head & MASK:
            tails[lane] = NONE
        else:
            links[(tail - base) & MASK] = links[head - base]
        self.available -= 1

    def _leave_expired(self, lane: int, now_ms: int) -> bool:
        """Let the first records of a lane leave it as far as they have expired.

        Return whether that is all: so many do at once.
        """
        expiring = self.expiring
        while self.table.tails[lane] != NONE:
            head = self._head(lane)
            if expiring.get(head, now_ms + 1) > now_ms:
                break
            if len(self.expired) >= _EXPIRED_MAX:
                return False
            self._unlink_head(lane, head)
            self._lanes[head - self._base] = NONE
            self.expired.append(head)
        return True

    def _link(self, lane: int, offset: int) -> None:
        """Put a record back in its place: mostly it is the first one, or follows the last one that
        came back."""
        links, base, tails = self._next, self._base, self.table.tails
        at, short = offset - base, offset & MASK
        self.available += 1
        tail = tails[lane]
        if tail == NONE:
            links[at] = tails[lane] = short
            self._linked.pop(lane, None)
            return
        last = (tail - base) & MASK
        before = last
        if at > last:
            tails[lane] = short
        else:
            known = self._linked.get(lane, -1) - base
            if (links[last] - base) & MASK <= known < at:  # it is in its lane still
                before = known
            if len(self._linked) >= _LINKED_MAX:
                self._linked.clear()
            self._linked[lane] = offset
            while (following := (links[before] - base) & MASK) < at:
                before = following
        links[at] = links[before]
        links[before] = short

    def lane_of(self, offset: int) -> int:
        """Return the hash of the lane of a record that was added and is not done; -1: unknown."""
        at = offset - self._base
        if not 0 <= at < len(self._lanes) or (lane := self._lanes[at]) == NONE:
            return -1
        return self.table.hashes[lane]

    def clean(self) -> bool:
        """Forget records before the start, so many at a time; return whether that was all."""
        base, lanes = self._base, self._lanes
        upto = min(self.start, self.end, self._cleaned + _CLEANED_MAX)
        self._leave_before(upto)
        for offset in range(self._cleaned, upto):
            lane = lanes[offset - base]
            if lane != NONE:
                self._unlink_head(lane, offset)
                lanes[offset - base] = NONE
            if self.expiring:
                self.expiring.pop(offset, None)
        self._cleaned = max(self._cleaned, upto)
        if self._cleaned == self.end:
            self._let_go(len(lanes))
            self._base = self._cleaned = max(self.start, self._base)
        else:
            gone = self._cleaned - base
            if gone >= max(_DROPPED_MIN, len(lanes) // _PART):
                self._let_go(gone)
        return self._cleaned >= self.start

    def _leave_before(self, start: int) -> None:
        """Let records before an offset leave where they wait otherwise."""

    def _let_go(self, count: int) -> None:
        del self._lanes[:count]
        del self._next[:count]
        if self._levels is not None:
            del self._levels[:count]
        self._base += count

    # -- for people

    def lanes_of(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield each record that is not done, as far as it was looked at, and its lane's number."""
        base = self._base
        first = max(first, base)
        found = enumerate(self._lanes[first - base : end - base], first)
        return ((offset, lane) for offset, lane in found if lane != NONE)
