"""Rings of lanes: whose turn is next, by level of priority."""

from array import array
from itertools import islice

from kproxy.shares.lanes.table import NONE

_LAST = NONE - 1  # nothing comes behind it


class Ring:
    """A line of lanes; each is in it once at most. Links are an array: no object for each."""

    __slots__ = ("_last", "_links", "first", "length")

    def __init__(self) -> None:
        self._links = array("I")
        self.first = self._last = _LAST
        self.length = 0

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        return 4 * len(self._links)

    def has(self, lane: int) -> bool:
        return lane < len(self._links) and self._links[lane] != NONE

    def _has_taken(self, lane: int) -> bool:
        """Return whether a lane is not in it yet; then there is a link for it."""
        links = self._links
        if lane >= len(links):
            links.extend([NONE] * (lane + 1 - len(links)))
        elif links[lane] != NONE:
            return False
        self.length += 1
        return True

    def add(self, lane: int) -> None:
        """Put a lane at the end, unless it is in the ring."""
        if not self._has_taken(lane):
            return
        self._links[lane] = _LAST
        if self._last == _LAST:
            self.first = lane
        else:
            self._links[self._last] = lane
        self._last = lane

    def add_first(self, lane: int) -> None:
        """Put a lane at the beginning, unless it is in the ring."""
        if not self._has_taken(lane):
            return
        self._links[lane] = self.first
        if self._last == _LAST:
            self._last = lane
        self.first = lane

    def pop(self) -> int:
        """Take the first lane out."""
        lane = self.first
        self.first = self._links[lane]
        if self.first == _LAST:
            self._last = _LAST
        self._links[lane] = NONE
        self.length -= 1
        return lane

    def turn(self) -> None:
        """Put the first lane at the end."""
        lane, links = self.first, self._links
        if lane == self._last:
            return
        self.first = links[lane]
        links[lane] = _LAST
        links[self._last] = lane
        self._last = lane


_TURN = 1 - 1e-9  # a whole one, of parts that add up
LEVELS = 10
"""The levels of priority: 9 comes first."""


TATS_MAX = 250_000
"""Lanes of which is known when they may go on by their rate: some 50 MB, some 20 ms to look at."""
_SAMPLED = 1000


def unfinished(tats: dict[int, float], now: float) -> dict[int, float]:
    """Return the lanes that may not go on yet, by their rate, and until when.

    About half of too many are forgotten, those that may soonest: memory is bounded, and these are
    the least early if they come again.
    """
    kept = {lane: tat for lane, tat in tats.items() if tat > now}
    if 2 * len(kept) > TATS_MAX:
        some = sorted(islice(kept.values(), 0, None, max(1, len(kept) // _SAMPLED)))
        middle = some[len(some) // 2]
        kept = {lane: tat for lane, tat in kept.items() if tat > middle}
    return kept


class Rings:
    """A ring for each level. `share`: the part of turns that lower levels have beside a higher."""

    __slots__ = ("_lower", "_owed", "_share", "by_level")

    def __init__(self, levels: int, share: float) -> None:
        self.by_level = [Ring() for _ in range(levels)]
        self._share = share
        self._owed = 0.0  # turns of lower levels
        self._lower = -1  # the level that had the last of these

    @property
    def size(self) -> int:
        """The bytes that they take, about."""
        return sum(ring.size for ring in self.by_level)

    def __bool__(self) -> bool:
        return any(ring.length for ring in self.by_level)

    def next_level(self) -> int:
        """Return the level whose turn it is; -1: all rings are empty."""
        if len(self.by_level) == 1:
            return 0 if self.by_level[0].length else -1
        some = [level for level, ring in enumerate(self.by_level) if ring.length]
        if not some:
            return -1
        highest = some.pop()
        if not some or self._owed < _TURN:
            return highest
        below = [level for level in some if level < self._lower]
        return (below or some)[-1]

    def had_turn(self, level: int) -> None:
        """Note that a record of a level was taken. Lower levels take turns among themselves."""
        if len(self.by_level) == 1 or not self._share:
            return
        some = [one for one, ring in enumerate(self.by_level) if ring.length and one != level]
        if some and some[-1] > level:
            self._owed = 0.0
            self._lower = level
        elif some:
            self._owed = min(1.0, self._owed + self._share / (1 - self._share))
