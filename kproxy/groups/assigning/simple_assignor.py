"""The assignor of share groups (KIP-932), `simple`: a partition may be several members'.

When there are more members than partitions, a partition is shared by as many as it takes for each
member to have one. Balance comes before what members had. Members that subscribe to the same are
served from all partitions together; where subscriptions differ, each queue is dealt with alone. The
numbers are those of Kafka's assignor; which partition is whose may differ.
"""

from collections.abc import Mapping, Sequence

from kproxy.groups.assigning.assignors import (
    MemberSubscription,
    Target,
    all_parts,
    frozen,
    places_of,
    readers_by_queue,
)
from kproxy.loop.steps import EVERY, Steps, spent
from kproxy.virtual.types import PartitionKey, QueueId

SIMPLE = "simple"

Holders = dict[PartitionKey, int]
"""The holders of a partition: a bit for each member by its place."""


def simple(wishes: Mapping[str, MemberSubscription], sizes: Mapping[QueueId, int]) -> Steps[Target]:
    """Assign as evenly as can be, moving as little as can be."""
    members = sorted(wishes)
    if not members:
        return {}
    holders = yield from _before(members, wishes, sizes)
    subscriptions = {wish.queues for wish in wishes.values()}
    if len(subscriptions) == 1:
        parts = yield from all_parts(next(iter(subscriptions)), sizes)
        yield from _spread(parts, range(len(members)), holders)
        return (yield from _gathered(members, parts, holders))
    readers = yield from readers_by_queue(members, wishes)
    every: list[PartitionKey] = []
    worked = 0
    for queue, mask in readers.items():
        parts = [(queue, index) for index in range(sizes.get(queue, 0))]
        places = list(places_of(mask))
        yield from _spread(parts, places, holders)
        every += parts
        worked += 1 + len(parts) + len(places)
        if worked >= EVERY:
            yield from spent(worked)
            worked = 0
    return (yield from _gathered(members, every, holders))


def _before(
    members: Sequence[str],
    wishes: Mapping[str, MemberSubscription],
    sizes: Mapping[QueueId, int],
) -> Steps[Holders]:
    """Return the members that had a partition and may have it still."""
    holders: Holders = {}
    for place, member in enumerate(members):
        queues, before, _ = wishes[member]
        bit = 1 << place
        for number, part in enumerate(before, 1):
            if part[0] in queues and part[1] < sizes.get(part[0], 0):
                holders[part] = holders.get(part, 0) | bit
            if number % EVERY == 0:
                yield
    return holders


def _spread(parts: Sequence[PartitionKey], places: Sequence[int], holders: Holders) -> Steps[None]:
    """Have these partitions held by these members evenly."""
    if not parts or not places:
        return
    yield from _Spread(parts, places, holders).steps()


class _Spread:
    """`sharing`: how many members have each partition. A quota is what a member is to have."""

    def __init__(
        self, parts: Sequence[PartitionKey], places: Sequence[int], holders: Holders
    ) -> None:
        self._parts, self._holders = parts, holders
        self._sharing = -(-len(places) // len(parts))
        total, count = self._sharing * len(parts), len(places)
        self._quota = {
            place: -(-total * (number + 1) // count) + (-total * number // count)
            for number, place in enumerate(places)
        }
        self._has = dict.fromkeys(places, 0)

    def steps(self) -> Steps[None]:
        has, holders = self._has, self._holders
        for number, part in enumerate(self._parts, 1):
            for place in places_of(holders.get(part, 0)):
                has[place] += 1
            if number % EVERY == 0:
                yield
        for number, part in enumerate(self._parts, 1):
            if holders.get(part, 0).bit_count() > self._sharing:
                self._share_less(part)
            if number % EVERY == 0:
                yield
        for number, part in enumerate(reversed(self._parts), 1):
            for place in places_of(holders.get(part, 0)):
                if has[place] > self._quota[place]:
                    self._take(part, place)
            if number % EVERY == 0:
                yield
        yield from self._fill()

    def _take(self, part: PartitionKey, place: int) -> None:
        self._holders[part] ^= 1 << place
        self._has[place] -= 1

    def _share_less(self, part: PartitionKey) -> None:
        """Take a partition from some members: first from those that have too many."""
        has, quota = self._has, self._quota
        held = sorted(places_of(self._holders[part]), key=lambda place: has[place] <= quota[place])
        for place in held[: len(held) - self._sharing]:
            self._take(part, place)

    def _fill(self) -> Steps[None]:
        """Give out what too few have. Members that have a partition already are passed over.

        If all who lack something have it, that is left so, as in Kafka.
        """
        has, quota, at = self._has, self._quota, 0
        lacking = [place for place in has if has[place] < quota[place]]
        for number, part in enumerate(self._parts, 1):
            mask = self._holders.get(part, 0)
            passed = 0
            while mask.bit_count() < self._sharing and passed < len(lacking):
                at %= len(lacking)
                place = lacking[at]
                if mask >> place & 1:
                    passed += 1
                    at += 1
                    continue
                mask |= 1 << place
                has[place] += 1
                passed = 0
                if has[place] == quota[place]:
                    del lacking[at]
                else:
                    at += 1
            self._holders[part] = mask
            if number % EVERY == 0:
                yield


def _gathered(
    members: Sequence[str], parts: Sequence[PartitionKey], holders: Holders
) -> Steps[Target]:
    has: list[list[PartitionKey]] = [[] for _ in members]
    for number, part in enumerate(parts, 1):
        for place in places_of(holders.get(part, 0)):
            has[place].append(part)
        if number % EVERY == 0:
            yield
    return (yield from frozen(zip(members, has, strict=True)))
