"""All routes whose sources are in shards that this worker serves.

A route takes memory only while there is something to pass on. The fold tells which have something
(`State.routed`); where a shard is taken up, its routes are looked through once.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from kproxy.common.counters import Counters
from kproxy.common.errors import KafkaError
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.loop.pace import Pace, scanned, slices
from kproxy.metadata.catalogue import Catalogue
from kproxy.metadata.levels import Level
from kproxy.routes.passage import Passage
from kproxy.routes.redrive_pace import RedrivePace
from kproxy.routes.services import RouteServices
from kproxy.security.behalf import Anybody, Behalf
from kproxy.shard.appends import Asks
from kproxy.shard.per_shard import Claim, PerShard
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.routes import ForgetLanded
from kproxy.virtual.folds.redrives import redrive_of
from kproxy.virtual.levels import FORGETS_FROM
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.routes import ROUTE_PARTS, ROUTES, decode_route, is_redrive
from kproxy.virtual.rows.shares import FORWARDED
from kproxy.virtual.types import PartitionKey, QueueId

_AT_ONCE = 32  # routes of one shard
_LOOKED_AT_AT_ONCE = 20  # sources: each may have a hundred routes

_FORGET_LOOK_S = 3600.0
_FORGET_MS = 24 * 3600 * 1000  # by then nothing late can come of a route that is gone
_FORGET_MAX = 500  # in one command
_FORGET_FORWARDED_MAX = 20  # their keys may be long
_GONE_MAX = 10_000

RouteKey = tuple[PartitionKey, QueueId]


class _ShardRoutes:
    """The routes of one shard that have something to pass on."""

    def __init__(self, shard: Shard, shared: RouteServices) -> None:
        self._shard = shard
        self._claim = Claim(shard)
        self._shared = shared
        self._tasks: TaskGroup
        self._running: dict[RouteKey, Passage] = {}
        self._waiting: deque[RouteKey] = deque()
        self._known: set[RouteKey] = set()  # routes that wait
        self._paces: dict[RouteKey, RedrivePace] = {}  # redrives run or wait
        self.gone_ms: dict[bytes, int] = {}
        """FORWARDED rows of sources that are gone, and when that was seen first."""

    def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._shard.on_routed = self._changed
        tasks.start_soon(self._take_up)

    def waits(self, key: RouteKey) -> str | None:
        """Return why a route cannot go on, or None."""
        running = self._running.get(key)
        return None if running is None else running.waits

    async def _take_up(self) -> None:
        """Look through all routes there are: each may have something."""
        async for found in scanned(self._shard.kv.scan, *RowKind.ROUTE.range()):
            if not self._claim.serves:
                return
            for key, data in found:
                if self._has_something(ROUTES.parts(key), data):
                    self._begin(ROUTES.parts(key))
        self._changed()

    def _has_something(self, key: RouteKey, data: bytes) -> bool:
        """Return whether a route may have something to do."""
        (source, definer), route = key, decode_route(data)
        row = self._shard.state.partition(source)
        if is_redrive(definer):
            return not route.is_over
        if row is None or not route.landed == route.cut == row.next_offset:
            return True
        kept = row.log_start < row.next_offset  # perhaps what was to be removed
        return route.ends is not None or (kept and definer == source[0])

    def _changed(self) -> None:
        """Look at the sources that have changed, in the turn of the loop that has applied it."""
        state = self._shard.state
        changed, state.routed = state.routed, set()
        if not self._claim.serves:
            return
        if len(changed) > _LOOKED_AT_AT_ONCE:
            self._tasks.start_soon(self._look_at_many, changed)
            return
        for source in changed:
            self._look_at(source)

    async def _look_at_many(self, sources: set[PartitionKey]) -> None:
        """Look at as many sources as a queue has partitions: others have their turn meanwhile."""
        pace = Pace()
        for source in sources:
            if not self._claim.serves:
                return
            self._look_at(source)
            await pace.rest()

    def _look_at(self, source: PartitionKey) -> None:
        for key, data in self._shard.state.kv.walk(*ROUTES.range(source)):
            route = ROUTES.parts(key)
            if not is_redrive(route[1]) or self._has_something(route, data):
                self._begin(route)

    def _begin(self, key: RouteKey) -> None:
        running = self._running.get(key)
        if running is not None:
            running.poke()
        elif key not in self._known:
            self._known.add(key)
            self._waiting.append(key)
            self._start_some()
            if self._waiting:
                self._make_way()

    def _make_way(self) -> None:
        """Make an idle route, which only waits for news, give up its turn to those that wait."""
        idle = next((one for one in self._running.values() if one.idle), None)
        if idle is not None:
            idle.poke()

    def _start_some(self) -> None:
        while self._waiting and len(self._running) < _AT_ONCE:
            key = self._waiting.popleft()
            self._known.discard(key)
            pace = self._paces.setdefault(key, RedrivePace()) if is_redrive(key[1]) else None
            passage = Passage(self._shard, *key, self._shared, self._others_wait, pace)
            self._running[key] = passage
            self._tasks.start_soon(self._run, key, passage)

    def _others_wait(self) -> bool:
        return bool(self._waiting)

    async def _run(self, key: RouteKey, passage: Passage) -> None:
        again = await passage.run()
        del self._running[key]
        if not self._claim.serves:
            return
        if again:
            self._begin(key)
        else:
            self._paces.pop(key, None)
        self._start_some()


class Passages:
    """The passages of all shards that this worker serves."""

    def __init__(
        self, serving: Callable[[], list[Shard]], asks: Asks, catalogue: Catalogue[Ticket],
        config: Config, counters: Counters, clock: Clock, level: Level | None = None,
        behalf: Behalf | None = None,
    ) -> None:  # fmt: skip
        self._serving = serving
        self._shared = shared = RouteServices(
            asks, catalogue, config, counters, clock, level or Level(), behalf or Anybody()
        )
        self._routes = PerShard(serving, lambda shard: _ShardRoutes(shard, shared))

    def waits(self, shard: Shard, source: PartitionKey, definer: QueueId) -> str | None:
        """Return why this worker passes nothing on by a route; None: it does, or need not."""
        known = self._routes.known(shard)
        return None if known is None else known.waits((source, definer))

    async def run(self) -> None:
        """Pass on what the shards have that are served here."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._forget_now_and_then)
            await self._routes.run(lambda routes, tasks: routes.start(tasks))

    async def _forget_now_and_then(self) -> None:
        while True:
            await anyio.sleep(_FORGET_LOOK_S)
            for shard in self._serving():
                with suppress(KafkaError):  # it may be given up while its rows are looked at
                    await self.forget(shard)

    async def forget(self, shard: Shard) -> None:
        """Let go of what a shard knows of sources and definers that are gone for long."""
        before_ms = self._shared.clock.now_ms() - _FORGET_MS
        gone = []
        async for found in scanned(shard.kv.scan, *RowKind.ROUTE_LANDED.range()):
            for key, data in found:
                definer, source = ROUTE_PARTS.parts(key)
                ended = not self._goes_on(source[0], definer)
                if ended and ROUTE_PARTS.decode(data).used_ms <= before_ms:
                    gone.append((definer, source))
        for some in slices(gone, _FORGET_MAX):
            if not shard.serving:
                return
            with suppress(KafkaError):
                await shard.append([ForgetLanded(some, before_ms).envelope()]).wait()
        if self._shared.level.reaches(FORGETS_FROM):
            await self._forget_forwarded(shard)

    def _goes_on(self, queue_id: QueueId, definer: QueueId) -> bool:
        """Return whether there may still be such a route out of a queue."""
        queue = self._shared.catalogue.find_id(queue_id)
        if queue is not None and is_redrive(definer):
            return redrive_of(queue_id, queue.configs) == definer
        return queue is not None and self._shared.catalogue.find_id(definer) is not None

    async def _forget_forwarded(self, shard: Shard) -> None:
        """Let go of how far dead letters were taken of sources that were gone a day ago as well."""
        now_ms, find, gone = self._shared.clock.now_ms(), self._shared.catalogue.find_id, []
        routes, seen = self._routes.of(shard), dict[bytes, int]()
        async for found in scanned(shard.kv.scan, *RowKind.FORWARDED.range()):
            for key, _ in found:
                if find(FORWARDED.parts(key)[2][0]) is None and len(seen) < _GONE_MAX:
                    seen[key] = since_ms = routes.gone_ms.get(key, now_ms)
                    if since_ms <= now_ms - _FORGET_MS:
                        gone.append(key)
        routes.gone_ms = seen
        for some in slices(gone, _FORGET_FORWARDED_MAX):
            if not shard.serving:
                return
            with suppress(KafkaError):
                await shard.append([ForgetLanded([], now_ms, some).envelope()]).wait()
