"""A shard: its log, the state folded from it, and who waits for changes. Opened from its disk."""

from collections.abc import Sequence
from pathlib import Path

import structlog

from kproxy.config import Config
from kproxy.log.base import Ticket
from kproxy.log.local import LocalLog
from kproxy.log.room import DiskRoom
from kproxy.store.rocks import RocksKv, RowsFailed, decode_checkpoint, encode_checkpoint
from kproxy.store.segments import DamagedLog, Segments
from kproxy.virtual.envelope import Envelope
from kproxy.virtual.fold import Fold, Outcome, Place
from kproxy.virtual.rows import CHECKPOINT_KEY
from kproxy.virtual.state import State
from kproxy.virtual.types import ShardId
from kproxy.watch import Watchers

_log = structlog.get_logger()

_REPLAY_BATCH = 500


class Shard:
    """One shard of an embedded worker. Everything happens on the event loop's thread."""

    def __init__(
        self,
        *,
        shard: ShardId,
        shards: int,
        kv: RocksKv,
        segments: Segments,
        room: DiskRoom,
        config: Config,
    ) -> None:
        self.kv = kv
        self.segments = segments
        self.room = room
        self.state = State(kv, config.rows_cached_max)
        self.watchers = Watchers()
        self._fold = Fold(self.state, shard, shards)
        self.log = LocalLog(
            segments,
            self._deliver,
            next_offset=0,
            sync=config.sync_policy,
            segment_bytes=config.segment_bytes,
            commit_bytes_max=config.commit_bytes_max,
            room=room,
        )
        # Next log offset, and the segment and position of it: of the rows, and of those on disk.
        self.applied_through = self.durable_through = (0, 0, 0)

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        return self.log.append(envelopes)

    def _deliver(
        self, first: int, batch: list[Envelope], places: list[Place], end: tuple[int, int]
    ) -> list[Outcome]:
        apply = self._fold.apply
        outcomes = [
            apply(log_offset, envelope, place)
            for log_offset, envelope, place in zip(
                range(first, first + len(batch)), batch, places, strict=True
            )
        ]
        self._write(first + len(batch), *end)
        self.watchers.wake(self.state.take_touched())
        return outcomes

    def commit(self, changes: dict[bytes, bytes | None]) -> None:
        """Write housekeeping's changes, which no answer depends on, in one piece."""
        for key, value in changes.items():
            self.state.put(key, value)
        self._write(*self.applied_through)

    def _write(self, next_offset: int, segment: int, position: int) -> None:
        self.applied_through = (next_offset, segment, position)
        changes = self.state.drain()
        changes[CHECKPOINT_KEY] = encode_checkpoint(next_offset, segment, position)
        self.kv.write(changes)

    def recover(self) -> int:
        """Fold what the log holds beyond the rows; returns how many envelopes. Raises DamagedLog.

        The rows are never ahead of the log: they are flushed after it.
        """
        segments = self.segments
        data = self.kv.get(CHECKPOINT_KEY)
        next_offset, segment, position = decode_checkpoint(data) if data else (0, 0, 0)
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
        first = next_offset
        self.applied_through = self.durable_through = (next_offset, segment, position)
        while True:
            next_offset, position = self._replay(segment, position, next_offset)
            later = [other for other in segments.ids if other > segment]
            if not later or segments.size(segment) > position or next_offset not in later:
                break
            segment, position = next_offset, 0
        for other in [other for other in segments.ids if other > segment]:
            if segments.size(other):
                raise DamagedLog(
                    f"{segments.path(segment).name} is damaged at position {position}:"
                    f" {segments.path(other).name} comes after it"
                )
            segments.drop(other)
        torn = segments.size(segment) - position
        if torn:
            _log.warning("log_tail_cut", segment=segment, bytes=torn)
        segments.resume(segment, position)
        self.log.next_offset = next_offset
        self.applied_through = (next_offset, segment, position)
        self.state.take_touched()
        return next_offset - first

    def _replay(self, segment: int, position: int, next_offset: int) -> tuple[int, int]:
        pending = 0
        for log_offset, envelope, place, after in self.segments.replay(segment, position):
            if log_offset != next_offset:
                raise DamagedLog(
                    f"{self.segments.path(segment).name} holds log offset {log_offset}"
                    f" at position {position} where {next_offset} belongs"
                )
            self._fold.apply(log_offset, envelope, place)
            next_offset, position = next_offset + 1, after
            pending += 1
            if pending == _REPLAY_BATCH:
                self._write(next_offset, segment, position)
                pending = 0
        if pending:
            self._write(next_offset, segment, position)
        return next_offset, position

    def close(self) -> None:
        """Flush the rows and close the files; the log must have been closed before."""
        try:
            self.kv.flush()
        except RowsFailed as error:
            _log.error("rows_not_flushed", reason=str(error))  # the log has them
        self.kv.close()
        self.segments.close()


def open_local(directory: Path, config: Config) -> Shard:
    """Open the embedded shard in `directory`, recovered and ready to run. Raises DamagedLog."""
    directory.mkdir(parents=True, exist_ok=True)
    shard = Shard(
        shard=ShardId(0),
        shards=1,
        kv=RocksKv(directory / "rows", config.rows_cache_bytes),
        segments=Segments(directory / "log"),
        room=DiskRoom(directory, config.disk_free_bytes_min),
        config=config,
    )
    recovered = shard.recover()
    if recovered:
        _log.info("log_recovered", envelopes=recovered)
    return shard
