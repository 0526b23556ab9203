"""One life of a worker in a simulated cluster: the real classes, over `cluster`'s means."""

import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

from kproxy.cluster.announcer import ClusterContext
from kproxy.cluster.catalogue.barrier import CatalogueBarrier
from kproxy.cluster.catalogue.cache import CatalogueCache
from kproxy.cluster.command_router import CommandRouter
from kproxy.cluster.owned_shards import OwnedShards
from kproxy.cluster.remote_cleanup import RemoteQueueCleanup
from kproxy.cluster.services import ShardServices
from kproxy.common.counters import Counters
from kproxy.common.errors import KafkaError
from kproxy.common.progress import Progress
from kproxy.config.server import Config
from kproxy.log.disk_space import DiskSpace
from kproxy.loop.clock import Clock
from kproxy.metadata.cluster_view import SingleNode
from kproxy.metadata.levels import Level
from kproxy.protocol.responses import Broker
from kproxy.protocol.varint import Malformed
from kproxy.shard.compactor import CompactionLimits
from kproxy.shard.shard import Shard
from kproxy.upstream.topic_tailer import Record
from kproxy.virtual.rows.queues import TERM_KEY, Queue, decode_term
from kproxy.worker.worker import Worker
from tests.present import present
from tests.simulation import virtual_time
from tests.simulation.workers.cluster import SimLink, World
from tests.simulation.workers.disks import SimKv


def config(directory: Path, shards: int) -> Config:
    return Config(
        bootstrap_servers="simulated", data_dir=directory, shards=shards, publish_ms=1500,
        keeper_period_ms=1000, rows_flush_ms_max=3000, segment_bytes=2000, rows_cached_max=50,
        disk_free_bytes_min=1, auto_create=False,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=1000,
    )  # fmt: skip


