"""Seeded: several workers share a cluster that delays, loses and reorders, and crash at any time.

Clients make, change and delete queues under few names, append and commit; shards move from worker
to worker, some with an old copy, some with none. What the real classes make of it is held against
a plain reading of the logs: queues and their settings, ends, committed offsets, at all workers.
"""

import os
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from kproxy import copying
from kproxy import keeper as keeper_module
from kproxy.appends import outcomes_of
from kproxy.errors import Code, KafkaError
from kproxy.log import shared
from kproxy.metadata import catalogue
from kproxy.metadata.catalogue import new_queue_id
from kproxy.owning import aftermath, holder, publishing, queues, rebuild
from kproxy.owning.announcing import Announcer
from kproxy.owning.decisions import Decisions
from kproxy.owning.freshness import Freshness
from kproxy.owning.queues import Gone, QueueCache
from kproxy.shard import Shard
from kproxy.virtual import rows
from kproxy.virtual.envelope import Envelope, Kind, command
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import decode_committed
from tests.fakes import DictKv
from tests.simulation import virtual_time
from tests.simulation.cluster import SimKv, SimRowsWriter, Threads, World
from tests.simulation.sim_worker import Life
from tests.wire import batch

SHARDS = 3
WORKERS = 3
NAMES = [f"q{i}" for i in range(5)]
GROUPS = [f"g{i}" for i in range(4)]
TROUBLE_S = 25.0
CALM_S = 60.0
SEEDS, SEEDS_LONG = 12, 1000


