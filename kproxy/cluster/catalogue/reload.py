"""A reload of the catalogue for a worker that stood still for longer than tombstones are kept.

The worker's machine slept, or the cluster was away, and Kafka has compacted tombstones that the
worker never read. The worker notes beside the catalogue the time at which it had read everything.
If that time is too long ago, it reads all of the queues topic again. Requests are answered from the
cached catalogue meanwhile.
"""

from collections.abc import Awaitable, Callable

import structlog

from kproxy.cluster.catalogue.cache import CatalogueCache
from kproxy.common.errors import KafkaError
from kproxy.loop.pulse import pulse

_log = structlog.get_logger()

_PERIOD_S = 60.0

Again = Callable[[Callable[[], None]], Awaitable[None]]
"""Have the topic delivered from its start on, once what is given was called."""


class CatalogueReload:
    """Notes how current the catalogue is; `run` until cancelled."""

    def __init__(
        self,
        cache: CatalogueCache,
        again: Again,
        settle: Callable[[], Awaitable[None]],
        kept_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Take `settle`, which waits until the cache is as new as the topic, and `kept_ms` of
        tombstones.
        """
        self._cache = cache
        self._again = again
        self._settle = settle
        self._kept_ms = kept_ms
        self._now_ms = now_ms
        self._began_ms = 0

    async def run(self) -> None:
        while True:
            await self.round()
            await pulse(_PERIOD_S)

    async def round(self) -> None:
        """Note as of when all is cached, where it is; else the next round does."""
        cache, asked_ms = self._cache, self._now_ms()
        try:
            if not cache.reading_again and cache.has_missed(asked_ms, self._kept_ms):
                _log.warning("catalogue_read_again", hint="it is older than the topic's tombstones")
                self._began_ms = asked_ms
                await self._again(cache.read_again)
            await self._settle()
        except KafkaError as error:
            _log.debug("catalogue_not_current", reason=str(error))
            return
        if cache.reading_again:
            await cache.drop_unheard()
            asked_ms = self._began_ms
        cache.is_current(asked_ms)