class Life:
    """A worker from a start to a crash."""

    def __init__(self, world: World, name: str, writer: int, shards: int) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.told = 0  # how often, which shards are its own
        self.ended = anyio.Event()
        self.over: set[bytes] = set()  # ids of queues that it has heard the end of
        world.lives[name] = self
        directory = world.directory / name
        self.config = config(directory, shards)
        self.count = shards
        self.writer = writer
        self.shards = OwnedShards(shards, directory)
        self.kv = SimKv(world, directory / "queues")
        self.cache = CatalogueCache(self.kv, shards, self.shards.serving)
        self.link: Any
        self.catalogue_barrier = CatalogueBarrier(self._queues_end, lambda: self.cache.next_offset)
        self.shards.settle = self.catalogue_barrier.wait
        self.remote_cleanup = RemoteQueueCleanup(
            shards, self.shards.all, self.cache, self.catalogue_barrier.wait
        )
        self.cache.gone = self.remote_cleanup.queue_gone
        self.cache.reconfigured = self.remote_cleanup.settings_changed
        self.command_router: CommandRouter
        self.worker: Worker
        self._tasks: Any
        self._scope = anyio.CancelScope()

    async def _queues_end(self) -> int:
        return int(await self.link.queues_end())

    @property
    def began(self) -> bool:
        return hasattr(self, "command_router")

    def serving(self, index: int) -> Shard | None:
        """Return a shard that it serves, by its latest claim as far as it knows."""
        shard = self.shards.serving(index)
        if shard is not None:
            data = present(shard.state.get(TERM_KEY))
            assert decode_term(data) == (shard.claim_offset, self.writer), (
                "served by another's claim"
            )
        return shard

    async def run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as self._tasks:
                    self._start(self._tasks)
        finally:
            self.ended.set()

    def _start(self, tasks: Any) -> None:
        self.link = SimLink(self.world, self, self.writer, tasks)
        link: Any = self.link
        voice = ClusterContext(
            link=link, shards=self.count, cache=self.cache, serving=self.shards.serving,
            settle=self.catalogue_barrier.wait, tasks=tasks, level=Level(),
        )  # fmt: skip
        self.command_router = CommandRouter(voice, self.now_ms)
        self.link.unfollowed = self.command_router.unfollowed
        self.shards.submit = self.command_router.submit
        self.shards.ask = self.command_router.ask
        self.shards.land_elsewhere = self.link.land
        upstream: Any = SimpleNamespace(world=self.world, life=self, data="data", offset="offset")
        clock = Clock(self.now_ms, virtual_time.monotonic)
        self.worker = Worker(
            config=self.config, cluster=SingleNode(cluster_id="", me=Broker(0, "", 0)),
            routes=self.shards, lookup=self.cache, clock=clock,
        )  # fmt: skip
        site = ShardServices(
            config=self.config, upstream=upstream, link=self.link,
            command_router=self.command_router, announce=lambda shard, claim: None,
            disk_space=DiskSpace(self.config.data_dir, 1), opening=anyio.Semaphore(2),
            compacting=CompactionLimits(), counters=Counters(),
            progress=Progress(), lookup=self.cache, clock=clock, level=Level(),
        )  # fmt: skip
        for task in (
            self.link.watch_ends, self.command_router.expire, self.remote_cleanup.run,
            self.catalogue_barrier.run, self._follow, self._flush, self.worker.transactions.run,
        ):  # fmt: skip
            tasks.start_soon(task)
        tasks.start_soon(self._serve, site)

    async def _serve(self, site: ShardServices) -> None:
        while True:  # as `Member.start` does
            with suppress(KafkaError):
                await self.catalogue_barrier.wait()
                break
        await self.shards.run(site)

    async def call(self, serve: Callable[[Worker], Awaitable[Any]]) -> Any:
        """Return the answer to a request; None where its connection ends instead.

        It never returns where this life ends.
        """
        answers: list[Any] = []
        answered = anyio.Event()

        async def handle() -> None:
            try:
                answers.append(await serve(self.worker))
            except (Malformed, KafkaError):
                answers.append(None)
            except Exception:
                self.world.fault(f"a request failed: {traceback.format_exc()}")
            answered.set()

        if self.alive:
            self._tasks.start_soon(handle)
        await answered.wait()
        return answers[0] if answers else None

    def now_ms(self) -> int:
        off_ms = self.world.conditions.clocks_off_ms.get(self.name, 0)
        return int(virtual_time.monotonic() * 1000) + 10**12 + off_ms

    async def crash(self) -> None:
        """End all effects of this life, and lose what was not on its disk."""
        self.alive = False
        self._scope.cancel()
        await self.ended.wait()

    # -- the queues topic, as `Member` follows it

    async def _follow(self) -> None:
        while True:
            await anyio.sleep(self.world.delay())
            most = self.world.rng.choice((1, 2, 5, 100))
            records = self.world.queues_from(self.cache.next_offset, most)
            if records:
                self._take(records)

    def _take(self, records: list[Record]) -> None:
        names = {record.key[1:].decode() for record in records if record.key[:1] == b"q"}
        names = {name for name in names if self.shards.serving_name(name) is None}
        before = {name: self.cache.find(name) for name in names}
        for name in self.cache.apply(records):
            home = self.shards.serving_name(name)
            if home is not None:
                self.command_router.announcer.say_again(home, name)
        for name, known in before.items():
            self._check_heard(name, known, self.cache.find(name))
        self.catalogue_barrier.moved()
        for counter, values in self.cache.outcomes(records, self.writer):
            self.command_router.published(counter, values)

    def _check_heard(self, name: str, known: Queue | None, found: Queue | None) -> None:
        """Check a queue whose home is elsewhere: a live one stays, a deleted one stays deleted."""
        if found is not None:
            assert found.queue_id not in self.over, f"{name} has come back"
        if known is not None and (found is None or found.queue_id != known.queue_id):
            assert not self.world.plain.alive(known.queue_id), f"{name} is not found any more"
            self.over.add(known.queue_id)

    async def _flush(self) -> None:
        while True:
            await anyio.sleep(self.world.rng.random() * 6)
            self.kv.flush()
