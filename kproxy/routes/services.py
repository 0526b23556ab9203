"""The services that all routes of a worker share."""

from weakref import WeakSet

import structlog
from anyio import CapacityLimiter

from kproxy.common.counters import Counters
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.metadata.catalogue import Catalogue
from kproxy.metadata.levels import Level
from kproxy.routes.cutting import HELD_BYTES_MAX, Gathered
from kproxy.routes.reading import KEPT_RECORDS_MAX, Kept
from kproxy.security.behalf import Behalf
from kproxy.shard.appends import Asks
from kproxy.virtual.types import QueueId

_log = structlog.get_logger()

GATHERED_BYTES_MAX = 64 << 20
"""The bytes that all passages of a worker gather; beyond it each takes a little."""
_GATHERED_LEAST = 256 << 10
_READERS = 2
_SAY_AGAIN_S = 60.0


class RouteServices:
    """The services that all passages of a worker share."""

    def __init__(
        self, asks: Asks, catalogue: Catalogue[Ticket], config: Config, counters: Counters,
        clock: Clock, level: Level, behalf: Behalf,
    ) -> None:  # fmt: skip
        self.behalf = behalf
        self.asks = asks
        self.catalogue = catalogue
        self.check_ms = config.retention_check_ms
        self.log_bytes_max = config.log_bytes_max
        self.counters = counters
        self.clock = clock
        self.level = level
        self.readers = CapacityLimiter(_READERS)  # threads: a record may have 32 MiB
        self.kept: WeakSet[Kept] = WeakSet()
        self._gathered: WeakSet[Gathered] = WeakSet()
        self._said_s: dict[tuple[str, QueueId], float] = {}

    def room_for(self, kept: Kept) -> int:
        """Return how many records one passage may keep beside what others do."""
        return max(0, KEPT_RECORDS_MAX - sum(one.size for one in self.kept if one is not kept))

    def gathers(self, gathered: Gathered) -> None:
        """Count what a passage gathers, for as long as it is there."""
        self._gathered.add(gathered)

    @property
    def held_max(self) -> int:
        """The bytes that the next cut may take in memory: with others it is smaller, none waits."""
        left = GATHERED_BYTES_MAX - sum(one.held for one in self._gathered)
        return max(_GATHERED_LEAST, min(HELD_BYTES_MAX, left // 4))

    def warn(self, event: str, definer: QueueId, **values: object) -> None:
        """Say something that may be so very often."""
        now, key = self.clock.monotonic(), (event, definer)
        if now - self._said_s.get(key, -_SAY_AGAIN_S) >= _SAY_AGAIN_S:
            if len(self._said_s) > 1000:
                self._said_s.clear()
            self._said_s[key] = now
            queue = self.catalogue.find_id(definer)
            _log.warning(event, queue=queue and queue.name, **values)
