"""Copies forward the live batches of a mostly dead segment: appends them to the log again.

A segment may hold a million batches, nearly all of them dead. The copier therefore reads the heads
of the batches alone, and looks up only the next live batch of each partition; it passes over what
lies before that batch. Of a MARKER it reads all: its one batch is copied for each partition that
still needs it. Of a FORWARD the batch is copied, and not what follows it. A thread reads the disk,
and the work on the loop is cut into slices.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import structlog
from anyio import to_thread
from anyio.lowlevel import checkpoint

from kproxy.errors import KafkaError
from kproxy.loop.clock import SYSTEM_CLOCK
from kproxy.protocol.batch import CONTROL_BATCH_BYTES, read_header
from kproxy.shard.shard import Shard
from kproxy.virtual.envelope import COPIED, Body, Envelope, Kind
from kproxy.virtual.fold import copied_location
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows import Batch
from kproxy.virtual.share_commands import batch_of
from kproxy.virtual.state import State
from kproxy.virtual.transaction_commands import Marker
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

_COPY_BYTES = 1 << 20
_COPY_ENVELOPES = 1000
_READ_BYTES = 1 << 20
_TURN_S = 0.005
_LOOK_FRAMES = 16  # between two looks at the clock
_CURSORS_MAX = 20_000
_AHEAD_MAX = 64
_NEVER = 1 << 64
_COPIES, _APPEND = (int(Kind.COPY), int(Kind.REPLACE)), int(Kind.APPEND)
_MARKER, _FORWARD = int(Kind.MARKER), int(Kind.FORWARD)


class _Cursor:
    """A partition's next batch: its log offset, its last offset, and some that come after it."""

    __slots__ = ("ahead", "last", "log_offset", "step")

    def __init__(self, log_offset: int, last: int) -> None:
        self.log_offset = log_offset
        self.last = last
        self.ahead: list[tuple[int, int]] = []
        self.step = 1


_NONE = _Cursor(_NEVER, -1)


class Live:
    """Which batches of a stretch of the log are needed where they are; asked in log order."""

    def __init__(self, state: State, end: int = _NEVER) -> None:
        """`end`: the log offset behind the stretch."""
        self._state = state
        self._end = end
        self._cursors: dict[PartitionKey, _Cursor] = {}

    def may_be(self, key: PartitionKey, log_offset: int) -> bool:
        """Whether what a partition appended here may be live."""
        cursor = self._cursors.get(key)
        if cursor is None:
            if len(self._cursors) >= _CURSORS_MAX:
                self._cursors.clear()
            cursor = self._cursors[key] = self._find(key, log_offset)
        while cursor.log_offset < log_offset:
            self._advance(key, cursor)
        return cursor.log_offset == log_offset

    def _find(self, key: PartitionKey, log_offset: int) -> _Cursor:
        found = self._state.first_batch(key, lambda batch: batch.log_offset >= log_offset)
        if found is None or found[1].log_offset >= self._end:
            return _NONE
        return _Cursor(found[1].log_offset, found[0])

    def _advance(self, key: PartitionKey, cursor: _Cursor) -> None:
        row = self._state.partition(key)
        if not cursor.ahead and row is not None:
            start = max(cursor.last + 1, row.log_start)
            found = islice(self._state.batches(key, start, row.next_offset), cursor.step)
            cursor.ahead = [(batch.log_offset, last) for last, batch in found][::-1]
            cursor.step = min(2 * cursor.step, _AHEAD_MAX)
        if cursor.ahead:
            cursor.log_offset, cursor.last = cursor.ahead.pop()
        else:
            cursor.log_offset = _NEVER

    def copy_of(
        self, key: PartitionKey, envelope: Envelope, log_offset: int, location: LogLocation
    ) -> Envelope | None:
        """A COPY of the batch at this place, or None where it is dead or lies elsewhere by now."""
        row = self._state.partition(key)
        if row is None:
            return None
        records = envelope.body
        if envelope.kind in _COPIES:
            location, records = copied_location(location), records[COPIED.size :]
            last = envelope.number + read_header(records).last_offset_delta
        elif self.may_be(key, log_offset):
            last = self._cursors[key].last
            if envelope.kind == _MARKER:
                records = records[:CONTROL_BATCH_BYTES]
            elif envelope.kind == _FORWARD:
                records = batch_of(envelope)
        else:
            return None
        batch = self._state.batch_at(key, last)
        if batch is None or last < row.log_start or (batch.segment, batch.position) != location[:2]:
            return None
        return copy_of(key, last, batch, records, batch.generation)


