"""Server-side assignors of KIP-848: `uniform` spreads all partitions, `range` goes queue by queue.

Both are given what each member may have and has; both are deterministic. They take time in the
number of partitions and of distinct subscriptions, and yield on the way. Sets of members are ints
with a bit for each.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from kproxy.loop.steps import EVERY, Steps, spent
from kproxy.virtual.types import PartitionKey, QueueId

PartitionSet = frozenset[PartitionKey]
Target = dict[str, PartitionSet]
"""Partitions by member id."""


class MemberSubscription(NamedTuple):
    """A member's subscribed queues, and the partitions it was to have before."""

    queues: frozenset[QueueId]
    before: PartitionSet
    order: str  # members are sorted by it: the instance id if there is one


Assignor = Callable[[Mapping[str, MemberSubscription], Mapping[QueueId, int]], Steps[Target]]
"""assign(wishes by member id, partition counts), in steps."""


def uniform(
    wishes: Mapping[str, MemberSubscription], sizes: Mapping[QueueId, int]
) -> Steps[Target]:
    """Assign as evenly as can be, moving as little as can be."""
    subscriptions = {wish.queues for wish in wishes.values()}
    if len(subscriptions) == 1:
        return _same_for_all(wishes, sizes, next(iter(subscriptions)))
    return _EachItsOwn(wishes, sizes).steps()


def queues_in_order(queues: Iterable[QueueId]) -> Steps[list[QueueId]]:
    """Sort queues by their last bytes first: those are random, and one sort of all is long."""
    buckets: dict[int, list[QueueId]] = {}
    for number, queue in enumerate(queues, 1):
        buckets.setdefault(queue[-1], []).append(queue)
        if number % EVERY == 0:
            yield
    found: list[QueueId] = []
    for number, last in enumerate(sorted(buckets), 1):
        found += sorted(buckets[last])
        if number % 16 == 0:
            yield
    return found


def all_parts(queues: Iterable[QueueId], sizes: Mapping[QueueId, int]) -> Steps[list[PartitionKey]]:
    parts: list[PartitionKey] = []
    done = 0
    for queue in (yield from queues_in_order(queues)):
        size = sizes.get(queue, 0)
        parts += [(queue, index) for index in range(size)]
        done += 1 + size
        if done >= EVERY:
            yield from spent(done)
            done = 0
    return parts


def _same_for_all(
    wishes: Mapping[str, MemberSubscription],
    sizes: Mapping[QueueId, int],
    queues: frozenset[QueueId],
) -> Steps[Target]:
    parts = yield from all_parts(queues, sizes)
    members = sorted(wishes)
    least, more = divmod(len(parts), len(members))
    owners = yield from _owners(members, wishes, sizes)
    has = dict.fromkeys(members, 0)
    for member in owners.values():
        has[member] += 1
    quotas = {}
    for member in members:
        extra = has[member] > least and more > 0
        quotas[member], more = least + extra, more - extra
    kept: dict[str, list[PartitionKey]] = {member: [] for member in members}
    free = []
    for number, part in enumerate(parts, 1):
        owner = owners.get(part)
        if owner is not None and len(kept[owner]) < quotas[owner]:
            kept[owner].append(part)
        else:
            free.append(part)
        if number % EVERY == 0:
            yield
    start = 0
    for member in members:
        extra = more > 0 and quotas[member] == least
        end = start + quotas[member] + extra - len(kept[member])
        kept[member] += free[start:end]
        start, more = end, more - extra
    return (yield from frozen(kept.items()))


def frozen(has: Iterable[tuple[str, list[PartitionKey]]]) -> Steps[Target]:
    found: Target = {}
    done = 0
    for member, parts in has:
        found[member] = frozenset(parts)
        done += 1 + len(parts)
        if done >= EVERY:
            yield from spent(done)
            done = 0
    return found


def _owners(
    members: list[str], wishes: Mapping[str, MemberSubscription], sizes: Mapping[QueueId, int]
) -> Steps[dict[PartitionKey, str]]:
    """Return the owners that had a partition and may have it still; the first, if several say
    so."""
    owners: dict[PartitionKey, str] = {}
    for member in members:
        queues, before, _ = wishes[member]
        for number, part in enumerate(before, 1):
            if part[0] in queues and part[1] < sizes.get(part[0], 0):
                owners.setdefault(part, member)
            if number % EVERY == 0:
                yield
    return owners


class _Loads:
    """The number of partitions of each member, and which of some members has least and most."""

    def __init__(self, count: int) -> None:
        self.of = [0] * count
        self._levels = [0]  # the loads there are, sorted
        self._who = {0: (1 << count) - 1}

    def lightest(self, members: int) -> int:
        """Return the first one of the members with the least."""
        return self._first(members, self._levels)

    def heaviest(self, members: int) -> int:
        return self._first(members, reversed(self._levels))

    def _first(self, members: int, levels: Iterable[int]) -> int:
        who = self._who
        hit = next(hit for level in levels if (hit := members & who[level]))
        return (hit & -hit).bit_length() - 1

    def add(self, member: int, count: int) -> None:
        bit, load = 1 << member, self.of[member]
        self._who[load] ^= bit
        if not self._who[load]:
            del self._who[load], self._levels[bisect_left(self._levels, load)]
        self.of[member] = load = load + count
        if load not in self._who:
            insort(self._levels, load)
            self._who[load] = 0
        self._who[load] |= bit


