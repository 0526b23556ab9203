"""The counts of quotas, whose is whose, and their memory. Time is an argument."""

import random
from itertools import product
from typing import Any

import pytest

from kproxy.common.counters import Counters
from kproxy.metadata.catalogue import StateLookup
from kproxy.security import quotas
from kproxy.security.cache import SecurityCache
from kproxy.security.meters import Bucket, Rate
from kproxy.security.peer import Peer
from kproxy.security.quotas import CONNECTED, CONSUMED, MUTATED, PRODUCED, WORKED, Quotas
from kproxy.virtual.rows.access import quota_name
from tests.fakes import MemoryShard
from tests.running.together import together

ALICE, BOB = Peer("User:alice", "10.0.0.1"), Peer("User:bob", "10.0.0.2")
U, C, I = "user", "client-id", "ip"  # noqa: E741


class Limited:
    """Quotas with a clock that is moved."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.counters = Counters()
        self.security = SecurityCache(StateLookup(MemoryShard().state))
        self.quotas = Quotas(self.security, lambda: self.now, self.counters)

    def set(
        self, limit: float | None, *entity: tuple[str, str | None], key: str = PRODUCED
    ) -> None:
        """Set it as the cache does when a row is announced."""
        name = quota_name(entity, key)
        value = None if limit is None else {"value": limit}
        self.security._take(name, value)
        for told in self.security.on_change:
            told(name, value)


# -- meters


def test_ten_seconds_worth_at_once() -> None:
    rate = Rate(100, 50.0)
    assert rate.record(1000, 50.0) == 0
    assert rate.record(1, 50.0) == pytest.approx(0.01)
    assert rate.record(0, 55.5) == 0  # the window goes on with time, up to 11 samples
    assert rate.record(0, 60.99) == 0


def test_old_samples_count_no_more() -> None:
    rate = Rate(100, 0.0)
    assert rate.record(5000, 0.0) == pytest.approx(40)
    assert rate.record(0, 10.9) > 30
    assert rate.record(0, 11.0) == 0  # eleven seconds after its last event
    assert rate.total(11.0) == 0


def test_obedient_client_has_its_rate_on_average() -> None:
    rate, now, total = Rate(1000, 0.0), 0.0, 0
    choose = random.Random(1)
    while now < 600:
        amount = choose.choice((10, 500, 3000, 20_000))
        total += amount
        now += rate.record(amount, now) + 0.01
        assert len(rate._samples) <= 12
    assert 0.8 * 600 * 1000 < total < 1.2 * 600 * 1000 + 10_000


def test_amount_taken_back_does_not_count() -> None:
    rate = Rate(10, 0.0)
    rate.record(50, 0.0)
    assert rate.record(100, 1.0) == pytest.approx(5)
    rate.take_back(100)
    assert rate.record(50, 1.5) == 0


def test_a_bucket() -> None:
    bucket = Bucket(2, 0.0)
    assert bucket.record(22, 0.0) == 0
    assert bucket.wait(0.0) == 0
    assert bucket.record(10, 0.0) == 5
    assert bucket.wait(4.0) == 1
    assert bucket.wait(5.0) == 0
    assert not bucket.empty(5.0)
    assert bucket.empty(100.0)
    assert bucket.record(22, 100.0) == 0  # no more than eleven seconds' worth was saved


# -- whose rate it is


LEVELS = (
    ((U, "alice"), (C, "c")),
    ((U, "alice"), (C, None)),
    ((U, "alice"),),
    ((U, None), (C, "c")),
    ((U, None), (C, None)),
    ((U, None),),
    ((C, "c"),),
    ((C, None),),
)
"""The levels as Kafka documents them, the most specific first."""


@together("mask", range(256))
def test_the_most_specific_rate_holds(mask: int) -> None:
    here = Limited()
    chosen = [number for number in range(8) if mask >> number & 1]
    for number in reversed(chosen):
        here.set(1000 + number, *LEVELS[number])
    meter = here.quotas._of(PRODUCED, ALICE, "c")
    assert here.quotas.active == bool(chosen)
    assert (meter.limit if meter else None) == (1000 + chosen[0] if chosen else None)
    assert here.quotas._of(CONSUMED, ALICE, "c") is None  # each is on its own
    nameless = here.quotas._of(PRODUCED, ALICE, None)
    of_users = [number for number in chosen if number in (2, 5)]
    assert (nameless.limit if nameless else None) == (1000 + of_users[0] if of_users else None)


@pytest.mark.parametrize(("entity", "together"), [
    (((U, "alice"),), [{"ac", "ad"}]),
    (((U, None),), [{"ac", "ad"}, {"bc", "bd"}]),
    (((C, "c"),), [{"ac", "bc"}]),
    (((C, None),), [{"ac", "bc"}, {"ad", "bd"}]),
    (((U, None), (C, None)), [{"ac"}, {"ad"}, {"bc"}, {"bd"}]),
    (((U, "alice"), (C, None)), [{"ac"}, {"ad"}]),
    (((U, None), (C, "c")), [{"ac"}, {"bc"}]),
])  # fmt: skip
def test_clients_that_share_a_rate(entity: Any, together: list[set[str]]) -> None:
    here = Limited()
    here.set(5, *entity)
    found: dict[int, set[str]] = {}
    for peer, client_id in product((ALICE, BOB), "cd"):
        meter = here.quotas._of(PRODUCED, peer, client_id)
        if meter is not None:
            found.setdefault(id(meter), set()).add(peer.principal[5] + client_id)
    assert sorted(found.values(), key=sorted) == sorted(together, key=sorted)


def test_a_rate_that_changes_keeps_what_was_counted() -> None:
    here = Limited()
    here.set(100, (U, "alice"))
    assert here.quotas.produced(ALICE, "c", 1000) == 0
    here.set(50, (U, "alice"))
    assert here.quotas.produced(ALICE, "d", 0) == pytest.approx(10)
    here.set(None, (U, "alice"))
    assert not here.quotas.active
    assert here.quotas.produced(ALICE, "c", 10**9) == 0
    assert here.counters.throttled == {PRODUCED: 1}


def test_rates_that_are_there_at_the_start() -> None:
    here = Limited()
    here.set(100, (U, "alice"), (C, None))
    here.set(7, (I, None), key=CONNECTED)
    again = Quotas(here.security, lambda: 0.0, Counters())
    assert again.active
    assert again.limits_connections
    assert again.produced(ALICE, "c", 2000) == 10


# -- what clients do


def test_excess_is_not_given() -> None:
    here = Limited()
    here.set(100, (U, "alice"), key=CONSUMED)
    assert here.quotas.consumes_at_most(ALICE, "c") == 1000
    assert here.quotas.consumes_at_most(BOB, "c") is None
    assert here.quotas.consumed(ALICE, "c", 1000) == (0.0, True)
    wait_s, given = here.quotas.consumed(ALICE, "c", 500)
    assert (wait_s, given) == (pytest.approx(5), False)
    here.now += 5
    assert not here.quotas.consumed(ALICE, "c", 500)[1]
    here.now += 6  # the first sample counts no more
    assert here.quotas.consumed(ALICE, "c", 500) == (0.0, True)


def test_a_batch_larger_than_a_window_is_given_to_who_had_nothing() -> None:
    here = Limited()
    here.set(1, (U, "alice"), key=CONSUMED)
    assert here.quotas.consumed(ALICE, "c", 100) == (90.0, True)
    here.now += 5
    assert not here.quotas.consumed(ALICE, "c", 100)[1]
    here.now += 6
    assert here.quotas.consumed(ALICE, "c", 100)[1]


def test_time_is_limited_by_percent_and_waits_are_short() -> None:
    here = Limited()
    here.set(10, (U, "alice"), key=WORKED)
    assert here.quotas.worked(ALICE, "c", 1.0) == 0
    assert here.quotas.worked(ALICE, "c", 0.01) == pytest.approx(0.1)
    assert here.quotas.worked(ALICE, "c", 60.0) == 1


def test_changes_of_queues_are_refused_or_only_slowed_down() -> None:
    here = Limited()
    here.set(2, (U, "alice"), key=MUTATED)
    strict = here.quotas.mutations(ALICE, "c")
    assert strict.take(30)  # the limit may be passed once
    assert not strict.take(1)
    assert strict.wait_s == pytest.approx(4)
    lax = here.quotas.mutations(ALICE, "c", strict=False)
    assert lax.take(2)
    assert lax.wait_s == pytest.approx(5)
    here.now += 5
    assert here.quotas.mutations(ALICE, "c").take(1)
    assert here.quotas.mutations(BOB, "c").take(10**6)
    assert here.counters.throttled == {MUTATED: 2}


def test_connections_from_an_address() -> None:
    here = Limited()
    here.set(1, (I, None), key=CONNECTED)
    here.set(2, (I, "0:0:0:0:0:0:0:1"), key=CONNECTED)
    assert here.quotas.limits_connections
    assert not here.quotas.active
    for ip, most in (("10.0.0.1", 10), ("10.0.0.2", 10), ("::1", 20)):
        assert [here.quotas.connected(ip) for _ in range(most)] == [0] * most
        assert here.quotas.connected(ip) > 0
        assert here.quotas.connected(ip) <= 1
    here.now += 11
    assert here.quotas.connected("10.0.0.1") == 0
    here.set(None, (I, None), key=CONNECTED)
    assert [here.quotas.connected("10.0.0.1") for _ in range(99)] == [0] * 99


# -- memory


def test_meters_that_nobody_uses_are_dropped() -> None:
    here = Limited()
    here.set(100, (C, None))
    here.quotas.produced(ALICE, "old", 1)
    here.now += 3000
    here.quotas.produced(ALICE, "new", 1)
    here.quotas.tidy()
    assert len(here.quotas) == 2
    here.now += 1000
    here.quotas.tidy()
    assert len(here.quotas) == 1


def test_client_ids_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Early clients keep their counts; later ones share a user's meter.

    FAULT: all later ones shared one, honest users with a client of endless client ids.
    """
    monkeypatch.setattr(quotas, "METERS_MAX", 50)
    monkeypatch.setattr(quotas, "_FOUND_MAX", 70)
    here = Limited()
    here.set(100, (C, None))
    here.quotas.produced(ALICE, "first", 1000)
    for number in range(1000):
        here.quotas.produced(ALICE, f"c{number}", 10)
        assert len(here.quotas) <= 51
        assert len(here.quotas._found) <= 70
    assert here.quotas.produced(ALICE, "first", 100) > 0
    assert here.quotas.produced(ALICE, "another", 1) > 0  # hers is full
    assert here.quotas.produced(BOB, "another", 1000) == 0
    assert here.quotas.produced(BOB, "a third", 1) > 0
    here.now += 12
    assert here.quotas.produced(BOB, "one more", 1) == 0
    assert len(here.quotas) < 5


