"""The state of a worker in a cluster beside its shards."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from kproxy.cluster.announcer import ClusterContext
from kproxy.cluster.catalogue.barrier import CatalogueBarrier
from kproxy.cluster.catalogue.cache import CatalogueCache, outcome_key
from kproxy.cluster.catalogue.reload import CatalogueReload
from kproxy.cluster.command_router import CommandRouter
from kproxy.cluster.map_records import MapRecordGuard
from kproxy.cluster.owned_shards import OwnedShards
from kproxy.cluster.rebuild import wipe
from kproxy.cluster.remote_cleanup import RemoteQueueCleanup
from kproxy.common.errors import CannotStart
from kproxy.common.progress import Progress
from kproxy.config.server import Config
from kproxy.log.disk_space import DiskSpace
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.loop.pace import Pace, slices
from kproxy.loop.pulse import pulse
from kproxy.loop.threads import on_disk
from kproxy.metadata.cluster_map import (
    BadMap,
    ClusterMap,
    Owner,
    cluster_record,
    gone_records,
    node_record,
    shard_record,
)
from kproxy.metadata.cluster_view import check_identity, new_cluster_id
from kproxy.metadata.levels import Level
from kproxy.protocol.responses import Broker
from kproxy.store.rocks import RocksKv, RowsFailed
from kproxy.upstream.link import CALL, DataLink
from kproxy.upstream.settings import Upstream
from kproxy.upstream.topic_tailer import Record, TopicTailer
from kproxy.upstream.topics import ClusterRefused
from kproxy.virtual.levels import NEWEST, OLDEST

_log = structlog.get_logger()

_FLUSH_S = 30.0
_FLUSH_LOOK_S = 0.5
_SAY_AGAIN_S = 2.0
_KEPT_SHARE = 0.9  # the part of the time that tombstones are kept: clocks of machines differ
_RECORDS = 200  # records of the queues topic, taken in in one piece
# The part of the memory for rows: a worker looks up mostly what it serves itself
_CATALOGUE_SHARE = 2
_DAMAGED = "DAMAGED"
"""A file beside rows that are not used any more."""


def _catalogue_rows(path: Path, cache_bytes: int) -> RocksKv:
    """Open the catalogue's rows; empty ones where they are damaged: the topic has all of it."""
    if not (path / _DAMAGED).exists():
        try:
            return RocksKv(path, cache_bytes)
        except RowsFailed as error:
            _log.warning("catalogue_damaged", reason=str(error))
    wipe(path)
    return RocksKv(path, cache_bytes)


