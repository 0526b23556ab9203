"""The pace of a redrive out of one partition: its rate, and whether it is paused."""

import anyio

from kproxy.metadata.queue_settings import settings_of
from kproxy.virtual.rows.queues import Queue

ANY_NUMBER = 1 << 62
_LATE_S = 1.0
"""The time that it may be late by and still catch up."""


class RedrivePace:
    """The pace of one redrive out of one partition. Another route has none (`Unpaced`).

    No owner knows how many records another one passed on a moment ago.
    """

    def __init__(self) -> None:
        self._owed, self._since_s = 0, 0.0
        """Records that were passed on, and from when they are counted."""

    def paused(self, queue: Queue | None) -> bool:
        return queue is not None and settings_of(queue.configs).redrive_paused

    def at_once(self, queue: Queue | None) -> int:
        """Return how many records the next cut may have: those of a second, or one."""
        every_s = _every_s(queue)
        return max(1, int(1 / every_s)) if every_s else ANY_NUMBER

    def take(self, queue: Queue | None, records: int) -> None:
        """Note that so many were passed on."""
        now_s, until_s = anyio.current_time(), self._until_s(queue)
        if until_s <= now_s:
            self._owed, self._since_s = 0, until_s if now_s - until_s < _LATE_S else now_s
        self._owed += records

    def left_s(self, queue: Queue | None) -> float:
        """Return the seconds until more may be passed on, by the rate as it is now."""
        return self._until_s(queue) - anyio.current_time()

    def _until_s(self, queue: Queue | None) -> float:
        return self._since_s + self._owed * _every_s(queue)


class Unpaced(RedrivePace):
    """The pace of a route that is no redrive: none."""

    def paused(self, queue: Queue | None) -> bool:
        return False

    def at_once(self, queue: Queue | None) -> int:
        return ANY_NUMBER

    def take(self, queue: Queue | None, records: int) -> None:
        pass

    def left_s(self, queue: Queue | None) -> float:
        return 0.0


def _every_s(queue: Queue | None) -> float:
    """Return the seconds between two records of each partition; 0: any number may come."""
    if queue is None:
        return 0.0
    return settings_of(queue.configs).redrive_every_s * max(1, queue.partitions)
