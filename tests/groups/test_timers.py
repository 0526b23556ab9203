"""Deadlines: in order, put off, taken back, and a bounded number in one go."""

import gc
import weakref
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from kproxy.groups.upkeep.timers import Alarms, Timers

FAR = 2.0**31 / 1000


class Group:
    """The object that a timer would keep in memory."""

    def __init__(self, timers: Timers) -> None:
        self.alarms = Alarms(timers)

    def hold(self) -> Callable[[float], None]:
        return lambda now: self.alarms.end()


def test_groups_that_are_gone_leave_nothing_behind() -> None:
    timers = Timers()
    alive = []
    for _ in range(1000):
        group = Group(timers)
        for _ in range(5):
            group.alarms.set("round", FAR, group.hold())
        group.alarms.set("member", FAR, group.hold())
        group.alarms.end()
        alive.append(weakref.ref(group))
    del group
    gc.collect()
    assert not [one for one in alive if one() is not None]
    assert len(timers) < 200


def test_expired_timer_does_not_count_as_taken_back() -> None:
    timers = Timers()
    called = []
    timer = timers.at(1.0, called.append)  # type: ignore[arg-type]
    timers.run_due(2.0)
    timers.cancel(timer)
    timers.at(3.0, called.append)  # type: ignore[arg-type]
    timers.run_due(4.0)
    assert called == [2.0, 4.0]
    assert len(timers) == 0


def test_waiter_is_told_of_due_timers_before_all_else() -> None:
    told = []
    timers = Timers(lambda: told.append(timers.next))
    for when in (5.0, 7.0, 3.0, 4.0):
        timers.at(when, lambda now: None)
    assert told == [5.0, 3.0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=40))
def test_last_timer_of_each_key_holds(steps: list[tuple[str, int, bool]]) -> None:
    timers = Timers()
    alarms = Alarms(timers)
    wanted: dict[str, int] = {}
    rung: list[tuple[str, int]] = []
    for key, when, taken_back in steps:
        if taken_back:
            alarms.cancel(key)
            wanted.pop(key, None)
        else:
            alarms.set(key, when, lambda now, it=(key, when): rung.append(it))  # type: ignore[misc]
            wanted[key] = when
    for now in range(10):
        timers.run_due(now)
    assert sorted(rung) == sorted(wanted.items())
    assert len(timers) == 0
    alarms.end()


def test_they_come_in_order_and_may_come_again() -> None:
    timers, came = Timers(), []
    timers.at(2.0, lambda now: came.append("b"))
    timers.at(1.0, lambda now: came.append("a") or (3.0 if now < 3 else None))  # type: ignore[func-returns-value]
    assert not timers.run_due(1.5)
    assert not timers.run_due(2.5)
    assert not timers.run_due(3.5)
    assert came == ["a", "b", "a"]
    assert len(timers) == 0


def test_cancelled_ones_take_no_room() -> None:
    timers, came = Timers(), []
    kept = [timers.at(5.0, came.append) for _ in range(10)]  # type: ignore[arg-type]
    for _ in range(10_000):
        timers.cancel(timers.at(1e9, came.append))  # type: ignore[arg-type]
    assert len(timers) <= 250
    timers.cancel(kept[0])
    timers.cancel(kept[0])
    assert not timers.run_due(6.0)
    assert came == [6.0] * 9


def test_one_may_cancel_itself_and_others() -> None:
    timers, came = Timers(), []
    alarms = Alarms(timers)
    alarms.set("other", 2.0, came.append)  # type: ignore[arg-type]

    def due(now: float) -> float:
        alarms.cancel("this")
        alarms.cancel("other")
        return now + 1

    alarms.set("this", 1.0, due)
    assert not timers.run_due(3.0)
    assert (came, len(timers)) == ([], 0)


def test_thousands_at_once_are_called_in_pieces() -> None:
    timers, came = Timers(), []
    for _ in range(1000):
        timers.at(1.0, came.append)  # type: ignore[arg-type]
    pieces = 0
    while timers.run_due(2.0):
        pieces += 1
    assert len(came) == 1000
    assert pieces >= 4
