"""The server's assignors: everything given out once, evenly, and with few moves."""

import random
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.groups.assigning.assignors import ASSIGNORS, MemberSubscription, PartitionSet, Target
from kproxy.loop.steps import at_once
from kproxy.virtual.types import QueueId

QUEUES = [QueueId(bytes([i] * 16)) for i in range(1, 6)]
NONE: PartitionSet = frozenset()

sizes = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 7), min_size=1)
members = st.dictionaries(
    st.sampled_from("abcdefgh"), st.frozensets(st.sampled_from(QUEUES)), min_size=1
)


def wishes(wanted: dict[str, frozenset[QueueId]], before: dict[str, PartitionSet] | None = None):
    before = before or {}
    return {m: MemberSubscription(queues, before.get(m, NONE), m) for m, queues in wanted.items()}


def assigned(name: str, wishes: dict[str, MemberSubscription], sizes: dict[QueueId, int]) -> Target:
    return at_once(ASSIGNORS[name](wishes, sizes))


@settings(max_examples=300, deadline=None)
@given(members, members, sizes, sizes, st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_goes_to_one_who_wants_it(first, second, counts, later, name) -> None:
    """Also after members, subscriptions and sizes have changed."""
    before = assigned(name, wishes(first), counts)
    for wanted, now, given_ in (
        (first, counts, before),
        (second, later, assigned(name, wishes(second, before), later)),
    ):
        held = [part for parts in given_.values() for part in parts]
        assert len(held) == len(set(held))
        there = {
            (q, i) for q, count in now.items() for i in range(count)
            if any(q in queues for queues in wanted.values())
        }  # fmt: skip
        assert set(held) == there
        assert all(q in wanted[m] for m, parts in given_.items() for q, _ in parts)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), sizes)
def test_uniform_is_even_and_moves_little(before, after, counts) -> None:
    everything = frozenset(counts)
    names = "abcdefgh"
    had = assigned("uniform", wishes(dict.fromkeys(names[:before], everything)), counts)
    has = assigned("uniform", wishes(dict.fromkeys(names[:after], everything), had), counts)
    loads = [len(parts) for parts in has.values()]
    assert max(loads) - min(loads) <= 1
    total = sum(loads)
    stayed = sum(len(has[m] & had.get(m, NONE)) for m in has)
    # Nobody gives up more than what the others must get.
    assert stayed >= sum(min(len(had.get(m, NONE)), total // after) for m in has)


@settings(max_examples=200, deadline=None)
@given(members, sizes)
def test_no_move_could_even_out_more(wanted, counts) -> None:
    has = assigned("uniform", wishes(wanted), counts)
    for member, parts in has.items():
        for queue, _ in parts:
            for other, queues in wanted.items():
                if queue in queues:
                    assert len(has[other]) + 1 >= len(parts), (member, other)


def test_range_goes_queue_by_queue_in_a_row() -> None:
    one, two = QUEUES[:2]
    both = frozenset((one, two))
    has = assigned(
        "range", wishes({"a": both, "b": both, "c": frozenset((one,))}), {one: 7, two: 3}
    )
    assert sorted(has["a"]) == [(one, 0), (one, 1), (one, 2), (two, 0), (two, 1)]
    assert sorted(has["b"]) == [(one, 3), (one, 4), (two, 2)]
    assert sorted(has["c"]) == [(one, 5), (one, 6)]


@settings(max_examples=200, deadline=None)
@given(members, sizes, st.sampled_from(sorted(ASSIGNORS)))
def test_nothing_moves_without_need(wanted, counts, name) -> None:
    has = assigned(name, wishes(wanted), counts)
    assert assigned(name, wishes(wanted, has), counts) == has


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), sizes)
def test_only_a_new_member_takes_partitions_of_what_all_read(count, counts) -> None:
    """Queues that not all read are levelled one by one: there an old member may take as well."""
    wanted = {f"m{number}": frozenset(counts) for number in range(count)}
    has = assigned("uniform", wishes(wanted), counts)
    more = {**wanted, "i": frozenset(counts)}
    then = assigned("uniform", wishes(more, has), counts)
    assert all(len(then[member]) <= len(parts) for member, parts in has.items())


def calls(
    name: str, wanted: dict[str, MemberSubscription], counts: dict[QueueId, int]
) -> tuple[int, Target]:
    """Return how many functions are called in making a target: its cost on any machine."""
    made = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        has = assigned(name, wanted, counts)
    finally:
        sys.setprofile(None)
    return made, has


def test_many_members_with_different_subscriptions() -> None:
    """Cost goes with partitions; it went with members times partitions."""
    queues = [QueueId(number.to_bytes(16, "big")) for number in range(10_000)]
    counts = dict.fromkeys(queues, 1)
    rng = random.Random(1)
    subscriptions = [frozenset(rng.sample(queues, 5000)) for _ in range(5)]
    wanted = {f"m{n}": subscriptions[n % 5] for n in range(500)}
    for name in ASSIGNORS:
        first, has = calls(name, wishes(wanted), counts)
        del has["m3"]
        left = {member: wanted[member] for member in has}
        again, then = calls(name, wishes(left, has), counts)
        assert max(first, again) < 30 * len(queues)
        assert {part for parts in then.values() for part in parts} == {
            (queue, 0) for queue in frozenset().union(*subscriptions)
        }
        if name == "uniform":
            loads = [len(parts) for parts in then.values()]
            assert max(loads) - min(loads) <= 1
            assert sum(len(has[m] - then[m]) for m in has) <= 25  # the queues of m3, and a few
