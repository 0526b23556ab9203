"""Regular expressions of clients that may not know of every queue."""

from bisect import bisect_left
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.groups.assigning import subscriptions
from kproxy.groups.assigning.regex import Pattern
from kproxy.groups.assigning.subscriptions import Resolved, SubscriptionResolver
from kproxy.security.acls import Acls, Binding, Effect, Op, Resource
from kproxy.security.acls import Pattern as Kind
from kproxy.security.permits import Authorizer

NAMES = [f"q{number:03}" for number in range(100)]


class Lookup:
    changes = 1

    def __init__(self) -> None:
        self.scans = 0

    def all(self, first: str = "") -> Iterator[Any]:
        self.scans += not first
        return iter(
            [SimpleNamespace(name=n, partitions=1) for n in NAMES[bisect_left(NAMES, first) :]]
        )


def resolver(lookup: Any, *rules: Binding) -> SubscriptionResolver:
    acls = Acls()
    for rule in rules:
        acls.add(rule)
    readers = Authorizer(
        SimpleNamespace(acls=acls, generation=1), enabled=True, super_users=frozenset(),
        lenient=False,
    )  # fmt: skip

    async def logged(group: Any) -> Code:
        return Code.NONE

    return SubscriptionResolver(lookup, lambda: 0.0, lambda group: True, logged, readers)


def may_read(name: str, principal: str = "User:alice", host: str = "*") -> Binding:
    return Binding(Resource.TOPIC, name, Kind.PREFIXED, principal, host, Op.READ, Effect.ALLOW)


def found(of: SubscriptionResolver, texts: set[str], known: Resolved | None = None) -> Resolved:
    steps = of._resolved(texts, known or {})
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)


def pod(number: int, principal: str = "User:alice") -> str:
    return Pattern("q.*", principal, f"10.0.0.{number}").text()


def test_many_of_one_audience_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: each address had its own names, and together they had no room."""
    monkeypatch.setattr(subscriptions, "_MATCHES_MAX", 100)
    lookup = Lookup()
    pods = {pod(number) for number in range(200)}
    names = found(resolver(lookup, may_read("q")), pods)
    assert set(names) == pods
    assert set(names.values()) == {frozenset(NAMES)}
    assert len({id(one) for one in names.values()}) == 1
    more = found(resolver(lookup, may_read("q")), pods | {pod(201)}, names)
    assert more[pod(201)] is names[pod(0)]
    assert lookup.scans == 1, "of who is known nobody is looked for again"


def test_each_client_finds_queues_that_it_may_describe() -> None:
    """A rule names an address, or the user, or everybody."""
    rules = may_read("q00"), may_read("q01", host="10.0.0.7"), may_read("q02", "User:bob")
    names = found(
        resolver(Lookup(), *rules),
        {pod(1), pod(2), pod(7), pod(1, "User:bob"), pod(1, "User:carl")},
    )
    assert names[pod(1)] == names[pod(2)] == frozenset(NAMES[:10])
    assert names[pod(7)] == frozenset(NAMES[:20])
    assert names[pod(1, "User:bob")] == frozenset(NAMES[20:30])
    assert names[pod(1, "User:carl")] == frozenset()
