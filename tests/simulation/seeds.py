"""The seeds of the simulations: some in each run, the rest by `-m long`, many in one parameter.

A run has 5 s of CPU for each simulation. A failing seed is named in a note of the exception.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest


def seeds(count: int, *, long: int = 0, each: int = 10) -> Any:
    """Give a test ranges of `each` seeds: below `count` always, below `long` by `-m long`."""
    ranges = [
        pytest.param(
            range(first, min(first + each, end)), id=f"from {first}", marks=marks
        )
        for begin, end, marks in ((0, count, ()), (count, long, pytest.mark.long))
        for first in range(begin, end, each)
    ]  # fmt: skip
    return pytest.mark.parametrize("seeds", ranges)


@contextmanager
def named(seed: int) -> Iterator[None]:
    """Name the seed in an exception that leaves the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def sums(run: Callable[[int], Mapping[str, int]], seeds: Iterable[int]) -> Counter[str]:
    """Run seeds, and return the sums of their counts."""
    total: Counter[str] = Counter()
    for seed in seeds:
        with named(seed):
            total.update(run(seed))
    return total


def see(run: Callable[[int], object], seeds: Iterable[int], *also: type[Exception]) -> None:
    """Run seeds until a planted mistake shows, by an assertion that fails or by `also`."""
    found: list[BaseException] = []
    for seed in seeds:
        try:
            run(seed)
        except* (AssertionError, *also) as group:
            found.append(group)
        if found:
            return
    pytest.fail("nothing is seen")


SEEN_AT = {
    "a_commit_of_any_epoch_is_taken": 6,
    "a_group_goes_on_though_its_log_failed": 6,
    "a_group_is_changed_whatever_it_is_by_now": 4,
    "a_late_classic_member_is_waited_for": 12,
    "a_local_copy_that_is_not_held_against_the_log": 8,
    "a_marker_ends_whatever_is_open": 4,
    "a_plain_commit_supersedes_nothing": 9,
    "a_static_member_comes_back_to_nothing": 4,
    "anybody_may_acknowledge": 40,
    "a_publisher_that_does_not_catch_up_behind_its_fence": 30,
    "an_end_ends_whatever_is_open": 27,
    "an_end_taken_while_none_was_open_ends_any": 27,
    "locks_never_run_out": 12,
    "the_last_stable_offset_forgets_others": 4,
}
"""The seeds at which mistakes were seen that few seeds show: those from there on come first."""


def tried(mistake: str, count: int) -> Iterator[int]:
    """Yield the seeds below `count` in the order in which a mistake is looked for."""
    first = SEEN_AT.get(mistake, 0)
    yield from range(first, count)
    yield from range(first)
