"""Progress of long work: lines in a log, bars on a terminal."""

import io
from typing import Any

import anyio
import pytest
from rich.console import Console
from rich.progress import Progress as Bars
from structlog.testing import capture_logs

from kproxy.common import progress as module
from kproxy.common.progress import Progress


async def work(progress: Progress) -> None:
    async with progress.of("shard_rebuilding", 100, lambda: 42, shard=7):
        await anyio.sleep(0.3)


async def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_S", 0.0)
    with capture_logs() as lines:
        await work(Progress())
    said: dict[str, Any] = {"event": "shard_rebuilding", "envelopes": 42, "of": 100, "shard": 7}
    assert [{**line, "log_level": None} for line in lines] == [{**said, "log_level": None}]


async def test_short_work_is_not_worth_a_word() -> None:
    with capture_logs() as lines:
        await work(Progress())
    assert not lines


async def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_S", 0.0)
    shown = io.StringIO()
    progress = Progress()
    progress._terminal = True
    console = Console(file=shown, force_terminal=True, width=100)
    progress._bars = Bars(*progress._bars.columns, console=console, transient=True)
    await work(progress)
    assert "shard rebuilding 7" in shown.getvalue()
    assert "42/100" in shown.getvalue()
