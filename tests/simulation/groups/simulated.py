"""A run of a seed: members of all groups, while their coordinator changes; then all is quiet."""

from collections import Counter

import anyio

from kproxy.common.errors import first_of
from tests.simulation import virtual_time
from tests.simulation.groups.members import KINDS, Crowd
from tests.simulation.groups.world import World
from tests.simulation.twice import fold_twice

RUN_S = 60
QUIET_S = 60.0


async def _simulate(world: World) -> None:
    async with anyio.create_task_group() as world.tasks:
        crowds = [Crowd(world, group) for group in KINDS]
        world.start(world.grow, *(crowd.run for crowd in crowds))
        for _ in range(RUN_S):
            await anyio.sleep(1)
            if world.faults:
                break
        else:
            await world.settle()
        left = [""]
        with anyio.move_on_after(QUIET_S):
            while left and not world.faults:
                await anyio.sleep(1)
                left = [said for crowd in crowds if (said := crowd.unsettled())]
        for worker in world.workers:
            worker.crash()
        world.tasks.cancel_scope.cancel()
    if world.faults:
        raise world.faults[0]
    assert not left, f"G5: {left}"


def simulated(seed: int, *, shuffled: bool = False) -> Counter[str]:
    """Run a seed; return how often it reached which condition."""
    worlds: list[World] = []

    async def main() -> None:
        worlds.append(World(seed))
        await _simulate(worlds[0])

    try:
        virtual_time.run(main, seed, shuffled=shuffled)
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    world = worlds[0]
    return world.happened + world.truth.counted + fold_twice(world.log, seed=seed)
