"""Work in steps."""

from kproxy.loop.steps import AT_ONCE, EVERY, Work, in_order, once_in_order

NAMES = [f"user-{number * 7919 % 50_000}" for number in range(50_000)]


def test_names_are_sorted_each_once() -> None:
    work = Work(once_in_order(["b", "a", "b"]))
    assert work.begin()
    assert work.result == ["a", "b"]


def test_many_names_are_sorted_in_small_steps() -> None:
    for steps in (in_order(NAMES), once_in_order(NAMES + NAMES)):
        work, count = Work(steps), 1
        assert not work.begin()
        while not work.advance():
            count += 1
        assert work.result == sorted(NAMES)
        assert AT_ONCE + count >= len(NAMES) / (4 * EVERY) + len(NAMES) / EVERY