class ClusterNode:
    """A worker's state beside its shards: the map, the catalogue, its name in both."""

    def __init__(
        self,
        config: Config,
        upstream: Upstream,
        address: tuple[str, int],
        kept_ms: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take `kept_ms`, for which the queues topic keeps its tombstones."""
        self.config = config
        self.clock = clock
        self.upstream = upstream
        self.address = address
        self.level = Level(OLDEST)  # until the map says more
        self.map = ClusterMap(config.shards)
        self.shards = OwnedShards(config.shards, config.data_dir)
        self.disk_space = DiskSpace(config.data_dir, config.disk_free_bytes_min)
        self.disk_space.look()  # opening writes, too
        cached = config.rows_cache_bytes // _CATALOGUE_SHARE
        self.rows = _catalogue_rows(config.data_dir / "queues", cached)
        self.cache = CatalogueCache(self.rows, config.shards, self.shards.serving)
        kept_ms = int(kept_ms * _KEPT_SHARE)
        if self.cache.has_missed(self.clock.now_ms(), kept_ms):
            _log.info("catalogue_read_again", hint="it is older than the topic's tombstones")
            self.cache.begin_again()
        self.link = DataLink(upstream, config, self.level, clock)
        self.progress = Progress()
        self.addresses = config.addresses
        self.map_records = MapRecordGuard(self.map, self.link.publish_map, self.addresses)
        self.catalogue_barrier = CatalogueBarrier(
            self.link.queues_end, lambda: self.cache.next_offset
        )
        self.shards.settle = self.catalogue_barrier.wait
        self.remote_cleanup = RemoteQueueCleanup(
            config.shards, self.shards.all, self.cache, self.catalogue_barrier.wait
        )
        self.cache.gone = self.remote_cleanup.queue_gone
        self.cache.reconfigured = self.remote_cleanup.settings_changed
        self.command_router: CommandRouter
        self.me: Broker | None = None
        self.failed = anyio.Event()
        self.reason = ""
        self._map_changed = anyio.Event()
        self._follower = TopicTailer(
            upstream,
            {upstream.partitions: 0, upstream.queues: self.cache.next_offset},
            self._take,
            lambda topic: self.cache.begin_again(),
            self.fail,
            clock,
        )
        self.catalogue_reload = CatalogueReload(
            self.cache,
            partial(self._follower.again, upstream.queues),
            self.catalogue_barrier.wait,
            kept_ms,
            clock.now_ms,
        )

    def fail(self, reason: str) -> None:
        """Stop this worker, which cannot go on; `reason` is one line for a person."""
        self.reason = reason
        self.failed.set()

    # -- the topics that every worker follows

    async def start(self) -> None:
        """Read the map and the catalogue to their ends, and take a place in the map."""
        # A producer takes up to a second over the first record of a topic: not a client's second.
        self.link.publish_queue(outcome_key(0, self.link.writer), None)
        began_ms = self.clock.now_ms()
        self._follower.start()
        await self._until(self._follower.caught_up.is_set)
        self.cache.is_current(began_ms)
        await self._until(lambda: self.map.cluster_id is not None, self._name_cluster)
        assert self.map.cluster_id is not None
        try:
            check_identity(self.config.data_dir, self.map.cluster_id, self.config.shards)
        except (ValueError, OSError) as error:
            raise CannotStart(f"cannot use --data-dir {self.config.data_dir}: {error}") from error
        await self._until(lambda: self._place() is not None, self._take_place)
        self.me = me = self._place()
        assert me is not None
        known = self.map.addresses.get(me.node_id, {})
        if self.map.levels.get(me.node_id) != NEWEST or known != self.addresses:
            self.link.publish_map(*node_record(me, addresses=self.addresses))
        for node in self._places()[1:]:  # said by this worker, and overtaken by another's record
            for key, value in gone_records(node.node_id):
                self.link.publish_map(key, value)
        self.map_records.say_again(me)

    async def _until(
        self, done: Callable[[], bool], attempt: Callable[[], None] | None = None
    ) -> None:
        while not done():
            if self.failed.is_set():
                raise ClusterRefused(self.reason)
            if attempt is not None:
                attempt()
            with anyio.move_on_after(0.1 if attempt is None else 1.0):
                await self.map_changed()

    async def map_changed(self) -> None:
        """Wait for the next record of the partitions topic."""
        await self._map_changed.wait()

    def _name_cluster(self) -> None:
        self.link.publish_map(*cluster_record(new_cluster_id(), self.config.shards, NEWEST))

    def _place(self) -> Broker | None:
        return next(iter(self._places()), None)

    def _places(self) -> list[Broker]:
        """Return the nodes that have this worker's address, the one that is its own first."""
        ours = [n for n in self.map.nodes.values() if (n.host, n.port) == self.address]
        return sorted(ours, key=lambda node: -node.node_id)

    def _take_place(self) -> None:
        me = Broker(self.map.free_node_id(), *self.address)
        self.link.publish_map(*node_record(me, addresses=self.addresses))

    async def _take(self, records: list[Record]) -> None:
        queues = []
        for record in records:
            if record.topic == self.upstream.queues:
                queues.append(record)
                if record.key[:1] == CALL:
                    self.link.called(record.key, record.value)
            else:
                self._take_map(record.key, record.value)
        pace = Pace()
        for some in slices(queues, _RECORDS):
            self._take_queues(some)
            await pace.step()

    def _take_queues(self, records: list[Record]) -> None:
        for name in self.cache.apply(records):
            home = self.shards.serving_name(name)
            if home is not None:
                self.command_router.announcer.say_again(home, name)
        self.catalogue_barrier.moved()
        for counter, values in self.cache.outcomes(records, self.link.writer):
            self.command_router.published(counter, values)

    def _take_map(self, key: bytes, value: bytes | None) -> None:
        self.map_records.heard(key, value)
        try:
            self.map.apply(key, value)
        except BadMap as error:
            self.fail(str(error))
            return
        if self.me is not None and self.map.nodes.get(self.me.node_id, self.me) != self.me:
            self.fail("it was away for so long that its node id is another's now: start it again")
        self.level.value = self.map.level
        self._tell_claim(key)
        self._map_changed.set()
        self._map_changed = anyio.Event()

    def _tell_claim(self, key: bytes) -> None:
        kind, _, name = key.decode(errors="replace").partition(":")
        if kind == "shard" and name.isdecimal() and int(name) < len(self.map.owners):
            self.link.claimed(int(name), self.map.owners[int(name)].claim)

    def announce(self, index: int, claim: int) -> None:
        """Publish that this worker serves a shard since its claim."""
        assert self.me is not None
        owner = Owner(self.me.node_id, claim)
        key, value = shard_record(index, owner)
        self.map.apply(key, value)
        self.link.publish_map(key, value)
        self.link.claimed(index, claim)

    async def say_again_now_and_then(self) -> None:
        assert self.me is not None
        while True:
            await pulse(_SAY_AGAIN_S)
            self.map_records.say_again(self.me)

    def context(self, tasks: TaskGroup) -> ClusterContext:
        return ClusterContext(
            link=self.link,
            shards=self.config.shards,
            cache=self.cache,
            serving=self.shards.serving,
            settle=self.catalogue_barrier.wait,
            tasks=tasks,
            level=self.level,
        )

    async def flush_now_and_then(self) -> None:
        """Put the catalogue on disk where much has changed, or a while after it has."""
        kv, most = self.rows, self.config.rows_flush_bytes // _CATALOGUE_SHARE
        flushed_at = self.clock.monotonic()
        while True:
            await pulse(_FLUSH_LOOK_S)
            await on_disk(self.disk_space.look)  # no shard may be served here
            if kv.damage.seen:
                await on_disk((self.config.data_dir / "queues" / _DAMAGED).touch)
                self.fail("its catalogue is damaged on the disk: the next start reads it again")
                return
            if kv.unflushed_bytes() > most or self.clock.monotonic() - flushed_at > _FLUSH_S:
                kv.begin_flush()
                await on_disk(kv.finish_flush)
                flushed_at = self.clock.monotonic()

    async def close(self) -> None:
        await to_thread.run_sync(self._follower.close)
        await self.link.close()
        await to_thread.run_sync(self._close_rows)

    def _close_rows(self) -> None:
        self.rows.flush()
        self.rows.close()
