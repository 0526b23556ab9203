"""Announces in the queues topic what is set of the groups whose shards are served here.

A new owner compares what its shards have with what the topic said last, and says what differs: so
nothing has to be noted of what an earlier owner did not get to say.
"""

import asyncio

from kproxy.cluster.announcer import ClusterContext, serves
from kproxy.cluster.catalogue_cache import Tombstone
from kproxy.cluster.group_catalogue import announced_key, truth_of
from kproxy.loop.pace import scanned
from kproxy.shard.shard import Shard
from kproxy.virtual import rows
from kproxy.virtual.group_config_rows import decode_group_configs
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.row_kinds import CatalogueRow, RowKind

_LOST_S = 30.0


class GroupAnnouncer:
    """Puts announcements of groups in the queues topic."""

    def __init__(self, context: ClusterContext) -> None:
        self._link = context.link
        self._shards = context.shards
        self._groups = context.cache.groups
        self._tasks = context.tasks
        self._unsure: dict[str, tuple[Shard, int, float]] = {}  # claim, and since when
        self._to_compare: dict[int, tuple[Shard, int]] = {}
        self._comparing = False
        self._groups.say_again = self.announce

    def announce(self, shard: Shard, group: str) -> None:
        """Tell all workers what is set of a group."""
        said = shard, shard.claim_offset, asyncio.get_running_loop().time()

        def delivered() -> None:
            if self._unsure.get(group) is said:
                del self._unsure[group]

        self._unsure[group] = said
        self._groups.note(group)
        truth = truth_of(shard, group)
        if truth is None:
            header = Tombstone(shard.applied_through.next_offset - 1).header()
            self._link.publish_queue(announced_key(group), None, delivered, header)
        else:
            self._link.publish_queue(announced_key(group), truth.encode(), delivered)

    def say_lost(self) -> None:
        """Say again what has not reached the topic in time."""
        late = asyncio.get_running_loop().time() - _LOST_S
        for group, (shard, claim, since) in list(self._unsure.items()):
            if since < late:
                del self._unsure[group]
                if serves(shard, claim):
                    self.announce(shard, group)

    async def take_up(self, shard: Shard, claim: int) -> None:
        """Say what the topic has otherwise than a shard that is served from now on."""
        async for found in scanned(shard.kv.scan, *RowKind.GROUP_CONFIG.range()):
            for row, value in found:
                group = rows.name_of(row)
                if not serves(shard, claim):
                    return
                if not self._groups.heard(group, decode_group_configs(value)):
                    self.announce(shard, group)
        self._to_compare[shard.shard] = shard, claim
        if not self._comparing:
            self._comparing = True
            self._tasks.start_soon(self._compare)

    async def _compare(self) -> None:
        """Of which groups nothing is set any more: one walk for all shards that wait for it."""
        while self._to_compare:
            homes, self._to_compare = self._to_compare, {}
            async for found in scanned(self._groups.kv.scan, *CatalogueRow.GROUP.range()):
                for row, _ in found:
                    group = rows.name_of(row)
                    shard, claim = homes.get(shard_of(group, self._shards), (None, 0))
                    if shard is not None and serves(shard, claim):
                        if truth_of(shard, group) is None:
                            self.announce(shard, group)
        self._comparing = False