class Simulation:
    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.world = World(self.rng, SHARDS, directory)
        self.lives: dict[str, Life] = {}
        self.writers = 0
        self.tasks: Any
        self.done: dict[str, int] = {}

    async def run(self) -> None:
        async with anyio.create_task_group() as self.tasks:
            for number in range(WORKERS):
                self.start(f"w{number}")
            self.assign()
            with anyio.move_on_after(TROUBLE_S):
                async with anyio.create_task_group() as trouble:
                    trouble.start_soon(self.now_and_then, 7.0, self.crash)
                    trouble.start_soon(self.now_and_then, 5.0, self.move)
                    for _ in range(6):
                        trouble.start_soon(self.now_and_then, 0.1, self.client)
            if self.rng.random() < 0.3:
                for name in list(self.lives):
                    await self.end(name, with_its_disk=True)
            self.world.calm = True
            self.assign()
            await self.agreed()
            for life in self.lives.values():
                await life.crash()

    async def now_and_then(self, seconds: float, what: Callable[[], Awaitable[None]]) -> None:
        while True:
            await anyio.sleep(self.rng.random() * 2 * seconds)
            await what()

    # -- trouble

    def start(self, name: str) -> None:
        self.writers += 1
        self.lives[name] = Life(self.world, name, self.writers, SHARDS)
        self.tasks.start_soon(self.lives[name].run)

    async def crash(self) -> None:
        name = self.rng.choice(list(self.lives))
        await self.end(name, with_its_disk=self.rng.random() < 0.2)
        self.assign()

    async def end(self, name: str, *, with_its_disk: bool) -> None:
        with anyio.CancelScope(shield=True):
            await self.lives[name].crash()
            if with_its_disk:
                self.world.lose(name)
            self.start(name)

    async def move(self) -> None:
        self.assign()

    def assign(self) -> None:
        """Each shard is somebody's; who has lost one may hear of it later than who has got it."""
        wanted: dict[str, set[int]] = {name: set() for name in self.lives}
        for shard in range(SHARDS):
            wanted[self.rng.choice(list(wanted))].add(shard)
        for name, life in self.lives.items():
            self.tasks.start_soon(self.tell, life, frozenset(wanted[name]))

    async def tell(self, life: Life, wanted: frozenset[int]) -> None:
        life.told = told = getattr(life, "told", 0) + 1
        if not self.world.calm:
            await anyio.sleep(self.rng.choice((0.0, 0.0, 0.5, 3.0)))
        if told == life.told:
            life.shards.assigned(wanted)

    # -- clients

    def life(self) -> Life:
        return self.rng.choice(list(self.lives.values()))

    async def client(self) -> None:
        life, name = self.life(), self.rng.choice(NAMES)
        if not hasattr(life, "decisions"):
            return
        dice = self.rng.random()
        with anyio.move_on_after(12):
            try:
                if dice < 0.25:
                    await self.create(life, name)
                elif dice < 0.37:
                    await self.delete(life, name)
                elif dice < 0.45:
                    await self.change(life, name)
                elif dice < 0.7:
                    await self.append(life, name)
                else:
                    await self.commit(life, name, self.rng.choice(GROUPS))
            except KafkaError:
                pass

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    async def create(self, life: Life, name: str) -> None:
        home = shard_of(name, SHARDS)
        values = {"name": name, "partitions": self.rng.choice((1, 1, 4)), "configs": {}}
        envelope = command(Kind.CREATE, new_queue_id(home, SHARDS), values=values)
        (outcome,) = await outcomes_of([life.decisions.decide(name, envelope)])
        if outcome.code == Code.NONE:
            self.count("created")

    async def delete(self, life: Life, name: str) -> None:
        queue = life.cache.find(name)
        if queue is None:
            return
        ticket = life.decisions.decide(name, command(Kind.DELETE, queue.queue_id))
        (outcome,) = await outcomes_of([ticket])
        if outcome.code == Code.NONE:
            self.count("deleted")
            other = self.life()
            await other.freshness.settle()
            if other.alive and other.shards.serving_name(name) is None:
                assert other.cache.find_id(queue.queue_id) is None, "a deleted queue is found"

    async def change(self, life: Life, name: str) -> None:
        queue = life.cache.find(name)
        if queue is None:
            return
        envelope = command(Kind.GROW, queue.queue_id, number=queue.partitions + 2)
        if self.rng.random() < 0.6:
            values = {"set": {"retention.ms": str(10**13 + self.rng.randrange(9))}, "drop": [],
                      "all": False}  # fmt: skip
            envelope = command(Kind.CONFIGURE, queue.queue_id, values=values)
        (outcome,) = await outcomes_of([life.decisions.decide(name, envelope)])
        if outcome.code == Code.NONE:
            self.count("changed")

    async def append(self, life: Life, name: str) -> None:
        queue = life.cache.find(name)
        if queue is None:
            return
        index = self.rng.randrange(queue.partitions)
        shard = self.server(shard_of(name, SHARDS, index))
        if shard is not None:
            body = batch(*[b"v" * 200] * self.rng.randrange(1, 3))
            envelope = Envelope(Kind.APPEND, queue.queue_id, index, body=body, number=2**50)
            outcomes = await shard.append([envelope]).wait()
            if outcomes[0].code == Code.NONE:
                self.count("appended")

    async def commit(self, life: Life, name: str, group: str) -> None:
        shard = life.shards.serving_name(group)
        if shard is None:
            return
        await life.shards.settled([name])
        queue = life.cache.find(name)
        if queue is not None and shard.serving:
            offset = self.rng.randrange(1000)
            offsets = [[queue.queue_id.hex(), 0, offset, -1, "", False]]
            envelope = command(Kind.COMMIT, values={"group": group, "offsets": offsets})
            outcomes = await shard.append([envelope]).wait()
            if outcomes[0].codes == (Code.NONE,):
                self.count("committed")

    def server(self, index: int) -> Any:
        found = [life.shards.serving(index) for life in self.lives.values() if life.alive]
        return next((shard for shard in found if shard is not None), None)

    # -- the truth

    async def agreed(self) -> None:
        """In time all workers agree with what the logs say."""
        fault: AssertionError | None = None
        for _ in range(int(CALM_S)):
            await anyio.sleep(1.0)
            try:
                self.check()
            except AssertionError as error:
                fault = error
            else:
                return
        assert fault is not None
        raise fault

    def check(self) -> None:
        plain = self.world.plain
        assert not plain.faults
        wanted = {
            name: (queue.queue_id, queue.partitions, queue.configs)
            for name, queue in plain.names.items()
        }
        for name, queue in plain.names.items():
            for index in range(queue.partitions):
                there = plain.shards[shard_of(name, SHARDS, index)].ends
                assert (queue.queue_id, index) in there, f"{name} lacks partition {index}"
        self.world.compact()
        fresh = QueueCache(DictKv(), SHARDS, lambda index: None)
        fresh.apply(self.world.queues_from(0, 10**6))
        caches = {name: life.cache for name, life in self.lives.items()} | {"fresh": fresh}
        for name, cache in caches.items():
            found = {q.name: (q.queue_id, q.partitions, q.configs) for q in cache.all()}
            assert found == wanted, name
        for index in range(SHARDS):
            served = [life.shards.serving(index) for life in self.lives.values()]
            shards = [shard for shard in served if shard is not None]
            assert len(shards) == 1
            self.check_shard(shards[0], plain.shards[index])

    def check_shard(self, shard: Any, plain: Any) -> None:
        assert shard.log.next_offset == len(self.world.logs[shard.shard])
        ends = {
            rows.partition_of(key): rows.decode_partition(data).next_offset
            for key, data in shard.kv.scan(b"p", b"q")
        }
        assert ends == plain.ends
        commits = {}
        for key, data in shard.kv.scan(b"o", b"p"):
            length = int.from_bytes(key[1:3], "big")
            group = key[3 : 3 + length].decode()
            commits[group, *rows.partition_of_offset(key)] = decode_committed(data).offset
        assert commits == plain.commits


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Path], Simulation]]:
    """Runs a seed, with the means of workers replaced by simulated ones."""
    clock: Any = virtual_time.Clock()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(keeper_module, "_WORTH_FREEING_BYTES", 1000)
    for module in (publishing, keeper_module, shared, catalogue):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(copying, "perf_counter", clock.monotonic)
    monkeypatch.setattr(publishing, "RowsWriter", SimRowsWriter)

    def run(seed: int, directory: Path) -> Simulation:
        simulation = Simulation(seed, directory / f"seed-{seed}")
        world, threads = simulation.world, Threads(simulation.rng)
        for module in (holder, rebuild, publishing, shared, keeper_module, copying):
            monkeypatch.setattr(module, "to_thread", threads)
        monkeypatch.setattr(holder, "RocksKv", lambda path, size: SimKv(world, path))
        monkeypatch.setattr(rebuild, "read_whole", world.read_whole)
        for module in (holder, rebuild):
            monkeypatch.setattr(module, "wipe", world.wipe)
        monkeypatch.setattr(catalogue, "_random", random.Random(seed))
        virtual_time.run(simulation.run)
        return simulation

    yield run
    structlog.reset_defaults()


LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(SEEDS, SEEDS_LONG)]


@pytest.mark.parametrize("seed", [*range(SEEDS), *LONG])
def test_workers_agree_with_the_logs(simulated: Any, tmp_path: Path, seed: int) -> None:
    simulation = simulated(seed, tmp_path)
    assert sum(simulation.done.values()) > 10


def test_a_seed_is_the_same_each_time(simulated: Any, tmp_path: Path) -> None:
    one, other = (simulated(3, tmp_path / name).world.trace for name in ("one", "other"))
    assert one == other


# -- the simulation sees mistakes


def tombstones_that_do_not_say_as_of_when(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queues, "_gone", lambda note: Gone(2**62))


def who_catches_up_announces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Decisions, "folded", Decisions.applied)


def a_sweep_beside_the_log(patch: pytest.MonkeyPatch) -> None:
    async def sweep(shard: Any, queue_id: bytes) -> None:
        for key, _ in list(shard.kv.scan(b"r" + queue_id, b"r" + queue_id + b"\xff" * 5)):
            offset_key = rows.offset_key(key[21:].decode(), *rows.partition_of(key))
            shard.commit({key: None, offset_key: None})

    patch.setattr(aftermath, "sweep_commits", sweep)


def a_log_trimmed_to_where_it_is_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "first_live", lambda self: self.applied_through.next_offset)


def landed_before_all_were_told(patch: pytest.MonkeyPatch) -> None:
    async def tell_all(self: Decisions, shard: Any, queue_id: bytes, work: Any) -> bool:
        return True

    patch.setattr(Decisions, "_tell_all", tell_all)


def a_catalogue_that_is_believed_at_once(patch: pytest.MonkeyPatch) -> None:
    async def settle(self: Freshness) -> None:
        pass

    patch.setattr(Freshness, "settle", settle)


def a_rebuild_that_looks_one_way_only(patch: pytest.MonkeyPatch) -> None:
    async def compare_cache(self: Announcer) -> None:
        for shard, _ in self._to_compare.values():
            shard.commit({rows.COMPARE_KEY: None})
        self._to_compare.clear()
        self._comparing = False

    patch.setattr(Announcer, "_compare_cache", compare_cache)


MISTAKES = [
    (tombstones_that_do_not_say_as_of_when, 30),
    (who_catches_up_announces, 10),
    (a_sweep_beside_the_log, 20),
    (a_log_trimmed_to_where_it_is_applied, 10),
    (landed_before_all_were_told, 10),
    (a_catalogue_that_is_believed_at_once, 30),
    pytest.param(a_rebuild_that_looks_one_way_only, 300, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("mistake", "seeds"), MISTAKES)
def test_mistakes_are_seen(
    simulated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any, seeds: int
) -> None:
    mistake(monkeypatch)
    seen = []
    for seed in range(seeds):
        try:
            simulated(seed, tmp_path)
        except* AssertionError as group:
            seen.append(group)
        if seen:
            return
    pytest.fail(f"nothing is seen in {seeds} seeds")
