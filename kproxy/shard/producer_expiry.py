"""Has partitions forget idempotent producers that nobody has used for `producer_id_expiration_ms`.

The four used last are in a partition's row, and stay. The others have rows of their own (`k`), as
many as there are; the fold files a partition in an index (`4` rows) with the first of them. A look
at a partition goes over its producers in slices, appends a FORGET_PRODUCERS for those that were not
used since, and files the partition again, under the time at which the idlest of the others was
used; but one look follows another after `producer_id_expiration_check_interval_ms` at the earliest,
as often as Kafka looks.
"""

from collections.abc import Callable
from itertools import islice

import structlog
from anyio.lowlevel import checkpoint

from kproxy.common.counters import Counters
from kproxy.common.errors import KafkaError
from kproxy.config.server import Config
from kproxy.loop.pulse import pulse
from kproxy.shard.due_index import DueIndexScanner
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.producers import FORGOTTEN_MAX, ForgetProducers
from kproxy.virtual.rows import producers as producer_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

_PARTITIONS_AT_ONCE = 50
_LATE_MS = 24 * 3600 * 1000  # filed later than that from now: by a clock that was ahead


class ProducerExpiry(DueIndexScanner):
    """The looker of one shard's partitions; `run` until cancelled."""

    def __init__(
        self, shard: Shard, config: Config, now_ms: Callable[[], int], counters: Counters
    ) -> None:
        self._check_ms = config.producer_id_expiration_check_interval_ms
        super().__init__(shard, RowKind.PRODUCERS_DUE, _PARTITIONS_AT_ONCE, self._check_ms / 1000)
        self._kept_ms = config.producer_id_expiration_ms
        self._now_ms = now_ms
        self._counters = counters

    async def run(self) -> None:
        while True:
            await pulse(self._period_s)
            self._tell_forgotten()
            while self._shard.serving and await self.scan_once():
                await checkpoint()

    def _tell_forgotten(self) -> None:
        """Tell of producers that were forgotten by number: below level 8 there is no other way."""
        state, counters = self._shard.state, self._counters
        early, state.forgotten_early = state.forgotten_early, 0
        if early:
            counters.producers_forgotten_early += early
            _log.warning("producers_forgotten_early", shard=self._shard.shard, producers=early)

    async def scan_once(self) -> bool:
        """Look at some partitions that are due; whether there may be more."""
        now = self._now_ms()
        end = rows.producers_due_end(now - self._kept_ms)
        keys, more = self._next_due(end, rows.producers_due_end(now + _LATE_MS))
        for key in keys:
            again_ms = await self._look_at(*rows.producers_due_of(key), now)
            if again_ms is None:
                self._retry()
                return False
            partition = rows.producers_due_of(key)[1]
            changes: dict[bytes, bytes | None] = {key: None}
            row = self._shard.state.partition(partition)
            if row is not None and row.by_time:
                changes[rows.producers_due_key(again_ms, partition)] = b""
            self._shard.commit(changes)
        return more

    async def _look_at(self, filed_ms: int, key: PartitionKey, now: int) -> int | None:
        """Return the time to file a partition under again; None: its log takes nothing now.

        A producer without a known time, as an earlier kproxy wrote its row, counts as used when its
        partition was filed. After a rebuild, which cannot tell, it counts as used now.
        """
        before_ms = now - self._kept_ms
        oldest = now
        start, end = rows.producers_range(*key)
        while found := list(islice(self._shard.kv.scan(start, end), FORGOTTEN_MAX)):
            start = found[-1][0] + b"\0"
            idle = []
            for _, data in found:
                used_ms = producer_rows.used_ms_of(data)
                if (used_ms or filed_ms or now) <= before_ms:
                    idle.append((producer_rows.producer_id_of(data), used_ms))
                else:
                    oldest = min(oldest, used_ms or now)
            if idle and not await self._forget(key, idle):
                return None
            await checkpoint()
        return max(oldest, before_ms + self._check_ms)

    async def _forget(self, key: PartitionKey, idle: list[tuple[int, int]]) -> bool:
        """Whether the log has taken it."""
        try:
            (outcome,) = await self._shard.append([ForgetProducers(key, idle).envelope()]).wait()
        except KafkaError as error:
            _log.warning("producers_not_forgotten", shard=self._shard.shard, reason=error.message)
            return False
        self._counters.producers_forgotten += max(0, outcome.number)
        return True
