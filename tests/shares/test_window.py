"""The memory of an owner about a share partition, where its log takes nothing."""

from math import inf
from typing import Any

from kproxy.shares import window
from kproxy.shares.record_states import ACQUIRED, DELAYED
from kproxy.shares.taking import Limits, Range, Stretch
from kproxy.shares.window import ACCEPT, RELEASE, Acquired, Window
from kproxy.virtual.commands.shares import Cause, Run
from kproxy.virtual.rows.shares import RecordState, state_byte

LIMITS = Limits(deliveries_max=2, window_max=100, records_max=100)
BATCH = 0, 0, 0, 100
ARCHIVED_0, ARCHIVED_2 = (state_byte(RecordState.ARCHIVED, count) for count in (0, 2))


def acquire(window: Window, *batches: tuple[int, int], member: str = "m") -> Acquired:
    """Acquire records of these batches, and the holes before and between them."""
    stretches: list[Stretch] = []
    at = window.next_available()
    for first, last in batches:
        if first > at:
            stretches.append((at, first - 1, None))
        stretches.append((first, last, BATCH))
        at = last + 1
    return window.acquire(member, stretches, LIMITS, 50.0)


def released(window: Window, member: str = "m") -> None:
    window.settle(window.release(member, 2), (), 0.0)


def test_archiving_holds_once_the_log_has_it() -> None:
    """FAULT: the start moved over it at once. If the log took nothing, nobody logged it again: the
    rows' window grew for ever, and the group's lag stayed."""
    window = Window(0, bytearray())
    taken = acquire(window, (5, 5), (9, 9))
    assert taken.runs == [Run(0, 5, ARCHIVED_0), Run(6, 3, ARCHIVED_0)]
    assert (window.start, window.next_available()) == (0, 10)
    window.take_back(taken.archived, 7.0)
    assert (window.start, window.next_available(), window.due) == (0, 10, 7.0)
    assert window.resume(7.0)
    assert window.next_available() == 0
    again = acquire(window, (5, 5), (9, 9))
    assert again.runs == taken.runs
    assert not again.ranges
    window.settle(again.archived, (), 8.0)
    assert window.start == 5
    assert not window.idle  # two records are held


def test_released_records_come_back_where_the_log_takes_nothing() -> None:
    window = Window(0, bytearray([state_byte(RecordState.AVAILABLE, 2)] * 3))
    taken = acquire(window, (0, 2))
    assert taken.runs == [Run(0, 3, ARCHIVED_2, Cause.DELIVERY_LIMIT)]
    window.take_back(taken.archived, 7.0)
    window.resume(7.0)
    assert acquire(window, (0, 2)).runs == taken.runs


def test_a_delivery_that_did_not_come_about_does_not_count() -> None:
    """FAULT: on a full disk each poll counted, and the record was given up without being given."""
    window = Window(0, bytearray())
    acquire(window, (0, 2))
    released(window)
    for _ in range(5):
        taken = acquire(window, (0, 2))
        assert taken.redelivered
        assert taken.ranges[0].deliveries == 2
        window.give_back(taken.ranges)
        assert window.held == 0
    assert window.counts() == {1: 3}


def test_records_taken_from_a_member_are_not_given_back() -> None:
    """FAULT: others lost what they held, and two had it at once."""
    window = Window(0, bytearray([state_byte(RecordState.AVAILABLE, 1)]))
    waits = acquire(window, (0, 0)).ranges
    assert waits == [Range(0, 0, 2)]
    limits = LIMITS._replace(deliveries_max=9)
    pending = window.expire(inf, 9)
    window.give_back(waits)  # the release is on its way
    assert window.next_available() == 1
    window.settle(pending, (), 60.0)
    taken = window.acquire("n", [(0, 0, BATCH)], limits, 100.0)
    assert taken.ranges == [Range(0, 0, 3)]
    window.give_back(waits)
    assert (window.held, window.next_available()) == (1, 1)
    window.check("n", 0, 0)
    said = window.acknowledge(0, 0, [RELEASE], 9, [])
    assert [run.byte for run in said.runs] == [state_byte(RecordState.AVAILABLE, 3)]


