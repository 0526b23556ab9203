"""Whether the event loop turns, and how late: looked at twice a second, read by another thread."""

import asyncio
from collections.abc import Callable
from time import monotonic

from kproxy.common.counters import Histogram

PERIOD_S = 0.5
STUCK_S = 5.0
"""A loop that did not turn for so long is stuck."""


def _nothing() -> None:
    pass


class LoopWatch:
    """A watch of the loop that `start` is called on, until `stop`."""

    def __init__(self, lag: Histogram, clock: Callable[[], float] = monotonic) -> None:
        self.lag = lag
        self._clock = clock
        self._turned_at = clock()
        self._due: asyncio.TimerHandle | None = None
        self.on_turn: Callable[[], None] = _nothing
        """A callback at each look."""

    def start(self) -> None:
        self._again(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turned_at = self._clock()
        self.on_turn()
        at = loop.time() + PERIOD_S
        self._due = loop.call_at(at, self._turn, loop, at)

    def _turn(self, loop: asyncio.AbstractEventLoop, due_at: float) -> None:
        self.lag.observe(max(0.0, loop.time() - due_at))
        self._again(loop)

    @property
    def turned_s_ago(self) -> float:
        """Seconds since the loop turned, as far as it is known; from any thread."""
        return self._clock() - self._turned_at

    @property
    def stuck(self) -> bool:
        return self.turned_s_ago > STUCK_S
