"""The parts of a worker that each shard has one of."""

from typing import Any

import anyio
from anyio.abc import TaskGroup

from kproxy.shard.per_shard import PerShard
from tests.fakes import MemoryShard
from tests.harness import until


async def test_a_shard_given_up_does_not_start_another_part_of_its_successor() -> None:
    given_up: Any = MemoryShard()
    served: Any = MemoryShard()
    given_up.serving, served.claim_offset = False, 7
    started: list[Any] = []
    parts: PerShard[list[Any]] = PerShard(lambda: [served], lambda shard: [shard])

    def start(part: list[Any], tasks: TaskGroup) -> None:
        started.extend(part)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parts.run, start)
        await until(lambda: started == [served])
        first = parts.of(served)
        assert parts.of(given_up) == [given_up]
        assert parts.of(served) is first
        served.claim_offset = 8
        await until(lambda: len(started) > 1)
        assert started == [served, served]
        tasks.cancel_scope.cancel()
