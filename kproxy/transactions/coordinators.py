"""The coordinators of all shards that this worker serves, and what time does to transactions.

- A transaction that is open for longer than its timeout is aborted, and its producer fenced.
- One that is ending is seen through, also where an earlier owner of the shard began to.
- A transactional id that nobody has used for `transactional_id_expiration_ms` is forgotten, and so
  is what a shard remembers of a producer after `producer_id_expiration_ms`.

All are found by indexes, and decided by logged commands.
"""

from collections.abc import Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kproxy.config.server import Config
from kproxy.loop.pulse import pulse
from kproxy.shard.appends import ShardLogs, append_all
from kproxy.shard.due_index import DueIndexScanner
from kproxy.shard.per_shard import Claim, PerShard
from kproxy.shard.shard import Shard
from kproxy.transactions.coordinator import TransactionCoordinator
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.transactions import End, EndCause, ExpireTransaction
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import (
    TRANSACTIONAL_PRODUCERS,
    TRANSACTIONAL_PRODUCERS_DUE,
    TRANSACTIONS,
    TRANSACTIONS_DUE,
    Transaction,
    TransactionState,
)
from kproxy.virtual.schema import Keys

_ROWS_AT_ONCE = 200
_FOLLOW_S = 0.25
_LATE_MS = 24 * 3600 * 1000  # filed later than that from now: by a clock that was ahead


