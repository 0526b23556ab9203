"""The deletion of queues that nobody has used for as long as `kproxy.expire.idle.ms` says.

An index (`6` rows) finds the queues that are due for a look. The fold files a queue there when it
is made or configured; queues without the setting are not in it. A look compares where the queue
ends with what the last one saw, asks who reads it, and files it again: four times in its idle time,
so it goes a quarter of that late at most. Once nobody has used it for so long the owner appends an
EXPIRE_QUEUE, with the end that it has seen. The fold looks once more (`virtual.folds.idle`): an
append, a commit or a transaction that came before the command keeps the queue.

Reads are no part of the log. They count from when this worker serves the shard: a restart or a
takeover begins anew, and so does a clock that jumps, for nobody knows then how long ago they were.
"""

from collections.abc import Callable

import anyio
import structlog
from anyio.lowlevel import checkpoint

from kproxy.common.counters import Counters
from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.shard.due_index import DueIndexScanner
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import ExpireQueue
from kproxy.virtual.rows.idle import IDLE, IDLE_DUE, WITH_RECORDS, Idle, idle_ms_of
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId

_log = structlog.get_logger()

_QUEUES_AT_ONCE = 200
_PAUSE = 50  # queues looked at in one turn of the loop
_LOOKS = 4  # in the time after which a queue goes
_LATE_MS = 24 * 3600 * 1000  # filed later than that from now: by a clock that was ahead
_JUMP_MS = 15_000  # by so much more or less than time has passed, between two looks
_LAST: PartitionKey = (QueueId(b"\xff" * 16), 0)


class IdleExpiry(DueIndexScanner):
    """The looker of one shard's queues; `run` until cancelled."""

    def __init__(
        self, shard: Shard, config: Config, now_ms: Callable[[], int], counters: Counters
    ) -> None:
        super().__init__(shard, RowKind.IDLE_DUE, _QUEUES_AT_ONCE, config.keeper_period_ms / 1000)
        self._now_ms = now_ms
        self._counters = counters
        self._claim = -1
        self._from_ms = 0  # the shard is served by this claim, by this clock, since then
        self._looked = (0, 0.0)  # when, by the clock (ms), and by one that does not jump (s)

    def _begin(self, now: int) -> None:
        """Note the time of a look; begin anew with a new claim, or where the clock has jumped."""
        (before, before_s), now_s = self._looked, anyio.current_time()
        jumped = abs(now - before - 1000 * (now_s - before_s)) > _JUMP_MS
        if jumped or self._claim != self._shard.claim_offset:
            self._claim, self._from_ms = self._shard.claim_offset, now
        self._looked = now, now_s

    async def scan_once(self) -> bool:
        """Look at some queues that are due; whether there may be more."""
        now, shard = self._now_ms(), self._shard
        self._begin(now)
        await self._note_used(now)
        due, more = self._next_due(IDLE_DUE.key(now, _LAST), IDLE_DUE.key(now + _LATE_MS, _LAST))
        # A setting that changes meanwhile files its queue under 0 again: that stays.
        changed: dict[bytes, bytes | None] = {
            key: None for key in due if not IDLE_DUE.parts(key)[0]
        }
        if changed:
            shard.commit(changed)
        expired: list[Envelope] = []
        filed: dict[bytes, bytes | None] = {}
        for number, key in enumerate(due, 1):
            self._look_at(key, now, expired, filed)
            if number % _PAUSE == 0:
                await checkpoint()
        if expired:
            try:
                outcomes = await shard.append(expired).wait()
            except KafkaError as error:
                _log.warning("queues_not_expired", queues=len(expired), reason=error.message)
                shard.commit(dict.fromkeys(changed, b""))
                self._retry()
                return False
            gone = sum(outcome.code == Code.NONE for outcome in outcomes)
            self._counters.queues_expired += gone
            _log.debug("queues_expired", shard=shard.shard, queues=gone)
        if filed:
            shard.commit(filed)
        return more

    async def _note_used(self, now: int) -> None:
        """Write down what was read since the last time: memory is not to grow with it."""
        used, self._shard.used = self._shard.used, set()
        changes: dict[bytes, bytes | None] = {}
        for number, key in enumerate(used, 1):
            known = IDLE.get(self._shard.kv.get, key)
            if known is not None:
                changes[IDLE.key(key)] = IDLE.encode(known._replace(since_ms=now))
            if number % _PAUSE == 0:
                self._shard.commit(changes)
                changes = {}
                await checkpoint()
        if changes:
            self._shard.commit(changes)

    def _look_at(
        self, due: bytes, now: int, expired: list[Envelope], filed: dict[bytes, bytes | None]
    ) -> None:
        state = self._shard.state
        filed_ms, key = IDLE_DUE.parts(due)
        if filed_ms:
            filed[due] = None
        known = IDLE.get(self._shard.kv.get, key)
        if filed_ms and (known is None or known.filed_ms != filed_ms):
            return  # it is filed elsewhere since
        queue, row = state.queue_by_id(key[0]), state.partition(key)
        idle_ms = -1 if queue is None else idle_ms_of(queue.configs)
        if queue is None or row is None or idle_ms < 0:
            filed[IDLE.key(key)] = None
            return
        since_ms = now if known is None else max(min(known.since_ms, now), self._from_ms)
        asked_since = anyio.current_time() - idle_ms / 1000
        if known is None or known.end != row.next_offset:
            since_ms = now
        elif self._shard.watchers.any_since(key, asked_since) or key in self._shard.used:
            since_ms = max(since_ms, now - idle_ms + idle_ms // _LOOKS)
        goes = row.log_start == row.next_offset or queue.configs.get(WITH_RECORDS) == "true"
        if since_ms + idle_ms <= now and goes:
            expired.append(ExpireQueue(key[0], row.next_offset, now).envelope())
        again_ms = now + min(idle_ms // _LOOKS, _LATE_MS)
        if since_ms + idle_ms > now:
            again_ms = min(again_ms, since_ms + idle_ms)
        filed[IDLE.key(key)] = IDLE.encode(Idle(again_ms, row.next_offset, since_ms))
        filed[IDLE_DUE.key(again_ms, key)] = b""
