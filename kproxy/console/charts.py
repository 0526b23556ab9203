"""Charts of an hour as SVG that the console makes: they need no JavaScript."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 600, 120
_COLUMNS = 120
"""The points of a line: each is the mean of half a minute."""


class Line(NamedTuple):
    """A line of a chart. `paths`: its stretches without a gap."""

    name: str
    paths: list[str]
    now: str
    most: str


class Chart(NamedTuple):
    """A chart. `top`: the value at its upper edge."""

    title: str
    lines: list[Line]
    top: str

    @property
    def said(self) -> str:
        """The chart in words, for who does not see it."""
        told = [f"{one.name}: now {one.now}, highest {one.most}" for one in self.lines]
        return f"{self.title}, the last hour. " + "; ".join(told)


def chart(
    title: str, lines: Sequence[tuple[str, Sequence[float]]], shown: Callable[[float], str]
) -> Chart | None:
    """Return a chart of lines of equal length, NaN where nothing is known; None: nothing is."""
    means = [(name, _means(values)) for name, values in lines]
    known = [value for _, values in means for value in values if math.isfinite(value)]
    if not known:
        return None
    top = max(known) or 1.0
    return Chart(title, [_line(name, values, top, shown) for name, values in means], shown(top))


def _means(values: Sequence[float]) -> list[float]:
    each = max(1, len(values) // _COLUMNS)
    found = []
    for start in range(0, len(values), each):
        some = [value for value in values[start : start + each] if math.isfinite(value)]
        found.append(sum(some) / len(some) if some else math.nan)
    return found


def _line(name: str, values: list[float], top: float, shown: Callable[[float], str]) -> Line:
    known = [value for value in values if math.isfinite(value)]
    step = WIDTH / max(1, len(values) - 1)
    paths: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if math.isfinite(value):
            y = HEIGHT - 1 - value / top * (HEIGHT - 2)
            paths[-1].append(f"{number * step:.1f},{y:.1f}")
        elif paths[-1]:
            paths.append([])
    # A point alone is a line too short to see.
    whole = [" ".join(one if len(one) > 1 else [*one, *one]) for one in paths if one]
    return Line(
        name, whole, shown(known[-1]) if known else "–", shown(max(known)) if known else "–"
    )
