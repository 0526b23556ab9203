"""Seeds of the simulations: some in each run, the rest by `-m long`, many in one parameter.

A run has 10 s of CPU for each simulation. A failing seed is named in a note of the exception.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def seeds(count: int, *, long: int = 0, each: int = 10) -> Any:
    """Parametrize `seeds` by ranges of `each`: below `count` always, below `long` by `-m long`."""
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
