"""The assignor of share groups: each partition has members, each member a fair part, few moves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.groups.assigning.assignors import MemberSubscription, Target
from kproxy.groups.assigning.simple_assignor import simple
from kproxy.loop.steps import at_once
from kproxy.virtual.types import QueueId
from tests.groups.test_assignors import NONE, QUEUES, members, sizes, wishes

A, B, C = QUEUES[:3]


def assigned(wished: dict[str, MemberSubscription], counts: dict[QueueId, int]) -> Target:
    return at_once(simple(wished, counts))


def lengths(target: Target) -> list[int]:
    return [len(target[member]) for member in sorted(target)]


def same(names: str, *queues: QueueId) -> dict[str, frozenset[QueueId]]:
    return dict.fromkeys(names, frozenset(queues))


def test_as_many_as_kafka_gives() -> None:
    """Sizes as Kafka 4.3.1 has them: of a queue with so many partitions, for so many members."""
    for partitions, count, expected in (
        (1, 2, [1, 1]), (1, 3, [1, 1, 1]), (3, 2, [2, 1]), (2, 4, [1, 1, 1, 1]), (5, 2, [3, 2]),
        (3, 3, [1, 1, 1]), (2, 3, [2, 1, 1]),
    ):  # fmt: skip
        target = assigned(wishes(same("abcd"[:count], A)), {A: partitions})
        assert sorted(lengths(target), reverse=True) == expected
        assert frozenset().union(*target.values()) == {(A, i) for i in range(partitions)}


def test_more_members_than_partitions_share_them_evenly() -> None:
    target = assigned(wishes(same("abcd", A)), {A: 2})
    holders = [sum((A, index) in parts for parts in target.values()) for index in range(2)]
    assert (holders, lengths(target)) == ([2, 2], [1, 1, 1, 1])


def test_new_member_takes_from_the_fullest_and_a_leaving_one_gives_to_others() -> None:
    one = assigned(wishes(same("a", A)), {A: 3})
    two = assigned(wishes(same("ab", A), one), {A: 3})
    assert (lengths(two), len(two["a"] & one["a"])) == ([2, 1], 2)
    three = assigned(wishes(same("abc", A), two), {A: 3})
    assert (lengths(three), three["b"]) == ([1, 1, 1], two["b"])
    left = assigned(wishes(same("bc", A), three), {A: 3})
    assert lengths(left) == [2, 1]
    assert left["b"] >= three["b"]
    assert left["c"] >= three["c"]


def test_each_queue_is_assigned_alone_where_subscriptions_differ() -> None:
    wanted = {"x": frozenset({A}), "y": frozenset({A, B}), "z": frozenset({B})}
    target = assigned(wishes(wanted), {A: 3, B: 2})
    assert lengths(target) == [2, 2, 1]
    # FAULT: queues of one partition went to one of their readers alone.
    assert lengths(assigned(wishes(wanted), {A: 1, B: 1})) == [1, 2, 1]


def test_nobody_and_nothing() -> None:
    assert assigned({}, {}) == {}
    assert assigned(wishes(same("ab")), {}) == {"a": NONE, "b": NONE}
    assert assigned(wishes(same("ab", A)), {A: 0}) == {"a": NONE, "b": NONE}


@settings(max_examples=300, deadline=None)
@given(members, members, sizes, sizes)
def test_all_is_given_to_who_wants_it(first, second, counts, later) -> None:
    """Also after members, subscriptions and sizes have changed."""
    before = assigned(wishes(first), counts)
    for wanted, now, target in (
        (first, counts, before),
        (second, later, assigned(wishes(second, before), later)),
    ):
        assert target.keys() == wanted.keys()
        assert all(q in wanted[m] for m, parts in target.items() for q, _ in parts)
        there = {
            (q, i) for q, count in now.items() for i in range(count)
            if any(q in queues for queues in wanted.values())
        }  # fmt: skip
        assert frozenset().union(*target.values()) == there


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), sizes)
def test_it_is_even_and_moves_nothing_without_need(before, after, counts) -> None:
    names, everything = "abcdefgh", frozenset(counts)
    had = assigned(wishes(dict.fromkeys(names[:before], everything)), counts)
    has = assigned(wishes(dict.fromkeys(names[:after], everything), had), counts)
    total = sum(counts.values())
    fresh = assigned(wishes(dict.fromkeys(names[:after], everything)), counts)
    loads = lengths(fresh)
    assert max(loads) - min(loads) <= 1
    sharing = -(-after // total) if total else 0
    assert sum(loads) == sharing * total
    again = assigned(wishes(dict.fromkeys(names[:after], everything), fresh), counts)
    assert again == fresh
    if total >= max(before, after):  # nothing is shared: who has at most its part keeps it
        fair = total // after
        assert all(len(has[m] & had[m]) >= min(len(had[m]), fair) for m in has if m in had)
