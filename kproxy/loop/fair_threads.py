"""A few threads for many: who waits has its turn by whom it is for, and not by when it came."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

Made = TypeVar("Made")
_Waiting = deque[asyncio.Future[None]]


def _nobody(key: str) -> bool:
    return False


class FairThreads:
    """The threads of one event loop. Keys that `comes_last` get one once nobody else waits."""

    def __init__(self, threads: int, comes_last: Callable[[str], bool] = _nobody) -> None:
        self.free = threads
        self._threads = threads
        self._comes_last = comes_last
        self._limiter: CapacityLimiter | None = None  # for the loop that it is first used in
        self.lines: tuple[OrderedDict[str, _Waiting], ...] = (OrderedDict(), OrderedDict())

    async def run(self, key: str, work: Callable[[], Made]) -> Made:
        """Return the result of `work`, on a thread, once it is the turn of `key`."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(self._threads)
        async with self._turn(key):
            return await to_thread.run_sync(work, limiter=self._limiter)

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        if self.free:
            self.free -= 1
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, key: str) -> None:
        line = self.lines[self._comes_last(key)]
        turn = asyncio.get_running_loop().create_future()
        line.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()
            elif key in line and turn in line[key]:
                line[key].remove(turn)
                if not line[key]:
                    del line[key]
            raise

    def _next(self) -> None:
        """Hand a thread on: to each in turn, and last to those that come last."""
        for line in self.lines:
            while line:
                key, mine = next(iter(line.items()))
                turn = mine.popleft()
                if mine:
                    line.move_to_end(key)
                else:
                    del line[key]
                if not turn.done():
                    turn.set_result(None)
                    return
        self.free += 1
