"""The deadlines of one coordinator.

To postpone a deadline costs nothing: the timer fires, and its callback returns the later time. A
cancelled timer drops its callback at once. The heap drops cancelled timers once they are half of
it. So a deleted group leaves nothing behind, however far away its deadlines were.
"""

import heapq
import math
from collections.abc import Callable, Hashable
from itertools import count

Due = Callable[[float], float | None]
"""A call at the time when it is due; it gives the time to be called again, or None."""
_PLACES_KEPT = 64  # a heap this small is not worth tidying
_AT_ONCE = 200


class Timer:
    """One deadline."""

    __slots__ = ("due",)

    def __init__(self, due: Due) -> None:
        self.due: Due | None = due


class Timers:
    """Times are seconds of one monotonic clock."""

    def __init__(self, sooner: Callable[[], None] = lambda: None) -> None:
        """Set up; call `sooner` when something is due before all else."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._dead = 0
        self._sooner = sooner

    def __len__(self) -> int:
        """Return the places taken, also by timers that were taken back."""
        return len(self._heap)

    @property
    def next(self) -> float:
        """The time to call `run_due`."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, when: float, due: Due) -> Timer:
        timer = Timer(due)
        self._push(when, timer)
        return timer

    def _push(self, when: float, timer: Timer) -> None:
        first = when < self.next
        heapq.heappush(self._heap, (when, next(self._numbers), timer))
        if first:
            self._sooner()

    def cancel(self, timer: Timer) -> None:
        """Take a timer back; one that is over stays so."""
        if timer.due is None:
            return
        timer.due = None
        self._dead += 1
        if self._dead > _PLACES_KEPT and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].due is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def run_due(self, now: float) -> bool:
        """Call some that are due; whether there may be more."""
        for _ in range(_AT_ONCE):
            if not self._heap or self._heap[0][0] > now:
                return False
            _, _, timer = heapq.heappop(self._heap)
            if timer.due is None:
                self._dead -= 1
                continue
            due, timer.due = timer.due, None
            again = due(now)
            if again is not None:
                timer.due = due
                self._push(max(again, now + 0.001), timer)
        return True


class Alarms:
    """The timers of one group by what they are for: a new one takes the place of the old."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._by_key: dict[Hashable, Timer] = {}

    def set(self, key: Hashable, when: float, due: Due) -> Timer:
        def over(now: float) -> float | None:
            again = due(now)
            if self._by_key.get(key) is not timer:
                return None  # it was taken back meanwhile
            if again is None:
                del self._by_key[key]
            return again

        self.cancel(key)
        timer = self._by_key[key] = self._timers.at(when, over)
        return timer

    def cancel(self, key: Hashable) -> None:
        timer = self._by_key.pop(key, None)
        if timer is not None:
            self._timers.cancel(timer)

    def end(self) -> None:
        """Take all of them back."""
        for key in list(self._by_key):
            self.cancel(key)
