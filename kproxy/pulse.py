"""One pulse for all that is done now and then.

A process that wakes up is paid for each time: caches are cold, the kernel is asked. Work of many
shards that is due every second is therefore due in the same turn of the loop.
"""

import anyio


async def pulse(period_s: float) -> None:
    """Sleep until the loop's clock is at a multiple of `period_s`, at least half of it from now.

    Whoever sleeps for the same period, or a multiple of it, wakes in the same turn.
    """
    now = anyio.current_time()
    await anyio.sleep_until((now / period_s + 1.5) // 1 * period_s)
