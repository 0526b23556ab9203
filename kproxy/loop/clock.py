"""The clocks that kproxy reads. Each is an argument, so that tests need not wait.

Sleeps on the event loop use the loop's own clock, which a test replaces with the loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks: `now_ms` since 1970, which may jump, and `monotonic` seconds, which never do."""

    now_ms: Callable[[], int] = _wall_clock_ms
    monotonic: Callable[[], float] = time.monotonic


SYSTEM_CLOCK = Clock()
