"""Progress of long work: a bar on a terminal (rich), a log line every few seconds elsewhere."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

_log = structlog.get_logger()

_FIRST_S = 1.0  # shorter work is not worth a word
_LINE_S = 5.0
_BAR_S = 0.2


class Progress:
    """The progress of several pieces of work, as it is shown."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._bars = Bars(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeRemainingColumn(), console=Console(file=sys.stderr), transient=True,
        )  # fmt: skip
        self._shown = 0
        self._under_way: dict[tuple[str, int], tuple[int, Callable[[], int]]] = {}

    @asynccontextmanager
    async def of(
        self, event: str, total: int, done: Callable[[], int], **about: int
    ) -> AsyncIterator[None]:
        """Show how many of `total` are `done()` while the block lasts."""
        work = (event, about.get("shard", -1))
        self._under_way[work] = total, done
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    self._bar if self._terminal else self._lines, event, total, done, about
                )
                yield
                tasks.cancel_scope.cancel()
        finally:
            self._under_way.pop(work, None)

    def ratio(self, event: str, shard: int) -> float | None:
        """Return how much of a shard's work is done, from 0 to 1; None where none is under way."""
        total, done = self._under_way.get((event, shard), (0, None))
        return None if done is None else min(1.0, done() / max(1, total))

    async def _lines(
        self, event: str, total: int, done: Callable[[], int], about: dict[str, int]
    ) -> None:
        await anyio.sleep(_FIRST_S)
        while True:
            _log.info(event, envelopes=done(), of=total, **about)
            await anyio.sleep(_LINE_S)

    async def _bar(
        self, event: str, total: int, done: Callable[[], int], about: dict[str, int]
    ) -> None:
        await anyio.sleep(_FIRST_S)
        if not self._shown:
            self._bars.start()
        self._shown += 1
        label = " ".join([event.replace("_", " "), *map(str, about.values())])
        task = self._bars.add_task(label, total=total)
        try:
            while True:
                self._bars.update(task, completed=done())
                await anyio.sleep(_BAR_S)
        finally:
            self._bars.remove_task(task)
            self._shown -= 1
            if not self._shown:
                self._bars.stop()
