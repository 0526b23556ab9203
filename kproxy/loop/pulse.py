"""One timer for all periodic work.

Each wake-up of a process costs: caches are cold, and the kernel is asked. Periodic work of many
shards is therefore due in the same turn of the loop.
"""

import asyncio
from weakref import WeakKeyDictionary

import anyio

_beats: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, anyio.Event]] = WeakKeyDictionary()


async def pulse(period_s: float) -> None:
    """Sleep until the loop's clock is at a multiple of `period_s`, at least half of it from now.

    All sleepers of the same period wake in the same turn.
    """
    loop = asyncio.get_running_loop()
    enough = loop.time() + period_s / 2
    coming = _beats.setdefault(loop, {})
    while True:
        beat = coming.get(period_s)
        if beat is None:
            beat = coming[period_s] = anyio.Event()
            at = (loop.time() // period_s + 1) * period_s
            loop.call_at(at, _beat, coming, period_s)
        await beat.wait()
        if loop.time() >= enough:
            return


def _beat(coming: dict[float, anyio.Event], period_s: float) -> None:
    coming.pop(period_s).set()
