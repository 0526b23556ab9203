"""The time for which a piece of work holds the loop.

Held is what the loop's thread computed between two of its turns: other load does not count.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from tests.fakes import as_served

HELD_S = 0.15


def slowness() -> float:
    """Return how many times as long as on an idle machine of ours a little work takes here and now.

    Other load on the two cores slows each instruction down, CPU time and all.
    """
    with as_served():
        began, work = time.thread_time(), {}
        for number in range(100_000):
            work[number % 1000] = (number, str(number))
        return max(1.0, (time.thread_time() - began) / 0.015)


async def held_by(work: Awaitable[Any]) -> tuple[Any, float]:
    """Return the result, and the longest that the loop was held meanwhile."""
    longest, ended = 0.0, False

    async def turn() -> None:
        nonlocal longest
        before = time.thread_time()
        while not ended:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    probe = asyncio.get_running_loop().create_task(turn())
    await asyncio.sleep(0)
    try:
        with as_served():
            result = await work
    finally:
        await asyncio.sleep(0)
        ended = True
        await probe
    return result, longest
