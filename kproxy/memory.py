"""Bounds on what all connections together hold in memory."""

from collections.abc import Callable

import anyio


class Memory:
    """Bytes that requests, or answers, of all connections hold.

    Above the limit nothing new is begun. Unfinished requests can go on to twice the limit, where
    whoever sends more is disconnected.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: list[Callable[[], None]] = []
        self.used = 0

    def take(self, count: int) -> None:
        self.used += count

    @property
    def exhausted(self) -> bool:
        return self.used > 2 * self._bytes_max

    @property
    def has_room(self) -> bool:
        return self.used <= self._bytes_max

    def give_back(self, count: int) -> None:
        self.used -= count
        while self._waiting and self.has_room:
            self._waiting.pop(0)()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back when something new may be begun; who waits longest is first."""
        self._waiting.append(callback)

    async def wait_for_room(self) -> None:
        while not self.has_room:
            room = anyio.Event()
            self.when_room(room.set)
            await room.wait()
