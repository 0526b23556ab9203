"""A shard: its log, the state folded from it, and the watchers of both. Opened from its disk."""

from collections.abc import Callable, Sequence

import structlog
from anyio.abc import TaskGroup
from crc32c import crc32c

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.log.base import Deliver, Log, Ticket
from kproxy.log.disk_space import DiskSpace
from kproxy.loop.callbacks import nothing
from kproxy.metadata.levels import ABOVE_LEVEL, Level
from kproxy.shard.watchers import Watchers
from kproxy.store import synced, tail
from kproxy.store.rocks import Checkpoint, RocksKv, RowsFailed, decode_checkpoint
from kproxy.store.segments import DamagedLog, LogFailed, Segments
from kproxy.virtual import counts
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import CHECKPOINT_KEY
from kproxy.virtual.snapshot import RowCapture
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, ShardId

_log = structlog.get_logger()

_REPLAY_BATCH = 500
_CHANGED_MAX = 4000  # rows that wait for a write
_ROWS_CACHED_MIN = 500
_FLUSH_BYTES_MIN = 1 << 20
_UNCOMPACTED_MAX = 100_000


def flush_bytes(config: Config, shards: int) -> int:
    """Return how many bytes of a shard's rows wait for a flush, which costs some fsyncs."""
    most = config.rows_flush_bytes
    return max(most // shards, min(_FLUSH_BYTES_MIN, most))


class Shard:
    """One shard of a worker. Everything happens on the event loop's thread."""

    def __init__(
        self,
        *,
        shard: ShardId,
        shards: int,
        kv: RocksKv,
        segments: Segments,
        disk_space: DiskSpace,
        config: Config,
        log: Callable[[Deliver], Log],
        shared: bool,
        level: Level | None = None,
    ) -> None:
        self.shard = shard
        self._shared = shared
        self.kv = kv
        self.segments = segments
        self.disk_space = disk_space
        self.level = level or Level()
        cached = max(
            config.rows_cached_max // shards, min(_ROWS_CACHED_MIN, config.rows_cached_max)
        )
        self._flush_bytes = flush_bytes(config, shards)
        self.state = State(kv, cached)
        self.watchers = Watchers()
        self.fold = Fold(self.state, shard, shards, shared=shared)
        self.log = log(self._deliver)
        self.log.on_refusal = self._note_refusal
        self.refused_some = False
        """Whether the log has not taken something; who has heard of it says so here."""
        # The bytes of the rows, and of those on disk.
        self.applied_through = self.durable_through = Checkpoint()
        self.serving = True
        self.staging = False  # a backup takes its files: none of the log's is to be deleted
        self._failed: Exception | None = None
        self.uncompacted: set[PartitionKey] = set()
        """Partitions of compacted queues that have something new, as far as it is known."""
        self.used: set[PartitionKey] = set()
        """Partitions that somebody has read since it was looked, of queues that expire without
        use."""
        self.retention_overdue_ms = 0  # for the partition that is due for longest
        self.claim_offset = 0  # log offset of the claim it is served by
        self.capture: RowCapture | None = None
        self.tasks: TaskGroup | None = None
        """A group for tasks on a shard that may be given up: they end before it is closed."""
        self.on_command: Callable[[int, Envelope, Outcome], None] = nothing
        """A callback for every envelope applied that is not a client's batch."""
        self.on_routed: Callable[[], None] = nothing
        """A callback for changes of partitions with routes (`State.routed`)."""
        self.on_delayed: Callable[[], None] = nothing
        """A callback for a filing that is due earlier than what its partition had."""

    def note_uncompacted(self, key: PartitionKey) -> None:
        """Note a partition of a compacted queue that may have something to compact.

        If there are too many to note, it is looked at with its retention: once a day at least.
        """
        if len(self.uncompacted) < _UNCOMPACTED_MAX:
            self.uncompacted.add(key)

    def _note_shipped(self) -> None:
        for key in self.state.shipped_to:
            self.note_uncompacted(key)
        self.state.shipped_to.clear()

    def _note_refusal(self) -> None:
        self.refused_some = True

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        """Put envelopes in line in the log. Refuse those above the level in force."""
        if not self.level.admits(envelopes):
            return self._refused(envelopes)
        return self.log.append(envelopes)

    def _refused(self, envelopes: Sequence[Envelope]) -> Ticket:
        """Return a ticket that has failed: its sender had to ask for the level first."""
        self._note_refusal()
        ticket = Ticket(list(envelopes))
        ticket.set_error(KafkaError(Code.UNSUPPORTED_VERSION, ABOVE_LEVEL))
        return ticket

    def _deliver(
        self, first: int, batch: list[Envelope], locations: list[LogLocation], end: tuple[int, int]
    ) -> list[Outcome]:
        """Apply a batch and write what it changes, in several pieces where that is much."""
        self.refuse_failed()
        try:
            outcomes = self._apply(first, batch, locations)
            self._write(self._checkpoint(first + len(batch), end, batch[-1] if batch else None))
        except Exception as error:
            self._failed = error
            raise
        self.watchers.wake(self.state.take_touched())
        if self.state.routed:
            self.on_routed()
        if self.state.shipped_to:
            self._note_shipped()
        if RowKind.DELAY_DUE.byte in self.state.filed:
            self.on_delayed()
        return outcomes

    def _apply(
        self, first: int, batch: list[Envelope], locations: list[LogLocation]
    ) -> list[Outcome]:
        apply, state = self.fold.apply, self.state
        outcomes = []
        for log_offset, envelope, location in zip(
            range(first, first + len(batch)), batch, locations, strict=True
        ):
            outcome = apply(log_offset, envelope, location)
            outcomes.append(outcome)
            if envelope.kind != Kind.APPEND:
                self.on_command(log_offset, envelope, outcome)
                if state.changed > _CHANGED_MAX:
                    self._write(self._checkpoint(log_offset + 1, _behind(location), envelope))
        return outcomes

    def refuse_failed(self) -> None:
        """Raise RowsFailed where an envelope was applied by half, or rows are lost.

        Only a restart mends that.
        """
        if self._failed is not None:
            raise RowsFailed(f"the shard failed before: {self._failed}") from self._failed

    def _checkpoint(
        self, next_offset: int, end: tuple[int, int], last: Envelope | None
    ) -> Checkpoint:
        if last is None:
            return self.applied_through.moved(next_offset, *end)
        return Checkpoint(next_offset, *end, *identity(last))

    def commit(self, changes: dict[bytes, bytes | None]) -> None:
        """Write housekeeping's changes, which no answer depends on, in one piece."""
        self.refuse_failed()
        self.state.put_all(changes)
        try:
            self._write(self.applied_through)
        except Exception as error:
            self._failed = error
            raise

    def _write(self, checkpoint: Checkpoint) -> None:
        self.applied_through = checkpoint
        changes = self.state.drain()
        changes[CHECKPOINT_KEY] = checkpoint.encode()
        if self.capture is not None:
            self.capture.before_write(changes)
        self.kv.write(changes)

    def note_counts(self) -> None:
        """Keep the counts with the rows, which are about to be flushed."""
        self.kv.write(self._counts_row())

    def _counts_row(self) -> dict[bytes, bytes | None]:
        """Return the row of the counts; {} where there are no rows yet.

        A row alone would be a copy that is not whole.
        """
        as_of = self.applied_through.next_offset
        return {counts.COUNTS_KEY: self.state.counts.encode(as_of)} if as_of else {}

    def _restore_counts(self, next_offset: int, check: Callable[[], None]) -> None:
        known = counts.restored(self.kv, next_offset)
        if known is None:
            known = counts.counted(self.kv, check)
            _log.info("rows_counted", shard=self.shard, queues=known.queues)
        self.state.counts = known

    def recover(self, check: Callable[[], None] = nothing) -> int:
        """Fold what the log holds beyond the rows; returns how many envelopes. Raises DamagedLog.

        The rows are never ahead of the log: they are flushed after it. `check` may break it off.
        """
        segments = self.segments
        data = self.kv.get(CHECKPOINT_KEY)
        checkpoint = decode_checkpoint(data) if data else Checkpoint()
        first, segment, position, *_ = checkpoint
        if data:
            self._restore_counts(first, check)
        if not segments.ids:
            if data:
                raise DamagedLog("the log's segment files are missing, but its rows are there")
            segments.start(0)
        if segment not in segments.ids:
            hint = "" if data else ", and without rows the log is needed from its start"
            raise DamagedLog(f"segment {segments.path(segment).name} is missing{hint}")
        if segments.size(segment) < position:
            raise DamagedLog(
                f"{segments.path(segment).name} ends before position {position}, which was synced"
            )
        self.applied_through = self.durable_through = checkpoint
        mark = synced.read(segments.directory)
        for other in [one for one in segments.ids if mark is None or one >= mark.segment]:
            segments.force(other)  # for rows are made from it, and put on disk
        live = self.state.live_segments
        if self._shared and not tail.is_whole(segments, live(), mark, segment, position):
            raise DamagedLog(f"{segments.path(segment).name} has lost what was not on disk")
        while True:
            self._replay(segment, position, check)
            next_offset, position = self.applied_through.next_offset, self.applied_through.position
            later = [other for other in segments.ids if other > segment]
            if not later or segments.size(segment) > position or next_offset not in later:
                break
            segment, position = next_offset, 0
            self.applied_through = self.applied_through.moved(next_offset, segment, 0)
        for other in [other for other in segments.ids if other > segment]:
            if segments.size(other):
                raise DamagedLog(
                    f"{segments.path(segment).name} is damaged at position {position}, log offset"
                    f" {next_offset}: {segments.path(other).name} comes after it;{_HELP}"
                )
            segments.drop(other)
        if not self._shared:
            self._refuse_loss(segment, position, next_offset)
        self._cut_tail(segment, position)
        segments.resume(segment, position)
        segments.is_synced(next_offset, segment, position)
        self.log.next_offset = next_offset
        self.state.take_touched()
        return next_offset - first

    def _refuse_loss(self, segment: int, position: int, next_offset: int) -> None:
        """Raise DamagedLog if a frame that is absent, or not sound, was on disk."""
        path = self.segments.path(segment)
        proof = tail.proof_of_damage(path, position, next_offset)
        if proof is not None:
            raise DamagedLog(
                f"{path} is damaged at position {position}, log offset {next_offset}: what was"
                f" written behind it, at {proof}, says that it was on disk;{_HELP}, or cut the file"
                f" there (truncate -s {position}) and delete {synced.NAME} beside it, and"
                " lose what came after"
            )
        mark = synced.read(self.segments.directory)
        if mark is not None and mark.through > next_offset:
            raise DamagedLog(
                f"{path} is damaged or cut at position {position}: the log ends at log offset"
                f" {next_offset}, but was on disk up to {mark.through}"
                f" ({self.segments.path(mark.segment).name}, position {mark.position});{_HELP},"
                f" or delete {synced.NAME} beside it, and lose what came after"
            )

    def _cut_tail(self, segment: int, position: int) -> None:
        torn = self.segments.size(segment) - position
        if torn:
            kept = None
            if not self._shared:
                path = self.segments.path(segment)
                kept = tail.keep(path, position, self.disk_space.free_bytes())
            _log.warning("log_tail_cut", segment=segment, bytes=torn, kept=kept and str(kept))

    def _replay(self, segment: int, position: int, check: Callable[[], None]) -> None:
        next_offset, pending = self.applied_through.next_offset, 0
        last: Envelope | None = None
        for log_offset, envelope, location, after in self.segments.replay(segment, position):
            if log_offset != next_offset:
                raise DamagedLog(
                    f"{self.segments.path(segment).name} holds log offset {log_offset}"
                    f" at position {position} where {next_offset} belongs"
                )
            self.fold.apply(log_offset, envelope, location)
            next_offset, position, last = next_offset + 1, after, envelope
            pending += 1
            if pending == _REPLAY_BATCH or self.state.changed > _CHANGED_MAX:
                self._write(self._checkpoint(next_offset, (segment, position), last))
                pending = 0
                if self.kv.unflushed_bytes() > self._flush_bytes:
                    self.note_counts()
                    self.kv.flush()
                    self.durable_through = self.applied_through
                check()
        if pending:
            self._write(self._checkpoint(next_offset, (segment, position), last))

    def first_live(self) -> int:
        """Return the log offset from which on anything in the log is live."""
        for segment in sorted(self.segments.ids):
            if segment == self.segments.active or self.state.live_bytes(segment):
                return segment
        return 0

    @property
    def unfinished(self) -> bool:
        """Whether a rebuild was broken off: there are rows, and none says what they stand for."""
        if self.kv.get(CHECKPOINT_KEY) is not None:
            return False
        return next(self.kv.scan(b"", b"\xff"), None) is not None

    def begin_at(self, next_offset: int, last: Envelope | None) -> None:
        """Have the rows stand for all before this log offset from now on, after a rebuild."""
        end = (self.segments.active, self.segments.end)
        self._write(self._checkpoint(next_offset, end, last))

    def skip_to(self, log_offset: int, envelope: Envelope) -> None:
        """Go on at this log offset, in a segment of its own, with this envelope. Blocks.

        For a log that nobody serves, and that has all before in its rows. Raises LogFailed,
        OSError.
        """
        segments = self.segments
        segments.sync()
        segments.start(log_offset)
        self.applied_through = self.applied_through.moved(log_offset, log_offset, 0)
        buffers, places, total = segments.frame(log_offset, [envelope], log_offset)
        segments.write(buffers, total, True)
        self._deliver(log_offset, [envelope], places, (segments.active, segments.end))
        segments.is_synced(log_offset + 1, segments.active, segments.end)

    def close(self) -> None:
        """Flush the rows and close the files; the log must have been closed before.

        Rows go to disk only behind the log: where that failed they are given up.
        """
        try:
            if not self._shared or self.segments.failed or self.segments.unforced:
                self.segments.sync()
            if self._failed is None:
                self.kv.last_write(self._counts_row())
                self.kv.flush()
        except RowsFailed:
            pass  # the close tries again, and says why
        except LogFailed as error:
            _log.error("rows_flush_abandoned", reason=str(error))
            self._give_up_rows()
        try:
            self.kv.close()
        except RowsFailed as error:
            _log.error("rows_not_flushed", reason=str(error))  # the log has them
        self.segments.close()
        self.state.close()

    def _give_up_rows(self) -> None:
        if not self._shared:
            self.kv.abandon()
            return
        try:
            self.kv.last_write({CHECKPOINT_KEY: None})  # no copy any more: it is made again
        except RowsFailed as error:
            _log.error("rows_not_flushed", reason=str(error))


def _behind(location: LogLocation) -> tuple[int, int]:
    """Return where the next frame begins: a body ends its frame."""
    return location.segment, location.position + location.length


def identity(envelope: Envelope) -> tuple[int, int, int]:
    """Return writer, counter, CRC-32C of the body; embedded there is no writer, and nobody asks."""
    writer = envelope.writer
    return writer, envelope.counter, crc32c(envelope.body) if writer else 0


_HELP = " restore the data directory from a backup"
