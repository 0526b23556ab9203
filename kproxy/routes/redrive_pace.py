"""How fast a redrive passes records on, out of one partition, and whether it is paused."""

import anyio

from kproxy.metadata.queue_settings import settings_of
from kproxy.virtual.rows.queues import Queue

ANY_NUMBER = 1 << 62


class RedrivePace:
    """The pace of one passage: no owner knows how many another one passed on a moment ago."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def paused(self, queue: Queue | None) -> bool:
        return queue is not None and settings_of(queue.configs).redrive_paused

    def at_once(self, queue: Queue | None) -> int:
        """Return how many records the next cut may have."""
        rate = _rate(queue)
        return ANY_NUMBER if rate is None else max(1, int(rate))

    async def keep(self, queue: Queue | None, records: int) -> None:
        """Wait until more may be passed on."""
        rate = _rate(queue)
        if rate is not None:
            now = anyio.current_time()
            self._free_s = max(now, self._free_s) + records / rate
            await anyio.sleep(self._free_s - now)


def _rate(queue: Queue | None) -> float | None:
    """Return the records in a second that each partition may pass on; None: any number."""
    if queue is None or (rate := settings_of(queue.configs).redrive_rate) < 0:
        return None
    return rate / max(1, queue.partitions)
