"""Deadlines: in order, put off, taken back, and a bounded number in one go."""

from kproxy.groups.timers import Timers


def test_they_come_in_order_and_may_come_again() -> None:
    timers, came = Timers(), []
    timers.at(2.0, lambda now: came.append("b"))  # type: ignore[func-returns-value]
    timers.at(1.0, lambda now: came.append("a") or (3.0 if now < 3 else None))  # type: ignore[func-returns-value]
    assert not timers.run_due(1.5)
    assert not timers.run_due(2.5)
    assert not timers.run_due(3.5)
    assert came == ["a", "b", "a"]
    assert len(timers) == 0


def test_cancelled_ones_take_no_room() -> None:
    timers, came = Timers(), []
    kept = [timers.at(5.0, came.append) for _ in range(10)]
    for _ in range(10_000):
        timers.at(1e9, came.append).cancel()
    assert len(timers) <= 250
    kept[0].cancel()
    kept[0].cancel()
    assert not timers.run_due(6.0)
    assert came == [6.0] * 9


def test_one_may_cancel_itself_and_others() -> None:
    timers, came = Timers(), []
    other = timers.at(2.0, came.append)

    def due(now: float) -> None:
        this.cancel()
        other.cancel()

    this = timers.at(1.0, due)
    assert not timers.run_due(3.0)
    assert (came, len(timers)) == ([], 0)


def test_thousands_at_once_are_called_in_pieces() -> None:
    timers, came = Timers(), []
    for _ in range(1000):
        timers.at(1.0, came.append)
    pieces = 0
    while timers.run_due(2.0):
        pieces += 1
    assert len(came) == 1000
    assert pieces >= 4
