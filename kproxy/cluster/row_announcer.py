"""The announcer of rows that all workers know, for the shards served here, in the queues topic.

A new owner compares what its shards have with what the topic said last, and announces the
difference. So nothing has to be noted of announcements that an earlier owner left out.
"""

import asyncio
from collections.abc import Callable

from kproxy.cluster.announcer import ClusterContext, Unsure, serves, take_lost
from kproxy.cluster.catalogue.cache import Tombstone
from kproxy.cluster.catalogue.rows import RowCatalogue
from kproxy.loop.pace import scanned
from kproxy.shard.shard import Shard
from kproxy.virtual.rows import queues as rows


class RowAnnouncer:
    """An announcer that puts one kind of rows in the queues topic."""

    def __init__(self, context: ClusterContext, catalogue: RowCatalogue) -> None:
        self._link = context.link
        self._shards = context.shards
        self._catalogue = catalogue
        self._subject = catalogue.subject
        self._tasks = context.tasks
        self._unsure: Unsure = {}
        self._to_compare: dict[int, tuple[Shard, int]] = {}
        self._comparing = False
        catalogue.say_again = self.announce

    def announce(self, shard: Shard, name: str, then: Callable[[], None] | None = None) -> None:
        """Tell all workers of a row, `then` go on: it is in the topic."""
        said = shard, shard.claim_offset, asyncio.get_running_loop().time()

        def delivered() -> None:
            if self._unsure.get(name) is said:
                del self._unsure[name]
            if then is not None:
                then()

        self._unsure[name] = said
        self._catalogue.note(name)
        key, truth = self._subject.key(name), self._subject.truth(shard, name)
        if truth is None:
            header = Tombstone(shard.applied_through.next_offset - 1).header()
            self._link.publish_queue(key, None, delivered, header)
        else:
            self._link.publish_queue(key, truth.encode(), delivered)

    def say_lost(self) -> None:
        """Say again what has not reached the topic in time."""
        for name, shard, claim in take_lost(self._unsure):
            if serves(shard, claim):
                self.announce(shard, name)

    async def take_up(self, shard: Shard, claim: int) -> None:
        """Say what the topic has otherwise than a shard that is served from now on."""
        async for found in scanned(shard.kv.scan, *self._subject.row.range()):
            for row, value in found:
                name = rows.name_of(row)
                if not serves(shard, claim):
                    return
                if not self._catalogue.heard(name, self._subject.decode(value)):
                    self.announce(shard, name)
        self._to_compare[shard.shard] = shard, claim
        if not self._comparing:
            self._comparing = True
            self._tasks.start_soon(self._compare)

    async def _compare(self) -> None:
        """Announce rows that do not exist any more: one walk for all shards that wait for it."""
        subject = self._subject
        while self._to_compare:
            homes, self._to_compare = self._to_compare, {}
            async for found in scanned(self._catalogue.kv.scan, *subject.announced.range()):
                for row, _ in found:
                    name = rows.name_of(row)
                    home = subject.home(name, self._shards)
                    shard, claim = homes.get(home, (None, 0))
                    if shard is not None and serves(shard, claim):
                        if subject.truth(shard, name) is None:
                            self.announce(shard, name)
        self._comparing = False
