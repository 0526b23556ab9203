"""Bounds on what all connections together hold in memory."""

import anyio


class Memory:
    """Bytes that requests, or answers, of all connections hold.

    Above the limit nothing new is begun. Unfinished requests can go on to twice the limit, where
    whoever sends more is disconnected.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._room = anyio.Event()
        self.used = 0

    def take(self, count: int) -> None:
        self.used += count

    @property
    def exhausted(self) -> bool:
        return self.used > 2 * self._bytes_max

    def give_back(self, count: int) -> None:
        self.used -= count
        if self.used <= self._bytes_max:
            self._room.set()

    async def wait_for_room(self) -> None:
        while self.used > self._bytes_max:
            if self._room.is_set():  # else others wait for it already
                self._room = anyio.Event()
            await self._room.wait()
