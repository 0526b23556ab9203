"""Housekeeping of a shard's local copy: checkpoints, sweeps, and deleting segments.

None of it changes an answer.

- A checkpoint flushes the rows. The order is: fsync the log; hold commits up, and fsync what was
  applied meanwhile; begin the flush before anything else is applied. So flushed rows never run
  ahead of the synced log.
- A sweep removes the index rows of batches that no reader can reach any more, and subtracts the
  bytes of these batches from their segments' live bytes. Leftovers of transactions go as well.
- A segment without live bytes is deleted, once the rows that say so are on disk.
- A segment that is mostly dead is copied forward first (`shard.copier`).

All work is cut into slices, so that live traffic goes between them.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import islice

import structlog
from anyio.lowlevel import checkpoint

from kproxy.common.errors import KafkaError
from kproxy.config.server import Config
from kproxy.log.sequencer import LogChanged
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.loop.pace import Pace
from kproxy.loop.pulse import pulse
from kproxy.loop.threads import on_disk
from kproxy.shard.copier import Copier
from kproxy.shard.shard import Shard, flush_bytes
from kproxy.virtual.commands.offsets import DeleteOffsets
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind, swept_ranges
from kproxy.virtual.types import PartitionKey, QueueId

_log = structlog.get_logger()

_ROWS_AT_ONCE = 500
_SWEEP_S = 10.0  # at a time; then what else there is to do has its turn
_DELETIONS_MAX = 50_000  # not on disk: some milliseconds of every scan over them
_SWEPT_MAX = 1000
_WORTH_FREEING_BYTES = 1 << 20
_FLUSH_SPARE_BYTES = 1 << 20
_SWEEPS = RowKind.SWEEP_QUEUE, RowKind.SWEEP_PARTITION
_PARTITION_END = (1 << 32) - 1
_OFFSET_END = (1 << 64) - 1


async def sweep_commits(shard: Shard, queue_id: QueueId) -> None:
    """Forget, through the log, what groups have committed on a queue that is gone.

    That it is gone is for the caller to know. Ends early where the shard is not served here, or its
    log takes no more.
    """
    start, end = offset_rows.offsets_by_queue_range(queue_id)
    while shard.serving and (found := list(islice(shard.kv.scan(start, end), _ROWS_AT_ONCE))):
        groups: dict[str, list[PartitionKey]] = {}
        for key, _ in found:
            groups.setdefault(offset_rows.group_of_offset_by_queue(key), []).append(
                rows.partition_of(key)
            )
        level = shard.level.value
        deletions = [DeleteOffsets(*item).envelope(level) for item in groups.items()]
        try:
            outcomes = await shard.append(deletions).wait()
        except KafkaError as error:
            _log.warning("offsets_not_swept", shard=shard.shard, reason=error.message)
            return
        if any(outcome.code for outcome in outcomes):
            return
        start = found[-1][0] + b"\0"  # RocksDB would step over what was deleted
        await checkpoint()


class Housekeeper:
    """The keeper of one shard's disk; `run` until cancelled."""

    def __init__(
        self, shard: Shard, config: Config, *, shards: int = 0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Take `shards` of a log that is kept elsewhere as well, and given back from its
        start on.
        """
        self._in_order = shards > 0
        self._monotonic = clock.monotonic
        self._shard = shard
        self._state = shard.state
        self._flush_bytes = flush_bytes(config, max(1, shards))
        self._flush_s = config.rows_flush_ms_max / 1000
        self._period_s = config.keeper_period_ms / 1000
        self._uncopied: set[int] = set()
        self._more_to_sweep = False
        self._noted = {kind: kind.letter for kind in _SWEEPS}  # no note lies before
        self._swept: OrderedDict[PartitionKey, int] = OrderedDict()
        self._flushed_at = self._monotonic()

    async def run(self) -> None:
        while True:
            await pulse(self._period_s)
            await self.round()

    async def round(self) -> None:
        """Run one round of all there is to do. Raises LogChanged: the copy is to be made again."""
        damaged = self._shard.segments.damage.seen or self._shard.kv.damage.seen
        if self._in_order and damaged:
            raise LogChanged("the local copy is damaged")
        await on_disk(self._shard.disk_space.look)
        self._shard.kv.let_go()
        swept = await self._sweep()
        if self._mostly_dead(self._shard.segments.active):
            await self._shard.log.roll()
        dead = await self._dead()
        if self._flush_due(swept, bool(dead)):
            await self.flush()
        await self._reclaim(dead)
        if not self._more_to_sweep:  # else what is dead may still count as alive
            await self._copy_forward()

    def _much_unflushed(self) -> bool:
        kv = self._shard.kv
        return kv.unflushed_bytes() > self._flush_bytes or kv.unflushed_deletions() > _DELETIONS_MAX

    def _flush_due(self, swept: bool, dead: bool) -> bool:
        if self._much_unflushed():
            return True
        old = self._monotonic() - self._flushed_at > self._flush_s
        behind = self._shard.applied_through != self._shard.durable_through
        return (behind and (old or dead)) or (swept and dead)

    async def flush(self) -> None:
        """Put log and then rows on disk: recovery starts here from now on.

        If the disk has no room for them the rows wait in memory, and commands that grow them are
        refused.
        """
        shard = self._shard
        wanted = 2 * shard.kv.unflushed_bytes() + _FLUSH_SPARE_BYTES
        if not await on_disk(partial(shard.disk_space.fits, wanted)):
            return
        async with shard.log.synced():
            shard.refuse_failed()
            through = shard.applied_through
            shard.note_counts()
            shard.kv.begin_flush()
        await on_disk(shard.kv.finish_flush)
        shard.durable_through = through
        self._flushed_at = self._monotonic()

    def _sealed(self) -> list[int]:
        """Return the sealed segments in order; a log may have ten thousand of them."""
        active = self._shard.segments.active
        return sorted(segment for segment in self._shard.segments.ids if segment != active)

    async def _dead(self) -> list[int]:
        """Return segments that hold nothing live; in order, the ones before the first that does."""
        found, pace = [], Pace()
        for segment in self._sealed():
            if not self._state.live_bytes(segment):
                found.append(segment)
            elif self._in_order:
                break
            await pace.step()
        return found

    async def _reclaim(self, dead: list[int]) -> None:
        """Delete segments that hold nothing live and lie before the checkpoint."""
        segments, pace = self._shard.segments, Pace()
        for segment in dead:
            await pace.step()
            if self._shard.staging:
                return
            if segment >= self._shard.durable_through[1]:
                continue
            freed = segments.drop(segment)
            self._shard.commit({rows.segment_key(segment): None})
            _log.info("segment_deleted", segment=segment, bytes=freed)

    def _mostly_dead(self, segment: int) -> bool:
        size = self._shard.segments.size(segment)
        return size > _WORTH_FREEING_BYTES and self._state.live_bytes(segment) * 2 < size

    # -- sweeping

    async def _sweep(self) -> bool:
        """Work through the notes that deletions and trims left; whether anything was done."""
        until, swept = self._monotonic() + _SWEEP_S, False
        self._more_to_sweep = False
        for kind in _SWEEPS if self._shard.serving else _SWEEPS[1:]:  # offsets go through the log
            while not self._more_to_sweep and (notes := self._notes(kind)):
                done = await self._sweep_notes(kind, notes)
                swept = swept or done > 0
                if done < len(notes):
                    self._more_to_sweep = swept
                    break
                self._more_to_sweep = self._monotonic() > until
        return swept

    async def _sweep_notes(self, kind: RowKind, notes: list[tuple[bytes, bytes]]) -> int:
        """Sweep notes; return how many were done before the first that could not be."""
        for number, (key, note) in enumerate(notes):
            if not await self._sweep_note(note):
                return number
            self._shard.commit({key: None})
            self._noted[kind] = key + b"\0"
            await checkpoint()
        return len(notes)

    def _notes(self, kind: RowKind) -> list[tuple[bytes, bytes]]:
        """Return the next notes of a kind, looked for where there can be any."""
        filed = self._state.filed.pop(kind.byte, None)
        if filed is not None:
            self._noted[kind] = min(self._noted.get(kind, filed[0]), filed[0])
        start = self._noted.get(kind)
        if start is None:
            return []
        notes = list(islice(self._shard.kv.scan(start, kind.range()[1]), _ROWS_AT_ONCE))
        if not notes:
            del self._noted[kind]
        return notes

    async def _sweep_note(self, note: bytes) -> bool:
        """Sweep what a note names; whether all of it is gone."""
        queue_hex, index = json.loads(note)
        queue_id = QueueId(bytes.fromhex(queue_hex))
        if index == -1:
            return await self._sweep_queue(queue_id)
        key = queue_id, index
        row = self._state.partition(key)
        done = self._swept.pop(key, 0)  # a scan would step over deleted rows again
        log_start = done if row is None else row.log_start  # as of now: it may go on meanwhile
        any_aborted = row is not None and row.any_aborted
        if log_start > done:
            await self._sweep_batches(
                batch_rows.batch_key(*key, done), batch_rows.batch_key(*key, log_start)
            )
            if any_aborted:
                await self._sweep_rows(*transaction_rows.aborted_range(key, done, log_start))
            done = log_start
        self._swept[key] = done
        if len(self._swept) > _SWEPT_MAX:
            self._swept.popitem(last=False)
        return True

    async def _sweep_queue(self, queue_id: QueueId) -> bool:
        """Remove what a deleted queue left behind; whether all of it is gone."""
        if self._state.queue_by_id(queue_id) is not None:
            return True  # it is there: nothing was left behind
        await self._sweep_batches(
            batch_rows.batch_key(queue_id, 0, 0),
            batch_rows.batch_key(queue_id, _PARTITION_END, _OFFSET_END),
        )
        start, _ = rows.producers_range(queue_id, 0)
        _, end = rows.producers_range(queue_id, _PARTITION_END)
        await self._sweep_rows(start, end)
        for start, end in swept_ranges(queue_id):
            await self._sweep_rows(start, end)
        await sweep_commits(self._shard, queue_id)
        return (
            next(self._shard.kv.scan(*offset_rows.offsets_by_queue_range(queue_id)), None) is None
        )

    async def _sweep_batches(self, start: bytes, end: bytes) -> None:
        # One write for the rows and the counts: a crash between would count bytes off twice.
        await self._sweep_rows(
            start, end, lambda value: self._state.count_dead(batch_rows.decode_batch(value))
        )

    async def _sweep_rows(
        self, start: bytes, end: bytes, told: Callable[[bytes], None] | None = None
    ) -> None:
        """Delete rows from `start` to before `end`, each as `told` has been told of its value.

        The changes of the state by `told` are in the same write as the deletion.
        """
        kv = self._shard.kv
        while slice_ := list(islice(kv.scan(start, end), _ROWS_AT_ONCE)):
            if told is not None:
                for _, value in slice_:
                    told(value)
            self._shard.commit({key: None for key, _ in slice_})
            if self._much_unflushed():
                await self.flush()
            start = slice_[-1][0] + b"\0"  # RocksDB would step over what was deleted
            await checkpoint()

    # -- copying forward

    async def _copy_forward(self) -> None:
        """Free one segment of which less than half is alive; in order, the first of such a log."""
        for segment in await self._to_copy():
            live = self._state.live_bytes(segment)
            if live and segment not in self._uncopied:
                try:
                    copier = Copier(self._shard, segment, self._monotonic)
                    await copier.run()
                except OSError as error:  # no descriptor is left, or the disk fails: another time
                    _log.error("segment_not_copied", segment=segment, reason=str(error))
                    return
                _log.info("segment_copied_forward", segment=segment, bytes=copier.copied)
                if not copier.copied:
                    self._uncopied.add(segment)
                    _log.error("segment_not_freed", segment=segment, live_bytes=live)
                return

    async def _to_copy(self) -> list[int]:
        found, sealed, pace, segments = [], self._sealed(), Pace(), self._shard.segments
        size, live = segments.end, self._state.live_bytes(segments.active)
        for segment in sealed:
            if not self._in_order and self._mostly_dead(segment):
                found.append(segment)
            size += segments.size(segment)
            live += self._state.live_bytes(segment)
            await pace.step()
        if not self._in_order:
            return found
        return sealed[:1] if size > _WORTH_FREEING_BYTES and live * 2 < size else []
