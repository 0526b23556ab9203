"""The upgrade of a cluster's level.

Kafka's group says which workers are alive. Each worker publishes the levels it knows beside its
address. An operator finalizes a level that every live worker knows. The record that finalizes it
is one that workers of releases before levels refuse with one clear line.
"""

from collections.abc import Awaitable, Callable

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.metadata.cluster_map import ClusterMap, cluster_record
from kproxy.upstream.membership import live_members
from kproxy.upstream.settings import Upstream
from kproxy.virtual.levels import OLDEST

_WAIT_S = 10.0


class ClusterUpgrades:
    """`Upgrades` of all workers on one cluster."""

    def __init__(
        self,
        upstream: Upstream,
        map_: ClusterMap,
        publish: Callable[[bytes, bytes], None],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """Take `publish`, which puts a record in the partitions topic; `changed` waits for the map
        to change.
        """
        self._upstream = upstream
        self._map = map_
        self._publish = publish
        self._changed = changed

    async def behind(self, level: int) -> list[str]:
        live = await self.live()
        levels = {
            f"{node.host}:{node.port}": self._map.levels.get(node.node_id, OLDEST)
            for node in self._map.nodes.values()
        }
        return sorted(address for address in live if levels.get(address, OLDEST) < level)

    async def live(self) -> list[str]:
        """Return the addresses of the members of Kafka's group. Raises KafkaError."""
        return await live_members(self._upstream)

    async def finalize(self, level: int) -> None:
        assert self._map.cluster_id is not None
        self._publish(*cluster_record(self._map.cluster_id, len(self._map.owners), level))
        with anyio.move_on_after(_WAIT_S):
            while self._map.level < level:
                await self._changed()
            return
        raise KafkaError(Code.REQUEST_TIMED_OUT, "the cluster has not taken the new level in time")