def test_a_hole_of_a_billion_is_archived_piece_by_piece() -> None:
    """FAULT: memory for each of its offsets, several times, and one command for all of them."""
    far = 1 << 30
    window = Window(5, bytearray())
    taken = acquire(window, (far, far))
    assert not taken.ranges
    assert taken.runs == [Run(5, 1 << 18, ARCHIVED_0)]
    again = acquire(window, (far, far))
    assert (again.runs, again.ranges) == ([], [])  # first the log is to have that
    window.settle(taken.archived, (), 0.0)
    assert window.start == 5 + (1 << 18)
    assert acquire(window, (far, far)).runs == [Run(5 + (1 << 18), 1 << 18, ARCHIVED_0)]


def test_a_hole_behind_a_full_window_waits() -> None:
    """FAULT: while one record was held the window grew by all that was aborted behind it."""
    window = Window(0, bytearray())
    assert acquire(window, (0, 99)).ranges == [Range(0, 99, 1)]
    taken = acquire(window, (5000, 5000), member="n")
    assert (taken.runs, taken.ranges, window.end) == ([], [], 100)
    window.settle(window.acknowledge(0, 49, [ACCEPT], 2, []), (), 0.0)
    taken = acquire(window, (5000, 5000), member="n")
    assert taken.runs == [Run(100, 4900, ARCHIVED_0)]
    assert taken.ranges == []  # it is full again, until the log has that
    window.settle(taken.archived, (), 0.0)
    window.settle(window.acknowledge(50, 99, [ACCEPT], 2, []), (), 0.0)
    assert acquire(window, (5000, 5000), member="n").ranges == [Range(5000, 5000, 1)]


def test_unseen_records_are_not_archived() -> None:
    """FAULT: all between two batches, and behind the last one to where a look ended, was taken for
    a hole, though the look had not seen a batch that lay across its end."""
    window = Window(0, bytearray())
    taken = window.acquire("m", [(0, 4, BATCH), (5, 7, None), (10, 12, BATCH)], LIMITS, 50.0)
    assert taken.archived.runs == [Run(5, 3, ARCHIVED_0)]
    assert window.next_available() == 8
    assert window.acquire("m", [(8, 9, BATCH)], LIMITS, 50.0).ranges == [Range(8, 9, 1)]


def test_delayed_records_that_lie_apart_come_back_some_at_a_time() -> None:
    most = window._RESUMED_MAX
    made = Window(0, bytearray())
    made._grow(4 * most)
    made._delayed = [(1.0, at, at) for at in range(0, 4 * most, 2)]
    made._states[::2] = bytes([DELAYED]) * (2 * most)
    assert made.resume(1.0)
    assert made.delayed_until == 1.0
    assert made.resume(1.0)
    assert made.delayed_until == inf


class Long(bytearray):
    """States of a window that is too long to be looked at as a whole."""

    def translate(self, *args: Any) -> Any:
        raise AssertionError("all of them at once")


def test_the_next_available_record_is_found_behind_many_that_are_done() -> None:
    """FAULT: each look for one went over all of a window that lanes had left very long."""
    done = state_byte(RecordState.ACKNOWLEDGED, 1)
    made = Window(0, bytearray([0]) + bytearray([done]) * 10_000 + bytearray([0, done]))
    made._states = Long(made._states)
    found = [made.next_available(offset) for offset in (0, 1, 5000, 10_001, 10_002, 10_003, 20_000)]
    assert found == [0, 10_001, 10_001, 10_001, 10_003, 10_003, 20_000]


class Counted(bytearray):
    """States that are not looked at one by one: there may be as many as lanes look ahead at."""

    def __iter__(self) -> Any:
        raise AssertionError("one by one")


def test_deliveries_are_counted_without_a_look_at_each_record() -> None:
    """FAULT: a description of a group with a lookahead of a million held the loop for 0.1 s."""
    states = [0, 1 << 3, 1 << 3 | ACQUIRED, 7 << 3 | DELAYED, 31 << 3, 2 << 3 | 2, 2 << 3 | 4]
    made = Window(0, bytearray())
    made._states = Counted(states)
    assert made.counts() == {1: 2, 7: 1, 31: 1}
