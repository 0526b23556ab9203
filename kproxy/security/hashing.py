"""Passwords are hashed on a few threads, and each address has its turn.

Who guesses could keep the threads busy for all others otherwise, before anybody has logged in. An
address of which a password was wrong lately has its turn once no other address waits.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

THREADS = 2
_WRONG_S = 60.0
_ADDRESSES_MAX = 10_000

Made = TypeVar("Made")
_Waiting = deque[asyncio.Future[None]]


class Hashing:
    """The threads and who waits for them. `monotonic`: a clock, in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._free = THREADS
        self._limiter: CapacityLimiter | None = None  # of the loop that it is first used in
        self._wrong: dict[str, float] = {}  # addresses: until when they come last
        self._lines: tuple[OrderedDict[str, _Waiting], ...] = (OrderedDict(), OrderedDict())

    async def run(self, address: str, work: Callable[[], Made]) -> Made:
        """What `work` returns, on a thread, once it is the address's turn."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(THREADS)
        async with self._turn(address):
            return await to_thread.run_sync(work, limiter=self._limiter)

    def wrong(self, address: str) -> None:
        """A password was wrong."""
        self._wrong.pop(address, None)
        self._wrong[address] = self._monotonic() + _WRONG_S
        if len(self._wrong) > _ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]

    @asynccontextmanager
    async def _turn(self, address: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(address)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, address: str) -> None:
        line = self._lines[self._wrong.get(address, 0.0) > self._monotonic()]
        turn = asyncio.get_running_loop().create_future()
        line.setdefault(address, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()
            elif address in line and turn in line[address]:
                line[address].remove(turn)
                if not line[address]:
                    del line[address]
            raise

    def _next(self) -> None:
        """Hand a thread on: to the addresses in turn, and last to those that were wrong."""
        for line in self._lines:
            while line:
                address, mine = next(iter(line.items()))
                turn = mine.popleft()
                if mine:
                    line.move_to_end(address)
                else:
                    del line[address]
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1
