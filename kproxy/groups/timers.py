"""Deadlines of one coordinator. Putting one off costs nothing: it is looked at when it is due."""

import heapq
from collections.abc import Callable
from itertools import count

Due = Callable[[float], float | None]
"""Called with the time when it is due; gives the time to be called again, or None."""

_DEAD_MIN = 100
_AT_ONCE = 200


class Timer:
    """One deadline. What is cancelled holds nothing in memory but its place."""

    __slots__ = ("_timers", "due")

    def __init__(self, timers: "Timers", due: Due) -> None:
        self._timers = timers
        self.due: Due | None = due

    def cancel(self) -> None:
        if self.due is not None:
            self.due = None
            self._timers.was_cancelled()


class Timers:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._dead = 0

    def __len__(self) -> int:
        """Places in memory, of cancelled ones too."""
        return len(self._heap)

    def at(self, when: float, due: Due) -> Timer:
        timer = Timer(self, due)
        self._put(when, timer)
        return timer

    def _put(self, when: float, timer: Timer) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), timer))

    def was_cancelled(self) -> None:
        """Drop the cancelled ones once they are most of all: each is dropped once."""
        self._dead += 1
        if self._dead > max(_DEAD_MIN, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].due is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def run_due(self, now: float) -> bool:
        """Call some that are due; whether there may be more."""
        for _ in range(_AT_ONCE):
            if not self._heap or self._heap[0][0] > now:
                return False
            _, _, timer = heapq.heappop(self._heap)
            due = timer.due
            if due is None:
                self._dead -= 1
                continue
            timer.due = None  # cancelling it now is nothing to count
            again = due(now)
            if again is not None:
                timer.due = due
                self._put(max(again, now + 0.001), timer)
        return True