class TransactionCoordinators:
    """A coordinator for each shard that is served here."""

    def __init__(
        self,
        serving: Callable[[], list[Shard]],
        logs: ShardLogs,
        config: Config,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._now_ms = now_ms
        self._coordinators = PerShard(
            serving, lambda shard: TransactionCoordinator(shard, logs, now_ms)
        )
        self._tasks: TaskGroup | None = None

    def of(self, shard: Shard) -> TransactionCoordinator:
        """Return the coordinator of a shard that is served here now."""
        return self._coordinators.of(shard)

    def drive(self, shard: Shard, transactional_id: str) -> anyio.Event:
        """See a decided end through; the event is set when it is."""
        tasks = shard.tasks or self._tasks
        assert tasks is not None, "coordinators run"
        return self.of(shard).drive(transactional_id, tasks)

    async def run(self) -> None:
        """Let time pass for the transactions of the shards that are served here."""
        async with anyio.create_task_group() as self._tasks:
            await self._coordinators.run(self._start)

    def _start(self, coordinator: TransactionCoordinator, tasks: TaskGroup) -> None:
        shard = coordinator.shard
        timers = _TransactionTimers(shard, self._config, self._now_ms, partial(self.drive, shard))
        tasks.start_soon(timers.run)


class _TransactionTimers:
    """The scanners of one shard, and when each is due next."""

    def __init__(
        self,
        shard: Shard,
        config: Config,
        now_ms: Callable[[], int],
        drive: Callable[[str], anyio.Event],
    ) -> None:
        self._shard = shard
        self._claim = Claim(shard)
        abort_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        expire_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
        forget_ms = config.producer_id_expiration_check_interval_ms
        self._scanners: list[tuple[_Scanner, int]] = [
            (_Open(shard, now_ms, drive), abort_ms),
            (_Idle(shard, now_ms, config.transactional_id_expiration_ms), expire_ms),
            (_Producers(shard, now_ms, config.producer_id_expiration_ms), forget_ms),
        ]
        self._next_s = [0.0] * len(self._scanners)  # all at once: an earlier owner may have ended
        self._period_s = min(period_ms for _, period_ms in self._scanners) / 1000

    async def run(self) -> None:
        """Run as long as the shard is served by this claim."""
        while self._claim.serves:
            now = anyio.current_time()
            for number, (scanner, period_ms) in enumerate(self._scanners):
                if now >= self._next_s[number]:
                    self._next_s[number] = now + period_ms / 1000
                    while self._shard.serving and await scanner.scan_once():
                        await checkpoint()
            await pulse(self._period_s)


class _Scanner(DueIndexScanner):
    """One of a shard's indexes of transactions."""

    def __init__(self, shard: Shard, index: RowKind, now_ms: Callable[[], int]) -> None:
        super().__init__(shard, index, _ROWS_AT_ONCE, _FOLLOW_S)
        self._times = Keys(index, "t")
        self._now_ms = now_ms

    def _due(self, age_ms: int = 0) -> tuple[list[bytes], bool]:
        """Return keys that were filed under a time so long ago, and whether there may be more."""
        now = self._now_ms()
        return self._next_due(self._times.key(now - age_ms), self._times.key(now + _LATE_MS))

    def _due_transactions(
        self, age_ms: int = 0
    ) -> tuple[list[tuple[bytes, str, Transaction]], bool]:
        """Return due transactions with their keys and names, and whether there may be more.

        A key whose row is filed elsewhere by now is stale, and dropped.
        """
        keys, more = self._due(age_ms)
        found: list[tuple[bytes, str, Transaction]] = []
        stale: dict[bytes, bytes | None] = {}
        for key in keys:
            _, name = TRANSACTIONS_DUE.parts(key)
            row = TRANSACTIONS.get(self._shard.state.get, name)
            if row is None or transaction_rows.transaction_due_key(row, name) != key:
                stale[key] = None
            else:
                found.append((key, name, row))
        if stale:
            self._shard.commit(stale)
        return found, more

    async def _append(self, envelopes: list[Envelope]) -> bool:
        """Return whether the log took them all; else they are given again another time."""
        if envelopes:
            outcomes = await append_all((self._shard, envelope) for envelope in envelopes)
            if any(outcome.code for outcome in outcomes):
                self._retry()
                return False
        return True


class _Open(_Scanner):
    """Transactions that are open for too long, or that end."""

    def __init__(
        self, shard: Shard, now_ms: Callable[[], int], drive: Callable[[str], anyio.Event]
    ) -> None:
        super().__init__(shard, RowKind.TRANSACTION_DUE, now_ms)
        self._drive = drive

    async def scan_once(self) -> bool:
        found, more = self._due_transactions()
        now = self._now_ms()
        late: list[tuple[str, Envelope]] = []
        for key, name, row in found:
            self._leave(key)
            ahead = row.start_ms > now + _LATE_MS  # begun by a clock that was
            if row.state.is_ending:
                self._drive(name)
            elif row.state == TransactionState.ONGOING and (row.due_ms <= now or ahead):
                end = End(
                    name, row.producer_id, row.epoch, row.version, False, row.number,
                    now, EndCause.TIMEOUT,
                )  # fmt: skip
                late.append((name, end.envelope()))
        if await self._append([envelope for _, envelope in late]):
            for name, _ in late:
                self._drive(name)
            return more
        return False


class _Idle(_Scanner):
    """Transactional ids that nobody uses."""

    def __init__(self, shard: Shard, now_ms: Callable[[], int], kept_ms: int) -> None:
        super().__init__(shard, RowKind.TRANSACTION_IDLE, now_ms)
        self._kept_ms = kept_ms

    async def scan_once(self) -> bool:
        found, more = self._due_transactions(self._kept_ms)
        expired = [ExpireTransaction(name, -1, row.update_ms).envelope() for _, name, row in found]
        return await self._append(expired) and more


class _Producers(_Scanner):
    """Producers that a shard remembers: filed once each, and again where they are used since."""

    def __init__(self, shard: Shard, now_ms: Callable[[], int], kept_ms: int) -> None:
        super().__init__(shard, RowKind.PRODUCER_DUE, now_ms)
        self._kept_ms = kept_ms

    async def scan_once(self) -> bool:
        keys, more = self._due(self._kept_ms)
        before_ms = self._now_ms() - self._kept_ms
        again: dict[bytes, bytes | None] = {}
        expired: list[Envelope] = []
        for key in keys:
            producer_id = transaction_rows.producer_id_of_key(key)
            row = TRANSACTIONAL_PRODUCERS.get(self._shard.state.get, producer_id)
            if row is not None and row.used_ms > before_ms:
                again[TRANSACTIONAL_PRODUCERS_DUE.key(row.used_ms, producer_id)] = b""
            elif row is not None:
                expired.append(ExpireTransaction("", producer_id, row.used_ms).envelope())
        if not await self._append(expired):
            return False
        self._shard.commit(dict.fromkeys(keys) | again)
        return more
