"""A part of each shard that is served: one for each claim, however often it is asked for."""

import itertools
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kproxy.shard import per_shard
from kproxy.shard.per_shard import PerShard
from tests.fakes import MemoryShard


async def test_part_of_a_shard_that_has_left_does_not_take_the_place_of_the_served_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: the part of the shard that is served was made, and begun, a second time."""
    monkeypatch.setattr(per_shard, "pulse", lambda period_s: checkpoint())
    left, served, numbers = MemoryShard(), MemoryShard(), itertools.count()
    shards: list[Any] = [left]
    parts = PerShard[int](lambda: list(shards), lambda shard: next(numbers))
    begun: list[int] = []

    def start(part: int, tasks: TaskGroup) -> None:
        begun.append(part)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parts.run, start)
        while not begun:
            await checkpoint()
        left.serving, shards[:] = False, [served]
        while len(begun) < 2:
            await checkpoint()
        mine = parts.of(served)  # type: ignore[arg-type]
        parts.of(left)  # type: ignore[arg-type]
        assert parts.of(served) == mine  # type: ignore[arg-type]
        for _ in range(20):
            await checkpoint()
        tasks.cancel_scope.cancel()
    assert len(begun) == 2
