"""An event loop whose time goes by as fast as there is nothing to do."""

import asyncio
import itertools
import math
import random
import selectors
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from anyio._backends._asyncio import CancelScope

from kproxy.loop import pace

_LOOK_S = 0.002
_STEPS = 1_000_000  # the clock's, in a second


class _NoWait(selectors.SelectSelector):
    """A selector that puts the clock forward instead of waiting."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits for ever")
        if timeout > 0:
            # In steps: what is due within the loop's resolution would come too soon, for ever.
            at = self.loop.clock + timeout
            self.loop.clock = max(at, math.ceil(at * _STEPS) / _STEPS)
        return []


class _Task(asyncio.Task[Any]):
    """A task with a number for its hash, so that sets of tasks are iterated in the same order."""

    def __init__(self, *args: Any, number: int, **more: Any) -> None:
        self._number = number
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that may go through what is ready in another order than that of becoming ready."""

    def __init__(self, shuffle: random.Random | None = None) -> None:
        self.clock = 1000.0
        self._shuffle = shuffle
        self._numbers = itertools.count()
        selector = _NoWait()
        selector.loop = self
        super().__init__(selector)
        self.set_task_factory(self._task)

    def _task(self, loop: Any, coro: Any, **more: Any) -> _Task:
        return _Task(coro, loop=loop, number=next(self._numbers), **more)

    def time(self) -> float:
        return self.clock

    def _run_once(self) -> None:
        if self._shuffle is not None:
            self._shuffle.shuffle(self._ready)
        super()._run_once()  # type: ignore[misc]


def run(main: Callable[[], Awaitable[None]], seed: int = 0, *, shuffled: bool = False) -> None:
    """Run until `main` ends. `shuffled`: in another order than that of becoming ready.

    No code may rely on who of two tasks that wake in one turn goes first. Work that is cut into
    slices rests by a clock of the seed's, whatever the machine's load.
    """
    numbers = itertools.count()
    of_scopes: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        made = CancelScope.__init__

        def init(self: Any, *args: Any, **more: Any) -> None:
            of_scopes[id(self)] = next(numbers)
            made(self, *args, **more)

        patch.setattr(CancelScope, "__init__", init)
        patch.setattr(CancelScope, "__hash__", lambda self: of_scopes.get(id(self), 0))
        patch.setattr(pace, "monotonic", working_clock(seed))
        rng = random.Random(f"shuffled {seed}") if shuffled else None
        anyio.run(main, backend_options={"loop_factory": partial(VirtualLoop, rng)})


class Inline:
    """A stand-in for `anyio.to_thread`: a real thread would not wait for the clock."""

    @staticmethod
    async def run_sync(work: Callable[..., Any], *args: Any, limiter: Any = None) -> Any:
        await anyio.sleep(0.001)
        return work(*args)


def monotonic() -> float:
    """Return the loop's time; on a thread, which a virtual loop has none of, the machine's."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


def working_clock(seed: int) -> Callable[[], float]:
    """Return a clock for work that rests when it is due to; each look takes a little time."""
    rng, worked_s = random.Random(seed), 0.0

    def now() -> float:
        nonlocal worked_s
        worked_s += rng.random() * _LOOK_S
        return worked_s

    return now
