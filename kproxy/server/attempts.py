"""Logins by address: how long a failed one waits, and how many are under way at once.

Repeated failures from an address wait longer each time. Each keeps a place of that address for so
long, whether the client stays to hear the answer or not. As places are few, guesses are few,
however many connections they come by. A good login has its place for as long as it takes to check
it.
"""

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kproxy.security.peer import network_of

AT_ONCE = 100
"""Places of an address: 50 wrong passwords a second once it has failed some times."""
_DELAY_S, _DELAY_S_MAX = 0.1, 2.0
_FACTOR = 1.5
_FAILURES_MAX = 20.0
_HALF_LIFE_S = 10.0
_ADDRESSES_MAX = 10_000


class Attempts:
    """Logins of one listener. `monotonic`: a clock, in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failed: dict[str, tuple[float, float]] = {}  # by address: how many, as of when
        self._taken: Counter[str] = Counter()  # places, by address
        self._line: dict[str, OrderedDict[asyncio.Future[None], None]] = {}  # the waiters

    @asynccontextmanager
    async def turn(self, ip: str) -> AsyncIterator[None]:
        """Wait for a place of an address, and have it."""
        address = network_of(ip)
        if self._taken[address] >= AT_ONCE or address in self._line:
            await self._wait(address)
        else:
            self._taken[address] += 1
        try:
            yield
        finally:
            self._leave(address)

    async def _wait(self, address: str) -> None:
        """Wait for a place. A waiter that leaves hands its place over."""
        waits = asyncio.get_running_loop().create_future()
        self._line.setdefault(address, OrderedDict())[waits] = None
        try:
            await waits
        except asyncio.CancelledError:
            if waits.done() and not waits.cancelled():
                self._leave(address)
            self._forget(address, waits)
            raise

    def _forget(self, address: str, waits: asyncio.Future[None]) -> None:
        line = self._line.get(address)
        if line is not None and waits in line:
            del line[waits]
            if not line:
                del self._line[address]

    def blame(self, ip: str) -> float:
        """Note that a login has failed; return for how many seconds its answer waits, and has a
        place.
        """
        address, now = network_of(ip), self._monotonic()
        count, as_of = self._failed.pop(address, (0.0, now))
        count = min(count * 0.5 ** ((now - as_of) / _HALF_LIFE_S), _FAILURES_MAX)
        self._failed[address] = count + 1, now
        if len(self._failed) > _ADDRESSES_MAX:
            del self._failed[next(iter(self._failed))]
        delay_s = min(_DELAY_S * math.pow(_FACTOR, count), _DELAY_S_MAX)
        self._taken[address] += 1
        asyncio.get_running_loop().call_later(delay_s, self._leave, address)
        return delay_s

    def _leave(self, address: str) -> None:
        line = self._line.get(address)
        while line and self._taken[address] <= AT_ONCE:
            waits, _ = line.popitem(last=False)
            if not line:
                del self._line[address]
            if not waits.done():
                waits.set_result(None)
                return
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]