class _EachItsOwn:
    """Uniform where subscriptions differ: queues with the same readers are dealt with together."""

    def __init__(
        self, wishes: Mapping[str, MemberSubscription], sizes: Mapping[QueueId, int]
    ) -> None:
        self._wishes = wishes
        self._sizes = sizes
        self._members = sorted(wishes)
        self._loads = _Loads(len(self._members))
        # By readers: what each of them has of these queues, who was there first in front.
        self._held: dict[int, dict[int, list[PartitionKey]]] = {}
        self._holders: dict[int, int] = {}

    def steps(self) -> Steps[Target]:
        readers = yield from readers_by_queue(self._members, self._wishes)
        places = {member: place for place, member in enumerate(self._members)}
        owners = yield from _owners(self._members, self._wishes, self._sizes)
        free: dict[int, list[PartitionKey]] = {}  # by number of readers
        parts = yield from all_parts(readers, self._sizes)
        for number, part in enumerate(parts, 1):
            mask, owner = readers[part[0]], owners.get(part)
            if owner is None:
                free.setdefault(mask.bit_count(), []).append(part)
            else:
                self._give(mask, places[owner], part)
            if number % EVERY == 0:
                yield
        for _, parts in sorted(free.items()):
            for number, part in enumerate(parts, 1):
                mask = readers[part[0]]
                self._give(mask, self._loads.lightest(mask), part)
                if number % EVERY == 0:
                    yield
        yield from self._level()
        return (yield from self._gathered())

    def _give(self, readers: int, member: int, part: PartitionKey) -> None:
        self._held.setdefault(readers, {}).setdefault(member, []).append(part)
        self._holders[readers] = self._holders.get(readers, 0) | 1 << member
        self._loads.add(member, 1)

    def _level(self) -> Steps[None]:
        """Move partitions from who has more to who has less, while that evens anything out."""
        left = list(self._held)
        while left:
            changed = 0
            for number, readers in enumerate(left, 1):
                changed |= yield from self._level_among(readers)
                if number % EVERY == 0:
                    yield
            left = [readers for readers in self._held if readers & changed]

    def _level_among(self, readers: int) -> Steps[int]:
        """Balance the loads of some members; return those whose loads have changed."""
        loads, held, changed, moves = self._loads, self._held[readers], 0, 0
        while True:
            high = loads.heaviest(self._holders[readers])
            low = loads.lightest(readers)
            if loads.of[high] - loads.of[low] < 2:
                return changed
            self._give(readers, low, held[high].pop())
            loads.add(high, -1)
            if not held[high]:
                self._holders[readers] ^= 1 << high
            changed |= 1 << high | 1 << low
            moves += 1
            if moves % EVERY == 0:
                yield

    def _gathered(self) -> Steps[Target]:
        has: list[list[PartitionKey]] = [[] for _ in self._members]
        for number, held in enumerate(self._held.values(), 1):
            for member, parts in held.items():
                has[member] += parts
            if number % EVERY == 0:
                yield
        return (yield from frozen(zip(self._members, has, strict=True)))


def readers_by_queue(
    members: list[str], wishes: Mapping[str, MemberSubscription]
) -> Steps[dict[QueueId, int]]:
    """Return the readers of each queue: a bit for each member by its place."""
    subscribed: dict[frozenset[QueueId], int] = {}
    for place, member in enumerate(members):
        queues = wishes[member].queues
        subscribed[queues] = subscribed.get(queues, 0) | 1 << place
    readers: dict[QueueId, int] = {}
    for queues, mask in subscribed.items():
        for number, queue in enumerate(queues, 1):
            readers[queue] = readers.get(queue, 0) | mask
            if number % EVERY == 0:
                yield
    return readers


def places_of(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def range_(wishes: Mapping[str, MemberSubscription], sizes: Mapping[QueueId, int]) -> Steps[Target]:
    """Assign each queue's partitions in a row, the first members one more if they do not divide."""
    members = sorted(wishes, key=lambda m: (wishes[m].order, m))
    has: list[list[PartitionKey]] = [[] for _ in members]
    readers = yield from readers_by_queue(members, wishes)
    done = 0
    for queue, mask in readers.items():
        size = sizes.get(queue, 0)
        least, more = divmod(size, mask.bit_count())
        start = 0
        for number, member in enumerate(places_of(mask)):
            end = start + least + (number < more)
            if start == end:
                break
            has[member] += [(queue, index) for index in range(start, end)]
            start = end
        done += 1 + size
        if done >= EVERY:
            yield from spent(done)
            done = 0
    return (yield from frozen(zip(members, has, strict=True)))


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": range_}
