"""Several workers on a cluster that delays, loses and reorders; they crash at any time."""

import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from tests.simulation.workers import agreement
from tests.simulation.workers.clients import Clients
from tests.simulation.workers.cluster import World
from tests.simulation.workers.conditions import Ending, conditions_of
from tests.simulation.workers.sim_worker import Life
from tests.simulation.workers.txn_clients import IDS, TxnClients

SHARDS = 3
WORKERS = [f"w{number}" for number in range(3)]
CALM_S = 60.0
_CLIENTS = 12
_CLIENTS_BESIDE = 4  # the transactional ones
_FAR_OFF_MS = 10_000  # so late, or so early, time ends what is open
_QUIET_S = 3.0


class Simulation:
    def __init__(self, seed: int, directory: Path, *, transactions: bool = False) -> None:
        self.rng = random.Random(seed)
        self.conditions = conditions_of(seed, WORKERS, transactions=transactions)
        self.world = World(self.rng, SHARDS, directory, self.conditions)
        self.lives: dict[str, Life] = {}
        self.clients = Clients(self.world, self.lives)
        self.transactions = TxnClients(self.world, self.lives, self.clients.producer_ids)
        self._writers = 0
        self._owners: list[str] = []
        self._ending = anyio.Lock()
        self._tasks: Any

    async def run(self) -> None:
        transactional = self.conditions.transactions
        async with anyio.create_task_group() as self._tasks:
            for name in WORKERS:
                self._start(name)
            self._assign()
            with anyio.move_on_after(self.conditions.trouble_s):
                await self._trouble()
            if self.conditions.ending == Ending.REBUILT:
                for name in WORKERS:
                    await self._end(name, with_its_disk=True)
            self.world.calm = True
            if self.conditions.ending != Ending.LEFT:
                self._assign()
            if transactional:
                fence = abs(max(self.conditions.clocks_off_ms.values(), key=abs)) > _FAR_OFF_MS
                self._tasks.start_soon(partial(self.transactions.settle, fence=fence))
            await self._agreed()
            for life in self.lives.values():
                await life.crash()

    # -- trouble

    async def _trouble(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._now_and_then, self.conditions.crashed_every_s, self._crash)
            tasks.start_soon(self._now_and_then, self.conditions.moved_every_s, self._move)
            if self.conditions.power_fails_at_s is not None:
                tasks.start_soon(self._power_fails, self.conditions.power_fails_at_s)
            if self.conditions.transactions:
                for name in IDS:
                    tasks.start_soon(self.transactions.live, name)
            for _ in range(_CLIENTS_BESIDE if self.conditions.transactions else _CLIENTS):
                tasks.start_soon(self._now_and_then, 0.1, self.clients.act)

    async def _now_and_then(self, seconds: float, what: Callable[[], Awaitable[None]]) -> None:
        while True:
            await anyio.sleep(self.rng.random() * 2 * seconds)
            await what()

    def _start(self, name: str) -> None:
        self._writers += 1
        self.lives[name] = Life(self.world, name, self._writers, SHARDS)
        self._tasks.start_soon(self.lives[name].run)

    async def _crash(self) -> None:
        name = self.rng.choice(WORKERS)
        life = self.lives[name]
        for owner in life.shards.owners():
            self.world.happened[f"crashed while {owner.phase}"] += 1
        with_its_disk = self.rng.random() < self.conditions.disk_lost
        self.world.happened["lost its disk" if with_its_disk else "kept its disk"] += 1
        await self._end(name, with_its_disk=with_its_disk)
        self._assign()

    async def _end(self, name: str, *, with_its_disk: bool) -> None:
        async with self._ending:
            with anyio.CancelScope(shield=True):
                await self.lives[name].crash()
                if with_its_disk:
                    self.world.lose(name)
                self._start(name)

    async def _power_fails(self, after_s: float) -> None:
        """Cut the power of workers and brokers at once, a while after queues changed."""
        await anyio.sleep(after_s - _QUIET_S)
        self.clients.leave_queues = True
        await anyio.sleep(_QUIET_S)
        async with self._ending:
            with anyio.CancelScope(shield=True):
                for life in self.lives.values():
                    life.alive = False
                for life in self.lives.values():
                    await life.crash()
                self.world.power_fails()
                self.world.happened["power failed"] += 1
                self.clients.power_failed()
                self.transactions.truth.power_failed()
                for name in WORKERS:
                    self._start(name)
        self._give_out()

    async def _move(self) -> None:
        for life in self.lives.values():
            for owner in life.shards.owners():
                self.world.happened[f"moved while {owner.phase}"] += 1
        self._assign()

    def _assign(self) -> None:
        """Give each shard to somebody; its old owner may hear of it later than the new one."""
        drawn = [self.rng.choice(WORKERS) for _ in range(SHARDS)]
        if self._owners and self.conditions.moved_at_once < SHARDS:
            for shard in self.rng.sample(range(SHARDS), SHARDS - self.conditions.moved_at_once):
                drawn[shard] = self._owners[shard]
        self._owners = drawn
        self._give_out()

    def _give_out(self) -> None:
        for name, life in self.lives.items():
            wanted = frozenset(shard for shard in range(SHARDS) if self._owners[shard] == name)
            self._tasks.start_soon(self._tell, life, wanted)

    async def _tell(self, life: Life, wanted: frozenset[int]) -> None:
        life.told = told = life.told + 1
        if not self.world.calm:
            await anyio.sleep(self.rng.choice((0.0, 0.0, 0.5, 3.0)))
        if told == life.told:
            life.shards.assigned(wanted)

    # -- the truth

    async def _agreed(self) -> None:
        """Wait until all workers agree with the logs."""
        fault: AssertionError | None = None
        for _ in range(int(CALM_S)):
            await anyio.sleep(1.0)
            assert not self.world.faults, self.world.faults[:3]
            try:
                served = agreement.check(self.world, self.lives, self.clients.appended)
                if self.conditions.transactions:
                    assert self.transactions.settled
                    self.transactions.truth.check(self.world, served)
            except AssertionError as error:
                fault = error
            else:
                return
        assert fault is not None
        raise fault
