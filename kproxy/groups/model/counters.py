"""Counts of what a group's members support, subscribe to and hold, updated with each change."""

from collections import Counter
from typing import Protocol

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.classic_member import Protocols
from kproxy.loop.steps import EVERY, Steps
from kproxy.virtual.types import PartitionKey

_REGEXES_MAX = 1000

Subscription = tuple[tuple[str, ...], str]
"""Names and a regular expression; in one group equal ones are one object."""
Subscriptions = list[Subscription]


class Reader(Protocol):
    """A member of a group whose coordinator assigns."""

    topics: tuple[str, ...]
    regex: str


class Assignee(Protocol):
    """A member that has partitions, and is to have some."""

    assigned: PartitionSet
    revoking: PartitionSet
    target: PartitionSet


class ProtocolCounts:
    """The number of members that support each protocol, of those that speak the classic one."""

    def __init__(self) -> None:
        self._members = 0
        self._supporting: Counter[str] = Counter()

    def count(self, protocols: Protocols, by: int) -> None:
        """Count one more, or one less; a member without protocols speaks the consumer protocol."""
        if not protocols:
            return
        self._members += by
        for name in {name for name, _ in protocols}:
            self._supporting[name] += by
            if not self._supporting[name]:
                del self._supporting[name]

    def common(self) -> set[str]:
        """Return what all of them support."""
        return {name for name, count in self._supporting.items() if count == self._members}

    def fit(self, protocols: Protocols) -> bool:
        """Return whether a member with these, one at least, can be among them."""
        names = {name for name, _ in protocols}
        return bool(names and (not self._members or names & self.common()))


class SubscriptionCounts:
    """The different subscriptions of a group, with the number of members that have each."""

    def __init__(self) -> None:
        self._members: dict[Subscription, tuple[Subscription, int]] = {}
        self.regexes: Counter[str] = Counter()
        self._names: tuple[object, frozenset[str]] = (None, frozenset())

    def count(self, member: Reader, by: int) -> None:
        """Count one more, or one less; equal subscriptions share the names in memory."""
        given = (member.topics, member.regex)
        shared, count = self._members.get(given, (given, 0))
        member.topics = shared[0]
        if count + by:
            self._members[shared] = shared, count + by
        else:
            del self._members[shared]
        if member.regex:
            self.regexes[member.regex] += by
            if not self.regexes[member.regex]:
                del self.regexes[member.regex]
        if not count or not count + by:
            self._names = (None, frozenset())

    def check_room_for(self, regex: str | None) -> None:
        """Raise KafkaError if a regular expression is one too many."""
        if regex and regex not in self.regexes and len(self.regexes) >= _REGEXES_MAX:
            raise KafkaError(
                Code.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum of {_REGEXES_MAX} different regular"
                " expressions.",
            )

    def all(self) -> Subscriptions:
        return list(self._members)

    def names(self, resolved: dict[str, frozenset[str]]) -> frozenset[str]:
        """Return the names of all queues subscribed to, given what regular expressions match."""
        as_of, names = self._names
        if as_of is not resolved:
            matched = [resolved.get(regex, frozenset()) for regex in self.regexes]
            names = frozenset().union(*(topics for topics, _ in self._members), *matched)
            self._names = resolved, names
        return names


class AssignmentCounts:
    """The number of members that have a partition, or have yet to give it up."""

    def __init__(self) -> None:
        self._count: dict[PartitionKey, int] = {}

    def count(self, member: Assignee, parts: PartitionSet, by: int) -> Steps[None]:
        held = self._count
        for number, part in enumerate(parts, 1):
            if number % EVERY == 0:
                yield
            count = held.get(part, 0) + by
            if count:
                held[part] = count
            else:
                del held[part]

    def others(self, member: Assignee) -> Steps[PartitionSet]:
        """Return what a member is to get and another one holds."""
        held, own, found = self._count, member.revoking, set()
        for number, part in enumerate(member.target - member.assigned, 1):
            if held.get(part, 0) > (part in own):
                found.add(part)
            if number % EVERY == 0:
                yield
        return frozenset(found)
