"""The removal of workers that never came back from the map, so that the map stays small."""

from collections.abc import Awaitable, Callable, Collection

import anyio
import structlog

from kproxy.common.errors import KafkaError
from kproxy.loop.pulse import pulse
from kproxy.metadata.cluster_map import ClusterMap, gone_records

_log = structlog.get_logger()

_LOOK_S = 600.0
_AWAY_S = 3600.0


class DepartedNodes:
    """A task that removes nodes that serve nothing and left Kafka's group at least an hour ago.

    A node that comes back all the same sees its removal, and publishes its address again.
    """

    def __init__(
        self,
        map_: ClusterMap,
        live: Callable[[], Awaitable[Collection[str]]],
        publish: Callable[[bytes, bytes | None], None],
        duty: Callable[[], bool],
    ) -> None:
        """Take `live`, the addresses of the group's members, and `duty`: whether this worker is to
        look.
        """
        self._map = map_
        self._live = live
        self._publish = publish
        self._duty = duty
        self._away: dict[int, float] = {}  # since when

    async def run(self) -> None:
        while True:
            await pulse(_LOOK_S)
            if self._duty():
                await self.look()
            else:
                self._away.clear()

    async def look(self) -> None:
        try:
            live = await self._live()
        except KafkaError as error:
            _log.debug("nodes_not_looked_at", reason=error.message)
            return
        now = anyio.current_time()
        owners = {owner.node_id for owner in self._map.owners}
        there = {i for i, n in self._map.nodes.items() if f"{n.host}:{n.port}" in live} | owners
        since = {i: self._away.get(i, now) for i in self._map.nodes if live and i not in there}
        self._away = since
        for node_id, away_since in since.items():
            if now - away_since >= _AWAY_S:
                _log.info("node_forgotten", node_id=node_id)
                for key, value in gone_records(node_id):
                    self._publish(key, value)