def partitions_of(envelope: Envelope) -> Sequence[PartitionKey]:
    """The partitions that have the batch of an APPEND, a copy, a FORWARD or a MARKER."""
    if envelope.kind == _MARKER:
        return Marker.decode(envelope).partitions
    return ((envelope.queue_id, envelope.partition),)


def copy_of(key: PartitionKey, last: int, batch: Batch, records: Body, generation: int) -> Envelope:
    """What writes a batch again, with these bytes, as this generation of it."""
    head = COPIED.pack(batch.log_offset, batch.size_through, batch.max_time_through_ms)
    base_offset, body = last - batch.last_delta, head + records
    if not generation:
        return Envelope(Kind.COPY, *key, number=base_offset, body=body)
    generations = batch.generation << 8 | generation
    return Envelope(Kind.REPLACE, *key, number=base_offset, time_ms=generations, body=body)


class Copier:
    """Copies what is live in one segment of a shard."""

    def __init__(
        self, shard: Shard, segment: int, monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic
    ) -> None:
        self._shard = shard
        self._monotonic = monotonic
        self._segment = segment
        end = min((other for other in shard.segments.ids if other > segment), default=_NEVER)
        self._live = Live(shard.state, end)
        self._reader = shard.segments.reader(segment)
        self._pending: list[Envelope] = []
        self._pending_bytes = 0
        self._began = 0.0  # of what is done in this turn of the loop
        self.copied = 0  # bytes

    async def run(self) -> None:
        """Ends early where the log takes no more."""
        with self._reader:
            await self._run()

    async def _run(self) -> None:
        read, self._began = 0, self._monotonic()
        for number, (log_offset, kind, key, position, after) in enumerate(self._reader.heads()):
            if after > read:
                read = after + _READ_BYTES
                await to_thread.run_sync(self._reader.read_ahead, position, read - position)
                self._began = self._monotonic()
            elif not number % _LOOK_FRAMES:
                await self._pause()
            if kind in (_APPEND, _FORWARD):
                wanted = self._live.may_be(key, log_offset) and self._is_there(key)
            else:
                wanted = kind == _MARKER or (kind in _COPIES and self._is_there(key))
            if wanted and not await self._take(position):
                return
        if self._pending:
            await self._append()

    async def _pause(self) -> None:
        if self._monotonic() - self._began > _TURN_S:
            await checkpoint()
            self._began = self._monotonic()

    def _is_there(self, key: PartitionKey) -> bool:
        return self._shard.state.partition(key) is not None

    async def _take(self, position: int) -> bool:
        """Copy what is live of one frame; whether the log takes more."""
        frame = self._reader.at(position)
        if frame is None:
            _log.error("damaged_frame_not_copied", segment=self._segment, position=position)
            return True
        log_offset, envelope, location, _ = frame
        for number, key in enumerate(partitions_of(envelope), 1):
            copy = self._live.copy_of(key, envelope, log_offset, location)
            if copy is not None:
                self._pending.append(copy)
                self._pending_bytes += len(copy.body)
            if self._pending_bytes >= _COPY_BYTES or len(self._pending) >= _COPY_ENVELOPES:
                if not await self._append():
                    return False
                self._began = self._monotonic()
            elif not number % _LOOK_FRAMES:
                await self._pause()
        return True

    async def _append(self) -> bool:
        """Returns whether the log took them."""
        pending, self._pending = self._pending, []
        count, self._pending_bytes = self._pending_bytes, 0
        try:
            await self._shard.append(pending).wait()
        except KafkaError as error:
            _log.warning("copy_forward_refused", reason=error.message)
            return False
        self.copied += count
        return True
