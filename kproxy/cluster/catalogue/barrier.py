"""A read barrier: waits until the cached catalogue is not behind the queues topic.

A commit by name must not be filed under a queue that was deleted and created again a moment ago. A
DeleteTopics response is sent only after the deletion is in the queues topic. A worker that reads
that topic up to the end offset it had when the commit arrived therefore resolves the name to the
right queue.
"""

from collections.abc import Awaitable, Callable

import anyio

from kproxy.common.errors import Code, KafkaError

_WAIT_S = 5.0


class CatalogueBarrier:
    """A barrier that asks for the topic's end once for all waiters; `run` until cancelled."""

    def __init__(self, end: Callable[[], Awaitable[int]], reached: Callable[[], int]) -> None:
        """Take `end`, which asks where the topic ends, and `reached`, up to where it is cached."""
        self._end = end
        self._reached = reached
        self._asked = anyio.Event()
        self._moved = anyio.Event()
        self._answered = _Answer()

    def moved(self) -> None:
        """Note that more of the topic is cached."""
        self._moved.set()

    async def wait(self) -> None:
        """Wait until all that was in the topic by now is cached. Raises KafkaError."""
        answered = self._answered
        self._asked.set()
        await answered.event.wait()
        if answered.failure is not None:
            raise answered.failure

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            answered, self._answered = self._answered, _Answer()
            try:
                await self._reach(await self._end())
            except KafkaError as error:
                answered.failure = error
            answered.event.set()

    async def _reach(self, end: int) -> None:
        with anyio.move_on_after(_WAIT_S):
            while self._reached() < end:
                self._moved = anyio.Event()
                await self._moved.wait()
            return
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS, "the catalogue is being read")


class _Answer:
    """An answer for all who asked before one look at the end."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.failure: KafkaError | None = None
