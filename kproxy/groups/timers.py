"""Deadlines of one coordinator. Putting one off costs nothing: it is looked at when it is due."""

import heapq
import math
from collections.abc import Callable
from itertools import count

Due = Callable[[float], float | None]
"""Called with the time when it is due; gives the time to be called again, or None."""


class Timers:
    """Times are seconds of one monotonic clock."""

    def __init__(self, sooner: Callable[[], None] = lambda: None) -> None:
        """`sooner`: called when something is due before all else."""
        self._heap: list[tuple[float, int, Due]] = []
        self._numbers = count()
        self._sooner = sooner

    @property
    def next(self) -> float:
        """When to call `run_due`."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, when: float, due: Due) -> None:
        first = when < self.next
        heapq.heappush(self._heap, (when, next(self._numbers), due))
        if first:
            self._sooner()

    def run_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            _, _, due = heapq.heappop(self._heap)
            again = due(now)
            if again is not None:
                self.at(max(again, now + 0.001), due)
