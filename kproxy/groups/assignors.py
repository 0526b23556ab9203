"""Server-side assignors of KIP-848: `uniform` spreads all partitions, `range` goes queue by queue.

Both are given what each member may have and has; both are deterministic.
"""

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from kproxy.virtual.types import PartitionKey, QueueId

Parts = frozenset[PartitionKey]


class Wish(NamedTuple):
    """A member's subscribed queues, and the partitions it was to have before."""

    queues: frozenset[QueueId]
    before: Parts
    order: str  # what members are sorted by: the instance id where there is one


Assignor = Callable[[Mapping[str, Wish], Mapping[QueueId, int]], dict[str, Parts]]
"""assign(wishes by member id, partition counts) -> partitions by member id."""


def uniform(wishes: Mapping[str, Wish], sizes: Mapping[QueueId, int]) -> dict[str, Parts]:
    """As evenly as can be, moving as little as can be."""
    subscriptions = {wish.queues for wish in wishes.values()}
    if len(subscriptions) == 1:
        return _same_for_all(wishes, sizes, next(iter(subscriptions)))
    return _each_its_own(wishes, sizes)


def _all_parts(queues: frozenset[QueueId], sizes: Mapping[QueueId, int]) -> list[PartitionKey]:
    return [(q, i) for q in sorted(queues) for i in range(sizes.get(q, 0))]


def _same_for_all(
    wishes: Mapping[str, Wish], sizes: Mapping[QueueId, int], queues: frozenset[QueueId]
) -> dict[str, Parts]:
    parts = _all_parts(queues, sizes)
    least, more = divmod(len(parts), len(wishes))
    there, taken = set(parts), set()
    kept: dict[str, list[PartitionKey]] = {}
    for member in sorted(wishes):
        mine = sorted(part for part in wishes[member].before if part in there)
        mine = [part for part in mine if part not in taken]
        quota = least
        if len(mine) > least and more:
            quota, more = least + 1, more - 1
        kept[member] = mine[:quota]
        taken.update(kept[member])
    free = iter([part for part in parts if part not in taken])
    for member in sorted(wishes):
        while len(kept[member]) < least:
            kept[member].append(next(free))
    for member in sorted(wishes):
        if more and len(kept[member]) == least:
            kept[member].append(next(free))
            more -= 1
    return {member: frozenset(parts) for member, parts in kept.items()}


def _each_its_own(wishes: Mapping[str, Wish], sizes: Mapping[QueueId, int]) -> dict[str, Parts]:
    readers: dict[QueueId, list[str]] = {}
    for member in sorted(wishes):
        for queue in wishes[member].queues:
            readers.setdefault(queue, []).append(member)
    has: dict[str, set[PartitionKey]] = {member: set() for member in wishes}
    taken: set[PartitionKey] = set()
    for member in sorted(wishes):
        wish = wishes[member]
        for queue, index in sorted(wish.before):
            kept = queue in wish.queues and index < sizes.get(queue, 0)
            if kept and (queue, index) not in taken:
                has[member].add((queue, index))
                taken.add((queue, index))
    loads = _Loads(has, readers)
    parts = _all_parts(frozenset(readers), sizes)
    for part in sorted(parts, key=lambda part: (len(readers[part[0]]), part)):
        if part not in taken:
            loads.give(loads.least(part[0]), part)
    _level(loads)
    return {member: frozenset(parts) for member, parts in has.items()}


class _Loads:
    """Who has what, and of the readers of each queue who has least: by heaps that are put right
    when they are looked at. Queues with the same readers share one."""

    def __init__(
        self, has: dict[str, set[PartitionKey]], readers: Mapping[QueueId, list[str]]
    ) -> None:
        self.has = has
        heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        self._heaps: dict[QueueId, list[tuple[int, str]]] = {}
        self._of_member: dict[str, list[list[tuple[int, str]]]] = {member: [] for member in has}
        for queue, members in readers.items():
            alike = tuple(members)
            if alike not in heaps:
                heap = heaps[alike] = [(len(has[member]), member) for member in members]
                heapify(heap)
                for member in members:
                    self._of_member[member].append(heap)
            self._heaps[queue] = heaps[alike]

    def least(self, queue: QueueId) -> str:
        """The reader of a queue that has the fewest partitions, the first by name of several."""
        heap, has = self._heaps[queue], self.has
        while True:
            load, member = heap[0]
            now = len(has[member])
            if load == now:
                return member
            if load < now:
                heapreplace(heap, (now, member))
            else:
                heappop(heap)  # it lost some since, and stands further up as well

    def give(self, member: str, part: PartitionKey) -> None:
        self.has[member].add(part)

    def move(self, part: PartitionKey, from_: str, to: str) -> None:
        self.has[from_].discard(part)
        self.has[to].add(part)
        for heap in self._of_member[from_]:
            heappush(heap, (len(self.has[from_]), from_))


def _level(loads: _Loads) -> None:
    """Move partitions from who has more to who has less, while that evens anything out."""
    has = loads.has
    moved = True
    while moved:
        moved = False
        for member in sorted(has, key=lambda m: (-len(has[m]), m)):
            for part in sorted(has[member]):
                to = loads.least(part[0])
                if len(has[to]) + 1 < len(has[member]):
                    loads.move(part, member, to)
                    moved = True


def range_(wishes: Mapping[str, Wish], sizes: Mapping[QueueId, int]) -> dict[str, Parts]:
    """Each queue's partitions in a row, the first members one more where they do not divide."""
    has: dict[str, set[PartitionKey]] = {member: set() for member in wishes}
    queues = frozenset(queue for wish in wishes.values() for queue in wish.queues)
    in_order = sorted(wishes, key=lambda m: (wishes[m].order, m))
    for queue in sorted(queues):
        readers = [member for member in in_order if queue in wishes[member].queues]
        least, more = divmod(sizes.get(queue, 0), len(readers))
        start = 0
        for place, member in enumerate(readers):
            end = start + least + (place < more)
            has[member].update((queue, i) for i in range(start, end))
            start = end
    return {member: frozenset(parts) for member, parts in has.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": range_}
