"""Deadlines of one coordinator. Putting one off costs nothing: it is looked at when it is due."""

import heapq
from collections.abc import Callable
from itertools import count

Due = Callable[[float], float | None]
"""Called with the time when it is due; gives the time to be called again, or None."""


class Timers:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Due]] = []
        self._numbers = count()

    def at(self, when: float, due: Due) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), due))

    def run_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            _, _, due = heapq.heappop(self._heap)
            again = due(now)
            if again is not None:
                self.at(max(again, now + 0.001), due)
