"""The holders of a share partition's records, each until when: stretches that do not overlap.

Records that lanes give lie *scattered*: all of one acquisition share a lease, by their offsets.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from math import inf
from typing import NamedTuple


class Lease:
    """A member's hold on some records until a time. `number`: which acquisition gave them."""

    __slots__ = ("deadline", "first", "last", "member", "number")

    def __init__(self, first: int, last: int, member: str, deadline: float, number: int) -> None:
        self.first, self.last = first, last
        self.member, self.deadline, self.number = member, deadline, number

    def part(self, first: int, last: int) -> "Lease":
        return Lease(first, last, self.member, self.deadline, self.number)


class Scattered(NamedTuple):
    """Records, ascending, that are held by a lease they share, which is of no stretch itself."""

    lease: Lease
    offsets: Sequence[int]


def _first(lease: Lease) -> int:
    return lease.first


class Leases:
    """The leases of one share partition, ascending."""

    __slots__ = ("_all", "_scattered")

    def __init__(self) -> None:
        self._all: list[Lease] = []
        self._scattered: dict[int, Lease] = {}  # by offset

    def __len__(self) -> int:
        return len(self._all) + len(self._scattered)

    @property
    def held(self) -> int:
        """The number of records that members hold."""
        held = sum(lease.last - lease.first + 1 for lease in self._all)
        return held + len(self._scattered)

    @property
    def due(self) -> float:
        """The time when the first one ends; infinity: there is none."""
        due = min((lease.deadline for lease in self._all), default=inf)
        return min([due, *(lease.deadline for lease in set(self._scattered.values()))])

    def among(self, first: int, last: int) -> Iterator[Lease]:
        """Yield the leases that have any of these records."""
        at = max(0, bisect_right(self._all, first, key=_first) - 1)
        for index in range(at, len(self._all)):
            lease = self._all[index]
            if lease.first > last:
                return
            if lease.last >= first:
                yield lease

    def _scattered_in(self, first: int, last: int) -> list[int]:
        known = self._scattered
        if last - first < len(known):
            return [offset for offset in range(first, last + 1) if offset in known]
        return sorted(offset for offset in known if first <= offset <= last)

    def holders(self, first: int, last: int) -> Iterator[str]:
        """Yield the members that hold any of these records, once for each lease."""
        yield from (lease.member for lease in self.among(first, last))
        if self._scattered:
            for offset in self._scattered_in(first, last):
                yield self._scattered[offset].member

    def scatter(self, offsets: Iterable[int], lease: Lease) -> None:
        """Let a lease have these records, which nobody holds."""
        self._scattered.update(zip(offsets, repeat(lease)))

    def take_scattered(self, member: str, offsets: Sequence[int]) -> list[Scattered] | None:
        """Take scattered records from a member; None: some are not, or not this member's."""
        known = self._scattered
        found = list(map(known.get, offsets))
        leases = set(found)
        if None in leases or any(lease.member != member for lease in leases if lease is not None):
            return None
        for offset in offsets:
            del known[offset]
        if len(leases) == 1 and found[0] is not None:
            return [Scattered(found[0], offsets)]
        by_lease: dict[Lease, list[int]] = {}
        for offset, lease in zip(offsets, found, strict=True):
            if lease is not None:
                by_lease.setdefault(lease, []).append(offset)
        return [Scattered(*one) for one in by_lease.items()]

    def add(self, lease: Lease) -> None:
        at = bisect_right(self._all, lease.first, key=_first)
        self._all.insert(at, lease)

    def cut(self, first: int, last: int) -> list[Lease]:
        """Take these records out of the leases that have them; the parts that were taken."""
        taken = []
        for lease in list(self.among(first, last)):
            taken.append(lease.part(max(first, lease.first), min(last, lease.last)))
            if lease.first < first and lease.last > last:
                self.add(lease.part(last + 1, lease.last))
                lease.last = first - 1
            elif lease.first < first:
                lease.last = first - 1
            elif lease.last > last:
                lease.first = last + 1
            else:
                del self._all[self._index_of(lease)]
        if self._scattered:
            for offset in self._scattered_in(first, last):
                taken.append(self._scattered.pop(offset).part(offset, offset))
        return taken

    def _index_of(self, lease: Lease) -> int:
        at = bisect_right(self._all, lease.first, key=_first) - 1
        while self._all[at] is not lease:
            at -= 1
        return at

    def take(self, wanted: Callable[[Lease], bool]) -> list[Lease]:
        """Take out those that are wanted."""
        taken = [lease for lease in self._all if wanted(lease)]
        if taken:
            gone = set(map(id, taken))
            self._all = [lease for lease in self._all if id(lease) not in gone]
        late = set(filter(wanted, set(self._scattered.values())))
        if late:
            for offset in sorted(at for at, lease in self._scattered.items() if lease in late):
                taken.append(self._scattered.pop(offset).part(offset, offset))
        return taken

    def trim(self, start: int) -> None:
        """Drop the leases of records before `start`."""
        for lease in self._all:
            lease.first = max(lease.first, start)
        self._all = [lease for lease in self._all if lease.first <= lease.last]
        for offset in [offset for offset in self._scattered if offset < start]:
            del self._scattered[offset]
