"""Passwords are hashed on a few threads, and each address has its turn.

An attacker who guesses could otherwise keep the threads busy for all others, before anybody has
logged in. An address of which a password was wrong lately has its turn once no other address waits.
"""

import time
from collections.abc import Callable

from kproxy.loop.fair_threads import FairThreads, Made

THREADS = 2
_WRONG_S = 60.0
_ADDRESSES_MAX = 10_000


class Hashing:
    """The threads and who waits for them. `monotonic`: a clock, in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._wrong: dict[str, float] = {}  # addresses: until when they come last
        self._threads = FairThreads(THREADS, self._was_wrong)

    async def run(self, address: str, work: Callable[[], Made]) -> Made:
        """Return the result of `work`, on a thread, once it is the address's turn."""
        return await self._threads.run(address, work)

    def wrong(self, address: str) -> None:
        """Note that a password from this address was wrong."""
        self._wrong.pop(address, None)
        self._wrong[address] = self._monotonic() + _WRONG_S
        if len(self._wrong) > _ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]

    def _was_wrong(self, address: str) -> bool:
        return self._wrong.get(address, 0.0) > self._monotonic()
