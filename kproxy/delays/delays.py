"""Delays of all shards that this worker serves."""

from collections.abc import Callable
from typing import NamedTuple

from anyio import CapacityLimiter

from kproxy.config.server import Config
from kproxy.delays.looker import Looker, Means, Queues
from kproxy.loop.clock import Clock
from kproxy.shard.per_shard import PerShard
from kproxy.shard.shard import Shard
from kproxy.virtual.rows.delays import waiting_in
from kproxy.virtual.types import PartitionKey

_REMEMBERED_MAX = 10_000
_ORDER_KEPT_MS = 3_600_000
"""The most by which the clock is put back so that later records still wait for earlier ones."""


class _Last(NamedTuple):
    """The last waiting record of a partition with this fixed delay, as known by this claim."""

    delay_ms: int
    due_ms: int
    claim: int


class Delays:
    """The due times of records, and their delivery."""

    def __init__(
        self, serving: Callable[[], list[Shard]], queues: Queues, config: Config, clock: Clock
    ) -> None:
        self._means = means = Means(queues, config, clock)
        self._lookers = PerShard(serving, lambda shard: Looker(shard, means))
        self._last: dict[PartitionKey, _Last] = {}

    @property
    def batch_bytes_max(self) -> int:
        """The most bytes that waiting records of one batch have together."""
        return self._means.most

    def due_ms(self, shard: Shard, key: PartitionKey, delay_ms: int, now_ms: int) -> int:
        """Return when a batch that waits for this long is due: not before earlier ones."""
        known, claim = self._last.get(key), shard.claim_offset
        if known is None or (known.delay_ms, known.claim) != (delay_ms, claim):
            waiting = waiting_in(shard.state.get, key)  # another owner may have been here
            known = _Last(waiting.delay_ms, waiting.due_ms, claim)
        due_ms = now_ms + delay_ms
        if known.delay_ms == delay_ms and due_ms < known.due_ms <= due_ms + _ORDER_KEPT_MS:
            due_ms = known.due_ms
        if len(self._last) >= _REMEMBERED_MAX:  # the rows know of what was applied
            for old in list(self._last)[: _REMEMBERED_MAX // 2]:
                del self._last[old]
        self._last.pop(key, None)
        self._last[key] = _Last(delay_ms, due_ms, claim)
        return due_ms

    @property
    def readers(self) -> CapacityLimiter:
        """The threads that read what waits."""
        return self._means.readers

    @property
    def late_ms(self) -> int:
        """The milliseconds that the next due record has been late, or 0."""
        due_ms = [one.next_ms for one in self._lookers.all() if one.next_ms]
        return max(0, self._means.clock.now_ms() - min(due_ms)) if due_ms else 0

    async def run(self) -> None:
        """Deliver what is due in the shards that are served here."""
        await self._lookers.run(lambda looker, tasks: tasks.start_soon(looker.run))
