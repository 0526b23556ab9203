"""One shard's life on this worker: open its local copy, fold its log, claim it, serve it.

Kafka's group coordinator assigns the shard, but an assignment alone never lets a worker serve: two
workers may believe for a while that they have it. The shard's log decides instead.

1. **Open.** The owner checks that the local copy is a prefix of the log: the log still has the
   copy's last envelope at its place. Otherwise it discards the copy and rebuilds it
   (`cluster.rebuild`). It reports records that the cluster has lost, and repairs the log
   (`cluster.lost_end`).
2. **Catch up.** It folds the log to its end.
3. **Claim.** It appends a CLAIM envelope. When it folds its own CLAIM it has folded everything
   before it, and it serves the shard. The claim's log offset is the owner's epoch.
4. **Serve.** It announces the claim in the map, answers clients, publishes, and does housekeeping.
5. **Leave.** An owner that folds another worker's CLAIM stops serving in the same step. Its
   envelopes before that CLAIM hold; the new owner has folded it. If the group still assigns the
   shard to it, it appends a new CLAIM.
6. **Hand over.** An owner from whom the group takes the shard serves on until another worker's
   CLAIM. So a shard is served while its next owner still reads, and nobody serves it for as long as
   a CLAIM takes.

An error ends the round. The owner logs it, waits, and starts again at the first step.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic

import anyio
import structlog
from anyio.abc import TaskGroup

from kproxy.cluster import lost_end
from kproxy.cluster.log_prefix import is_prefix, lost_part, probe, unplaced_mark
from kproxy.cluster.lost_end import LostEnd, NotRebuilt
from kproxy.cluster.publisher import Publisher, admitted
from kproxy.cluster.rebuild import LogFilled, LogTooShort, rebuild, wipe
from kproxy.cluster.services import ShardServices
from kproxy.common.errors import KafkaError, first_of
from kproxy.log.base import Deliver
from kproxy.log.sequencer import LogChanged
from kproxy.log.shared import SharedLog
from kproxy.loop.threads import Stop, Stopped, on_disk, stoppable
from kproxy.shard.compactor import Compactor
from kproxy.shard.expiry.idle_queues import IdleExpiry
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.producer_expiry import ProducerExpiry
from kproxy.shard.retention import Retention
from kproxy.shard.shard import Shard
from kproxy.store.rocks import RocksKv, RowsDamaged, RowsFailed
from kproxy.store.segments import DamagedLog, LogFailed, Segments
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.fold import PASSED
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import published_key
from kproxy.virtual.types import ShardId
from kproxy.worker.standing import SERVED

_log = structlog.get_logger()

_AGAIN_S = 1.0
_FAILED_AGAIN_S, _DOUBLINGS = 30.0, 5
_CLAIM_AGAIN_S = 0.5
_PERIOD_S = 1.0


def _let_go(shard: Shard | None) -> None:
    """Close a local copy that was opened for nobody any more."""
    if shard is not None:
        shard.close()


class ShardOwner:
    """A task that holds one shard until cancelled."""

    def __init__(self, index: int, shards: int, directory: Path, services: ShardServices) -> None:
        self.index = index
        self._shards = shards
        self._directory = directory
        self._services = services
        self.shard: Shard | None = None  # while it is served
        self.held: Shard | None = None  # while its log is followed
        self.publisher: Publisher | None = None  # the same
        self.phase = "waiting"  # as `worker.standing.PHASES` has them
        self._unserved_since = 0.0
        self._failures = 0  # since it was served
        self._changed: LogChanged | None = None  # under the local copy
        self._lost: LostEnd | None = None  # a loss of the log to be repaired
        self._claimed_by_other = anyio.Event()
        self._handed_over: Callable[[], None] | None = None
        self._foreign = 0
        self._saying = False

    def hand_over(self, done: Callable[[], None]) -> None:
        """Serve on until another worker claims the shard, then call `done`: now, if not served."""
        self._handed_over = done
        if self.shard is None:
            done()

    def keep(self) -> None:
        """Keep the shard, which is this worker's again before another claimed it."""
        self._handed_over = None

    async def run(self) -> None:
        self._unserved_since = monotonic()
        while True:
            wait_s = _AGAIN_S
            try:
                await self._hold_once()
            except* LogChanged as group:
                changed = first_of(group)
                assert isinstance(changed, LogChanged)
                _log.warning("shard_log_changed", shard=self.index, reason=str(changed))
                self._changed = changed
            except* RowsDamaged as group:
                _log.warning("local_copy_damaged", shard=self.index, reason=str(first_of(group)))
                wait_s = await self._wiped()
            except* KafkaError as group:
                _log.warning("shard_not_served", shard=self.index, reason=str(first_of(group)))
            except* NotRebuilt as group:
                wait_s = self._later()
                _log.error("shard_refused", shard=self.index, reason=str(first_of(group)))
            except* (RowsFailed, LogFailed, OSError) as group:
                wait_s = self._later()
                _log.error("shard_not_stored", shard=self.index, reason=str(first_of(group)))
            except* Exception:
                wait_s = self._later()  # the other shards go on
                _log.exception("shard_failed", shard=self.index)
            self.phase = "waiting"
            await anyio.sleep(wait_s)

    def _later(self) -> float:
        """Return how long to wait after a failure that may be for good: longer each time."""
        wait_s: float = min(_AGAIN_S * 2**self._failures, _FAILED_AGAIN_S)
        self._failures = min(self._failures + 1, _DOUBLINGS)
        return wait_s

    async def _wiped(self) -> float:
        """Remove the local copy; seconds to wait then."""
        try:
            await on_disk(partial(wipe, self._directory))
        except OSError as error:
            _log.error("shard_not_stored", shard=self.index, reason=str(error))
            return self._later()
        return _AGAIN_S

    async def _hold_once(self) -> None:
        async with self._services.opening:
            self.phase = "opening"
            shard = await self._open()
        try:
            await self._follow(shard)
        finally:
            self._services.link.forget(self.index)
            self._stop_serving(shard)
            self.held = self.publisher = None
            shard.tasks = None
            shard.log.close()
            shard.kv.shut()
            with anyio.CancelScope(shield=True):
                await on_disk(shard.close)

    # -- the local copy

    async def _open(self) -> Shard:
        """Return the shard with a local copy that is a prefix of its log."""
        shard = await stoppable(self._open_local, _let_go)
        if shard is not None:
            try:
                if self._changed is None and await is_prefix(shard, self._services.link):
                    return shard
                if await self._note_lost(shard):
                    return shard
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await on_disk(shard.close)
                raise
            await on_disk(shard.close)
            _log.warning("local_copy_discarded", shard=self.index)
        while True:
            try:
                return await self._rebuilt()
            except LogFilled as error:
                self._lost = LostEnd(error.end, error.as_of)
            except LogTooShort as error:
                await self._note_too_short(error)

    async def _note_lost(self, shard: Shard) -> bool:
        """Say what the log has lost of a local copy, and fill it: the copy may be discarded then.

        Return whether the copy is a prefix after all. Raises KafkaError, NotRebuilt.
        """
        changed, link = self._changed, self._services.link
        part = await lost_part(shard, link, None if changed is None else changed.at)
        if part is not None:
            lost, records = await on_disk(partial(lost_end.look, shard, *part))
            self._lost = await lost_end.repair(self.index, lost, records, self._services)
        elif changed is not None and changed.at is not None and await is_prefix(shard, link):
            self._changed = None
            return True
        return False

    async def _note_too_short(self, error: LogTooShort) -> None:
        """Do so where there is no copy: the published rows know of more than the log has."""
        end = await probe(self._services.link, self.index, unplaced_mark())
        if end < error.as_of:
            lost = LostEnd(min(end, error.end), error.as_of)
            self._lost = await lost_end.repair(self.index, lost, [], self._services)
        else:
            await anyio.sleep(_AGAIN_S)

    async def _rebuilt(self) -> Shard:
        """Return the shard with a local copy made anew."""
        await on_disk(partial(wipe, self._directory))
        self._changed = None
        shard = await on_disk(self._new)
        self.phase = "rebuilding"
        try:
            await rebuild(shard, self._services, self._lost)
        except BaseException:
            self._services.link.forget(self.index)
            with anyio.CancelScope(shield=True):
                await on_disk(shard.close)
                await on_disk(partial(wipe, self._directory))
            raise
        return shard

    def _open_local(self, stop: Stop) -> Shard | None:
        if not (self._directory / "rows").exists():
            return None
        try:
            shard = self._new()
        except RowsFailed as error:
            _log.warning("local_copy_damaged", shard=self.index, reason=str(error))
            return None
        try:
            if shard.unfinished:
                _log.warning("local_copy_unfinished", shard=self.index)
                shard.close()
                return None
            shard.recover(stop.check)
        except (DamagedLog, RowsFailed) as error:
            _log.warning("local_copy_damaged", shard=self.index, reason=str(error))
            shard.close()
            return None
        except Stopped:
            shard.close()
            raise
        return shard

    def _new(self) -> Shard:
        config, directory = self._services.config, self._directory
        segments = Segments(directory / "log", marked=True, clock=self._services.clock)
        segments.damage.counters = self._services.counters
        disk_space = self._services.disk_space

        def log(deliver: Deliver) -> SharedLog:
            return SharedLog(
                self.index,
                segments,
                deliver,
                self._services.link,
                segment_bytes=config.segment_bytes,
                disk_space=disk_space,
                clock=self._services.clock,
            )

        shard = Shard(
            shard=ShardId(self.index),
            shards=self._shards,
            kv=RocksKv(directory / "rows", max(1 << 20, config.rows_cache_bytes // self._shards)),
            segments=segments,
            disk_space=disk_space,
            config=config,
            log=log,
            shared=True,
            level=self._services.level,
        )
        shard.serving = False
        shard.kv.damage.counters = self._services.counters
        try:
            unpublished = shard.kv.scan(*RowKind.UNPUBLISHED.range())
            shard.state.unpublished = {published_key(key) for key, _ in unpublished}
        except RowsDamaged:
            shard.close()  # it is made again
            raise
        assert isinstance(shard.log, SharedLog)
        shard.log.admitted = partial(admitted, shard.state, config)
        return shard

    # -- following and serving

    async def _follow(self, shard: Shard) -> None:
        log = shard.log
        assert isinstance(log, SharedLog)
        shard.on_command = partial(self._applied, shard)
        self._services.link.follow(self.index, log)
        async with anyio.create_task_group() as tasks:
            shard.tasks, self.held = tasks, shard
            self.phase = "catching_up"
            tasks.start_soon(log.run)
            await self._catch_up(log)
            if self._lost is not None:
                await lost_end.make_up(shard, self._lost)
                self._lost = None
            self.phase = "claiming"
            self._housekeep(shard, tasks)
            try:
                await self._claim_and_serve(shard)
            finally:  # a publication under way may hold up the end for a minute
                self._stop_serving(shard)

    def _housekeep(self, shard: Shard, tasks: TaskGroup) -> None:
        """Start what runs beside the requests for as long as the log is followed."""
        services = self._services
        config, clock = services.config, services.clock
        housekeeper = Housekeeper(shard, config, shards=self._shards, clock=clock)
        self.publisher = publisher = Publisher(
            shard, services.upstream, services.link, config, clock
        )
        retention = Retention(shard, config, services.lookup, clock.now_ms)
        compactor = Compactor(
            shard, config, services.lookup, clock.now_ms, services.compacting, services.counters
        )
        expiry = ProducerExpiry(shard, config, clock.now_ms, services.counters)
        idle = IdleExpiry(shard, config, clock.now_ms, services.counters)
        for background in (housekeeper, publisher, retention, compactor, expiry, idle):
            tasks.start_soon(background.run)

    async def _claim_and_serve(self, shard: Shard) -> None:
        while True:
            self._claimed_by_other = anyio.Event()
            outcome = (await shard.append([Claim().envelope()]).wait())[0]
            if not outcome.code and not self._claimed_by_other.is_set():
                self._serve(shard, outcome.number)
                await self._claimed_by_other.wait()
            await anyio.sleep(_CLAIM_AGAIN_S)

    async def _catch_up(self, log: SharedLog) -> None:
        """Fold what others wrote."""
        first, end = log.next_offset, await self._services.link.end(self.index)
        async with self._services.progress.of(
            "shard_catching_up", end - first, lambda: log.next_offset - first, shard=self.index
        ):
            await log.catch_up(end)

    def _applied(self, shard: Shard, log_offset: int, envelope: Envelope, outcome: Outcome) -> None:
        if outcome is PASSED:
            return  # its first copy was decided, and answered
        if envelope.kind == Kind.CLAIM:
            if envelope.writer != self._services.link.writer:
                self._stop_serving(shard)  # the other owner answers the commands behind it
                self._claimed_by_other.set()
        elif envelope.kind == Kind.FOREIGN:
            if not envelope.writer:  # not a mark of ours
                self._saw_foreign()
        elif shard.serving:
            self._services.command_router.applied(shard, log_offset, envelope, outcome)
        else:
            self._services.command_router.folded(shard, log_offset, envelope, outcome)

    def _saw_foreign(self) -> None:
        """Say that someone else writes to the data topic, once a second at most."""
        self._foreign += 1
        if not self._saying:
            self._saying = True
            asyncio.get_running_loop().call_later(_PERIOD_S, self._report_foreign)

    def _report_foreign(self) -> None:
        self._saying = False
        _log.warning(
            "foreign_records_skipped", shard=self.index, records=self._foreign,
            topic=self._services.upstream.data,
        )  # fmt: skip

    def _serve(self, shard: Shard, claim: int) -> None:
        shard.serving = True
        shard.claim_offset = claim
        self.shard, self.phase = shard, SERVED
        self._failures = 0
        took = monotonic() - self._unserved_since
        self._services.counters.takeover_seconds.observe(took)
        self._services.announce(self.index, claim)
        self._services.command_router.take_up(shard)
        _log.info("shard_served", shard=self.index, claim=claim)

    def _stop_serving(self, shard: Shard) -> None:
        if shard.serving:
            shard.serving = False
            self.shard, self.phase = None, "claiming"
            self._unserved_since = monotonic()
            self._services.command_router.left(self.index)
            shard.watchers.wake_all()
            _log.info("shard_left", shard=self.index)
            if self._handed_over is not None:
                self._handed_over()
