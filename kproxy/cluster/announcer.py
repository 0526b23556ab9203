"""The announcer of the queues of the home shards served here, in the queues topic.

The owner of a shard announces three things: what it folds from its claim on, what an earlier owner
left unannounced, and corrections of wrong announcements. An announcement of an owner that lost its
shard holds only as of its log offset.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from anyio.abc import TaskGroup

from kproxy.cluster.catalogue.cache import CatalogueCache, Tombstone, announcement
from kproxy.common.errors import KafkaError
from kproxy.loop.pace import Pace, scanned, slices
from kproxy.metadata.levels import Level
from kproxy.shard.shard import Shard
from kproxy.upstream.link import DataLink
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import CatalogueRow, RowKind

_LOST_S = 30.0
_NOTED = 200  # in one piece


def serves(shard: Shard, claim: int) -> bool:
    """Whether a shard is still served by the claim that it was."""
    return shard.serving and shard.claim_offset == claim


Unsure = dict[str, tuple[Shard, int, float]]
"""The announcements that are not known to be in the topic: the claim of each, and since when."""


def take_lost(unsure: Unsure) -> list[tuple[str, Shard, int]]:
    """Take out what has not reached the topic in time."""
    late = asyncio.get_running_loop().time() - _LOST_S
    lost = [(name, shard, claim) for name, (shard, claim, since) in unsure.items() if since < late]
    for name, _, _ in lost:
        del unsure[name]
    return lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """A worker's link to the other workers, and its knowledge of them."""

    link: DataLink
    shards: int
    cache: CatalogueCache
    serving: Callable[[int], Shard | None]
    settle: Callable[[], Awaitable[None]]
    """Wait until the cache is as new as the topic."""
    tasks: TaskGroup
    level: Level


class Announcer:
    """An announcer that puts queues in the queues topic."""

    def __init__(self, context: ClusterContext) -> None:
        self._settle = context.settle
        self._link = context.link
        self._shards = context.shards
        self._cache = context.cache
        self._tasks = context.tasks
        self._to_note: list[str] = []
        self._unsure: Unsure = {}
        self._to_compare: dict[int, tuple[Shard, int]] = {}
        self._comparing = False

    def announce(
        self,
        shard: Shard,
        name: str,
        then: Callable[[], None] | None = None,
        gone: Tombstone | None = None,
    ) -> None:
        """Tell all workers what a queue of a home shard served here is now, `then` go on.

        `gone`: what is to be said where the name is nobody's; else that it is nobody's as of now.
        It is said as well where the name is to be another's, which is not ready.
        """
        key = rows.announce_key(name)
        mark = shard.state.get(key)
        queue = shard.state.queue(name)

        said = shard, shard.claim_offset, asyncio.get_running_loop().time()

        def delivered() -> None:
            if self._unsure.get(name) is said:
                del self._unsure[name]
            if mark is not None and shard.serving and shard.state.get(key) == mark:
                shard.state.put(key, None)
            if then is not None:
                then()

        if queue is not None and queue.partitions:
            self._link.publish_queue(rows.queue_key(name), announcement(queue), delivered)
        elif queue is None or gone is not None:
            as_of = shard.applied_through.next_offset - 1
            header = (gone or Tombstone(as_of, self._cache.held_id(name))).header()
            self._link.publish_queue(rows.queue_key(name), None, delivered, header)
        else:
            return
        self._unsure[name] = said
        self._note_soon(name)

    def say_lost(self) -> None:
        """Say again what has not reached the topic in time."""
        for name, shard, claim in take_lost(self._unsure):
            if serves(shard, claim):
                self.say_again(shard, name)
            else:
                self._cache.retract(name)

    def _note_soon(self, name: str) -> None:
        if not self._to_note:
            self._tasks.start_soon(self._note)
        self._to_note.append(name)

    async def _note(self) -> None:
        names, self._to_note = self._to_note, []
        pace = Pace()
        for some in slices(names, _NOTED):
            self._cache.note(some)
            await pace.step()

    def say_again(self, shard: Shard, name: str) -> None:
        """Announce a queue as it is; where it is not there yet, that no other has its name."""
        queue = shard.state.queue(name)
        if queue is None or queue.partitions:
            self.announce(shard, name)
            return
        held = self._cache.held_id(name)
        if held is not None and held != queue.queue_id:
            header = Tombstone(queue.created_at, held).header()
            self._link.publish_queue(rows.queue_key(name), None, None, header)

    # -- beginning to serve

    async def take_up(self, shard: Shard, claim: int) -> None:
        """Announce what changed before this worker served, unless the topic has it by now.

        A rebuilt copy does not say what changed: all that the topic has otherwise is announced.
        """
        said: set[str] = set()
        try:
            await self._settle()
            known = True
        except KafkaError:
            known = False
        async for found in scanned(self._cache.kv.scan, *CatalogueRow.DOUBT.range()):
            for row, _ in found:
                name = rows.name_of(row)
                if shard_of(name, self._shards) == shard.shard and serves(shard, claim):
                    self._say_once(shard, name, said)
        async for found in scanned(shard.kv.scan, *RowKind.ANNOUNCE.range()):
            for row, mark in found:
                if not serves(shard, claim):
                    return
                name = rows.name_of(row)
                if shard.state.get(row) != mark:
                    continue  # it was said meanwhile
                if known and self._cache.heard(name):
                    shard.state.put(row, None)
                else:
                    self._say_once(shard, name, said)
        if shard.state.get(rows.COMPARE_KEY) is not None:
            await self._compare(shard, claim, said)

    def _say_once(self, shard: Shard, name: str, said: set[str]) -> None:
        if name not in said:
            said.add(name)
            self.say_again(shard, name)

    async def _compare(self, shard: Shard, claim: int, said: set[str]) -> None:
        """Say what the topic has otherwise; what it has too much, with other shards' later."""
        async for found in scanned(shard.kv.scan, *RowKind.QUEUE.range()):
            for row, _ in found:
                name = rows.name_of(row)
                if not serves(shard, claim):
                    return
                if not self._cache.heard(name):
                    self._say_once(shard, name, said)
        self._to_compare[shard.shard] = shard, claim
        if not self._comparing:
            self._comparing = True
            self._tasks.start_soon(self._compare_cache)

    async def _compare_cache(self) -> None:
        """Say what is gone, of all shards that wait for it in one walk over the catalogue."""
        while self._to_compare:
            homes, self._to_compare = self._to_compare, {}
            async for found in scanned(self._cache.kv.scan, *CatalogueRow.QUEUE.range()):
                for row, _ in found:
                    name = rows.name_of(row)
                    shard, claim = homes.get(shard_of(name, self._shards), (None, 0))
                    if shard is not None and serves(shard, claim) and not self._cache.heard(name):
                        self.say_again(shard, name)
            for shard, claim in homes.values():
                if serves(shard, claim):
                    shard.commit({rows.COMPARE_KEY: None})
        self._comparing = False
