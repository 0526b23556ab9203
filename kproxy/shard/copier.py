"""The copier of live batches of a mostly dead segment: it appends them to the log again.

A segment may hold a million batches, nearly all of them dead. The copier therefore reads the heads
of the batches alone, and looks up only the next live batch of each partition; it passes over what
lies before that batch. It reads all of an envelope that carries several batches: they are copied
for each partition that still needs them. Only batches are copied of an envelope that carries more.
A thread reads the disk, and the work on the loop is cut into slices.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import structlog
from anyio import to_thread
from anyio.lowlevel import checkpoint

from kproxy.common.errors import KafkaError
from kproxy.loop.clock import SYSTEM_CLOCK
from kproxy.protocol.batch import read_header
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import COPIED, Body, Envelope, Kind
from kproxy.virtual.commands.records import ROUTED
from kproxy.virtual.fold import copied_location
from kproxy.virtual.folds.carried import ALONE, DELAYS, SEVERAL, carried
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.state import State
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
_COPIES = (Kind.COPY, Kind.REPLACE)


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
    """The batches of a stretch of the log that are needed where they are; asked in log order."""

    def __init__(self, state: State, end: int = _NEVER) -> None:
        """Take `end`, the log offset behind the stretch."""
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

    def copies(
        self, log_offset: int, envelope: Envelope, location: LogLocation
    ) -> Iterator[Envelope | None]:
        """Yield a COPY of each batch of this envelope that is live there; None for others."""
        if envelope.kind in _COPIES:
            key, records = (envelope.queue_id, envelope.partition), envelope.body[COPIED.size :]
            last = envelope.number + read_header(records).last_offset_delta
            yield self._copy(key, last, records, copied_location(location))
            return
        for key, records, place in carried(self._state, log_offset, envelope, location):
            if envelope.kind in DELAYS:
                self._go_to(key, log_offset, place)
            if self.may_be(key, log_offset):
                yield self._copy(key, self._cursors[key].last, records, place)
            else:
                yield None

    def _go_to(self, key: PartitionKey, log_offset: int, place: LogLocation) -> None:
        """Pass over those of an envelope's batches for a partition that lie before this one, and
        those that lie elsewhere by now."""
        while self.may_be(key, log_offset):
            cursor = self._cursors[key]
            batch = self._state.batch_at(key, cursor.last)
            if batch is not None and not batch.copied and batch.position >= place.position:
                return
            self._advance(key, cursor)

    def _copy(
        self, key: PartitionKey, last: int, records: Body, location: LogLocation
    ) -> Envelope | None:
        """Return a COPY of the batch at this place, or None where it is dead or lies elsewhere by
        now.
        """
        row = self._state.partition(key)
        batch = None if row is None else self._state.batch_at(key, last)
        if row is None or batch is None or last < row.log_start:
            return None
        if (batch.segment, batch.position) != location[:2]:
            return None
        return copy_of(key, last, batch, records, batch.generation)


def copy_of(key: PartitionKey, last: int, batch: Batch, records: Body, generation: int) -> Envelope:
    """Return the envelope that writes a batch again, with these bytes, as this generation of it."""
    head = COPIED.pack(batch.log_offset, batch.size_through, batch.max_time_through_ms)
    base_offset, body = last - batch.last_delta, head + records
    said = ROUTED if batch.routed else 0
    if not generation:
        return Envelope(Kind.COPY, *key, number=base_offset, time_ms=said, body=body)
    said |= batch.generation << 8 | generation
    return Envelope(Kind.REPLACE, *key, number=base_offset, time_ms=said, body=body)


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
        self._began = 0.0  # the start of the work in this turn of the loop
        self.copied = 0  # bytes

    async def run(self) -> None:
        """Copy all of it; end early where the log takes no more."""
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
            if kind in ALONE:
                wanted = self._live.may_be(key, log_offset) and self._is_there(key)
            else:
                wanted = kind in SEVERAL or (kind in _COPIES and self._is_there(key))
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
            self._shard.segments.damage.counters.batches_damaged += 1
            return True
        log_offset, envelope, location, _ = frame
        for number, copy in enumerate(self._live.copies(log_offset, envelope, location), 1):
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
        """Append the copies; return whether the log took them."""
        pending, self._pending = self._pending, []
        count, self._pending_bytes = self._pending_bytes, 0
        try:
            await self._shard.append(pending).wait()
        except KafkaError as error:
            _log.warning("copy_forward_refused", reason=error.message)
            return False
        self.copied += count
        return True
