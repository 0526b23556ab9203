"""Work of the worker's loop for another thread, which waits for it for a while."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as TooLate
from typing import Any, TypeVar

from kproxy.common.errors import KafkaError

Result = TypeVar("Result")


class OnLoop:
    """A page or a part of one that the loop gathers, as the rows are its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the worker's loop."""
        self._loop = loop

    def gathered(
        self, gather: Callable[[], Coroutine[Any, Any, Result]], wait_s: float
    ) -> Result | None:
        """Return the result, on another thread; None where the loop is stuck or has ended."""
        if self._loop is None:
            return None
        gathering = asyncio.run_coroutine_threadsafe(gather(), self._loop)
        try:
            return gathering.result(wait_s)
        except TooLate:
            gathering.cancel()
        except (KafkaError, RuntimeError):
            pass  # a shard was given up meanwhile, or the loop has ended
        return None
