"""The holders of a share partition's records, each until when: stretches that do not overlap."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from math import inf


class Lease:
    """A member's hold on some records until a time. `number`: which acquisition gave them."""

    __slots__ = ("deadline", "first", "last", "member", "number")

    def __init__(self, first: int, last: int, member: str, deadline: float, number: int) -> None:
        self.first, self.last = first, last
        self.member, self.deadline, self.number = member, deadline, number

    def part(self, first: int, last: int) -> "Lease":
        return Lease(first, last, self.member, self.deadline, self.number)


def _first(lease: Lease) -> int:
    return lease.first


class Leases:
    """The leases of one share partition, ascending."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: list[Lease] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def held(self) -> int:
        """The number of records that members hold."""
        return sum(lease.last - lease.first + 1 for lease in self._all)

    @property
    def due(self) -> float:
        """The time when the first one ends; infinity: there is none."""
        return min((lease.deadline for lease in self._all), default=inf)

    def among(self, first: int, last: int) -> Iterator[Lease]:
        """Yield the leases that have any of these records."""
        at = max(0, bisect_right(self._all, first, key=_first) - 1)
        for index in range(at, len(self._all)):
            lease = self._all[index]
            if lease.first > last:
                return
            if lease.last >= first:
                yield lease

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
        return taken

    def trim(self, start: int) -> None:
        """Drop the leases of records before `start`."""
        for lease in self._all:
            lease.first = max(lease.first, start)
        self._all = [lease for lease in self._all if lease.first <= lease.last]