def test_users_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "METERS_MAX", 50)
    monkeypatch.setattr(quotas, "_SHARED_MAX", 20)
    here = Limited()
    here.set(100, (U, None))
    for number in range(1000):
        here.quotas.produced(Peer(f"User:u{number}"), "c", 10)
        assert len(here.quotas) <= 71
    assert here.quotas.produced(BOB, "c", 1) > 0  # the common one is full
    assert here.quotas.produced(Peer("User:u60"), "c", 900) == 0


def test_room_is_sought_among_some_meters_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: among all 50,000 in one turn of the loop. The ones looked at longest ago are first."""
    monkeypatch.setattr(quotas, "METERS_MAX", 50)
    monkeypatch.setattr(quotas, "_LOOKED_AT", 10)
    here, looks = Limited(), list[float]()
    here.set(100, (C, None))
    for number in range(50):
        here.quotas.produced(ALICE, f"c{number}", 10)
    empty = Rate.empty

    def looked(meter: Rate, now: float) -> bool:
        looks.append(now)
        return empty(meter, now)

    monkeypatch.setattr(Rate, "empty", looked)
    for number in range(100):
        here.quotas.produced(ALICE, f"d{number}", 10)
    assert len(looks) == 10
    here.now += 5
    here.quotas.produced(ALICE, "c45", 10)
    here.quotas.produced(ALICE, "e", 10)
    assert len(looks) == 20
    here.now += 6  # all but two say nothing any more
    for left in (41, 31, 22, 12, 3, 2):
        here.quotas._make_room()
        assert len(here.quotas) == left
        here.now += 0.1


def test_very_many_meters_that_nobody_used_are_dropped_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: all at once."""
    monkeypatch.setattr(quotas, "_LOOKED_AT", 10)
    here = Limited()
    here.set(100, (C, None))
    for number in range(25):
        here.quotas.produced(ALICE, f"c{number}", 1)
    here.now += 4000
    here.quotas.produced(ALICE, "c0", 1)
    for left in (16, 6, 1, 1):
        here.quotas.tidy()
        assert len(here.quotas) == left
    assert here.quotas.produced(ALICE, "c0", 1000) > 0


def test_long_client_ids_are_one() -> None:
    here = Limited()
    here.set(100, (C, None))
    for number in range(100):
        here.quotas.produced(ALICE, f"{number}" + "x" * 256, 10)
    assert len(here.quotas) == 1
    assert max(len(who[2]) for who in here.quotas._found) < 10


def test_rows_of_quotas_that_no_kproxy_wrote() -> None:
    here = Limited()
    for value in (0, -1, "x", None, float("nan"), float("inf")):
        with pytest.raises((ValueError, TypeError)):
            here.security._take(quota_name([(U, "a")], PRODUCED), {"value": value})
    with pytest.raises(ValueError, match="nobody"):
        here.security._take(quota_name([], PRODUCED), {"value": 1})
    assert not here.security.quotas
