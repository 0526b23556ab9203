"""Work of the worker's loop for another thread, which waits for it for a while."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as TooLate
from typing import Any, TypeVar

from kproxy.common.errors import KafkaError

Result = TypeVar("Result")


class OnLoop:
    """A page or a part of one that the loop gathers, as the rows are its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waited_for: set[Future[Any]] = set()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the worker's loop."""
        self._loop = loop

    def end(self) -> None:
        """Have nobody wait for the loop from now on: it waits for the threads that do."""
        self._loop = None
        for gathering in list(self._waited_for):
            gathering.cancel()

    def gathered(
        self, gather: Callable[[], Coroutine[Any, Any, Result]], wait_s: float
    ) -> Result | None:
        """Return the result, on another thread; None where the loop is stuck or has ended."""
        loop = self._loop
        if loop is None:
            return None
        gathering = asyncio.run_coroutine_threadsafe(gather(), loop)
        self._waited_for.add(gathering)
        if self._loop is None:  # it has just ended
            gathering.cancel()
        try:
            return gathering.result(wait_s)
        except TooLate:
            gathering.cancel()
        except (KafkaError, RuntimeError, CancelledError):
            pass  # a shard was given up meanwhile, or the loop has ended
        finally:
            self._waited_for.discard(gathering)
        return None
