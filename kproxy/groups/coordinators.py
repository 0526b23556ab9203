"""The coordinators of all shards that this worker serves. One task runs all their timers."""

import math
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from kproxy.common.errors import Code
from kproxy.groups.coordinator import Coordinator, GroupServices
from kproxy.loop.pace import Pace
from kproxy.shard.shard import Shard

_TICK_S = 0.05
_SHARDS_S = 0.25
_LATE_S = 0.5


class Coordinators:
    """A coordinator for each shard that is served here."""

    def __init__(self, serving: Callable[[], list[Shard]], services: GroupServices) -> None:
        self._serving = serving
        self.services = services
        self._by_shard: dict[int, Coordinator] = {}
        self._sooner = anyio.Event()
        self._scopes: dict[int, anyio.CancelScope] = {}

    def of(self, shard: Shard) -> Coordinator:
        """Return the coordinator of a shard that is served here now."""
        known = self._by_shard.get(shard.shard)
        if known is None or known.shard is not shard or known.claim_offset != shard.claim_offset:
            if known is not None:
                self._drop(known)
            known = Coordinator(shard, self.services, self._set_sooner)
            self._by_shard[shard.shard] = known
            self._set_sooner()
        return known

    def _start(self, coordinator: Coordinator, tasks: TaskGroup) -> None:
        scope = self._scopes[id(coordinator)] = anyio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    await coordinator.run()
            finally:
                del self._scopes[id(coordinator)]

        (coordinator.shard.tasks or tasks).start_soon(run)

    def _drop(self, coordinator: Coordinator) -> None:
        del self._by_shard[coordinator.shard.shard]
        coordinator.end(Code.NOT_COORDINATOR)
        scope = self._scopes.get(id(coordinator))
        if scope is not None:
            scope.cancel()

    async def run(self) -> None:
        """Keep to the shards that are served, and let time pass for their groups."""
        async with anyio.create_task_group() as tasks:
            waited, expected = False, anyio.current_time()
            while True:
                now = anyio.current_time()
                self._follow(tasks)
                # After a standstill, what members have sent meanwhile is read first.
                waited = not waited and now - expected > _LATE_S
                if not waited:
                    await self._run_due(now)
                expected = await self._until_due(now)

    async def _until_due(self, ran_at: float) -> float:
        """Wait until a timer is due, or for a look at the shards; not again at once in any case.

        Return until when it meant to wait.
        """
        while True:
            self._sooner = anyio.Event()
            due = min((c.timers.next for c in self._by_shard.values()), default=math.inf)
            until = max(ran_at + _TICK_S, min(due, ran_at + _SHARDS_S))
            with anyio.move_on_after(until - anyio.current_time()) as scope:
                await self._sooner.wait()
            if scope.cancel_called:
                return until

    def _set_sooner(self) -> None:
        self._sooner.set()

    def _follow(self, tasks: TaskGroup) -> None:
        shards = self._serving()
        for shard in shards:
            coordinator = self.of(shard)
            if id(coordinator) not in self._scopes:
                self._start(coordinator, tasks)
        served = {shard.shard for shard in shards}
        for coordinator in list(self._by_shard.values()):
            if coordinator.shard.shard not in served:
                self._drop(coordinator)

    async def _run_due(self, now: float) -> None:
        pace = Pace()
        for coordinator in list(self._by_shard.values()):
            while coordinator.timers.run_due(now):
                await pace.rest()

    def stop(self) -> None:
        """Answer whoever waits: this worker ends."""
        for coordinator in self._by_shard.values():
            coordinator.end(Code.COORDINATOR_NOT_AVAILABLE)
