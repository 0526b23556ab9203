"""Calls on threads, for callers that are cancelled: a stop never waits for a silent cluster.

A cancelled caller of `left_behind` does not wait: the thread ends when its call does, or with the
process. A cancelled caller of `stoppable` tells its call to stop and waits for that, because the
call works on what the caller closes next. anyio's threads do neither: they hold up the exit.

`on_disk` has threads of its own: where a disk hangs its calls take no thread that others need.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

_DISK_THREADS = 256
_disk_threads: RunVar[CapacityLimiter] = RunVar("disk threads")
T = TypeVar("T")


class Stopped(Exception):
    """A call was told to stop, and has."""


class Stop:
    """A signal to a call on a thread that nobody waits for its result any more."""

    def __init__(self) -> None:
        self._told = threading.Event()

    def tell(self) -> None:
        self._told.set()

    def check(self) -> None:
        """Raise Stopped once told so. For each turn of a loop that may take long."""
        if self._told.is_set():
            raise Stopped


async def on_disk(call: Callable[[], T]) -> T:
    """Run a call that a hung disk may keep; a cancelled caller waits for its end."""
    limiter = _disk_threads.get(None)
    if limiter is None:
        limiter = CapacityLimiter(_DISK_THREADS)
        _disk_threads.set(limiter)
    return await to_thread.run_sync(call, limiter=limiter)


async def left_behind(call: Callable[[], T]) -> T:
    """Run a call on a thread of its own, and leave it there if cancelled."""
    return await _begun(call)


async def stoppable(call: Callable[[Stop], T], unused: Callable[[T], None] | None = None) -> T:
    """Run a call on a thread of its own; if cancelled, tell it to stop and wait for its end.

    A call may end with a result all the same. `unused` lets go of that, on a thread.
    """
    stop = Stop()
    future = _begun(partial(call, stop))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.tell()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([future])
            ended_well = not future.cancelled() and future.exception() is None
            if ended_well and unused is not None:
                await _begun(partial(unused, future.result()))
        raise


def _begun(call: Callable[[], T]) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as failure:
            error = failure
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="call", daemon=True).start()
    return future
