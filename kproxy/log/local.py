"""The embedded log: segment files on the local disk, with many appends in one write and one fsync.

An envelope is applied only after its commit succeeded. A crash therefore takes back nothing that a
client read, that was acknowledged, or that a decision used, and a failed commit has nothing to
undo: the log cuts the file back and answers KAFKA_STORAGE_ERROR. Each frame says up to which log
offset everything was on disk when the frame was written, and `store.synced` says it for now.
Recovery uses both to tell a torn tail from damage.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic

import anyio
import structlog
from anyio.lowlevel import checkpoint

from kproxy.common.counters import APPEND_S, Histogram
from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Deliver, Log, Ticket, cut
from kproxy.log.disk_space import ALL, FRAME_BYTES, FULL, DiskSpace
from kproxy.log.sync import Sync
from kproxy.log.thread import LogThread
from kproxy.log.weight import TURN
from kproxy.loop.callbacks import nothing
from kproxy.loop.threads import on_disk
from kproxy.store.segments import Segments
from kproxy.virtual.commands.envelope import Body, Envelope, Kind
from kproxy.virtual.outcome import LogLocation

_log = structlog.get_logger()

_NONE: frozenset[Kind] = frozenset()
_COMMIT_ENVELOPES = 2000  # framed at a time: some milliseconds of the loop
_THREAD_FROM_BYTES = 1 << 20  # below, an unsynced write is a copy into the page cache


class LocalLog(Log):
    """Group commit over `Segments`. One task runs it; anything may append."""

    def __init__(
        self,
        segments: Segments,
        deliver: Deliver,
        *,
        sync: Sync,
        segment_bytes: int,
        commit_bytes_max: int,
        disk_space: DiskSpace,
    ) -> None:
        self._segments = segments
        self._deliver = deliver
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._commit_bytes_max = commit_bytes_max
        self._disk_space = disk_space
        self.next_offset = 0
        self._thread: LogThread
        self._waiting: deque[Ticket] = deque()
        self._work = anyio.Event()
        self._rolled = anyio.Event()
        self._rolled.set()
        self._busy = False
        self._committing = anyio.Lock(fast_acquire=True)
        self._closing = False
        self._unsynced = False
        self._soon = False
        self._failed: Exception | None = None
        self.on_refusal: Callable[[], None] = nothing
        self._behind = 0
        """The number of tickets in line behind a refused one, and the kinds that they may hold."""
        self._allowed_behind, self._refusal = _NONE, ""
        self.append_seconds = Histogram(APPEND_S)

    @property
    def next_offset(self) -> int:
        return self._applied

    @next_offset.setter
    def next_offset(self, offset: int) -> None:
        self._applied = self._written = self._synced_through = offset

    @property
    def waiting(self) -> int:
        """The number of tickets that wait for the next commit."""
        return len(self._waiting)

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        if self._closing:
            ticket.set_error(KafkaError(Code.KAFKA_STORAGE_ERROR, "the server is shutting down"))
            return ticket
        if ticket.weight > TURN:
            self._waiting += cut(ticket)
        else:
            self._waiting.append(ticket)
        if not self._busy:
            if self._sync.always:
                self._work.set()
            elif not self._soon:
                self._soon = True
                asyncio.get_running_loop().call_soon(self._commit_soon)
        return ticket

    def _commit_soon(self) -> None:
        """Commit the tickets of one turn of the loop, if that takes no wait and so no task."""
        self._soon = False
        held = self._busy or self._closing or self._committing.locked()
        if held or not self._rolled.is_set() or self._failed:
            self._work.set()
            return
        tickets, total, units = self._take()
        stale = self._disk_space.is_stale(asyncio.get_running_loop().time())
        long = total >= _THREAD_FROM_BYTES or units > TURN or self._segments.slow
        if stale or long or self._segments.end >= self._segment_bytes:
            self._waiting.extendleft(reversed(tickets))
            self._work.set()
            return
        try:
            self._commit_at_once(tickets)
        except Exception as error:
            self._failed = error
        if self._waiting or self._failed:
            self._work.set()

    async def run(self) -> None:
        """Commit what is in line until `close`; raises LogFailed if the disk cannot be trusted."""
        self._thread = LogThread("log")
        try:
            async with anyio.create_task_group() as tasks:
                if self._sync.interval_ms is not None:
                    tasks.start_soon(self._sync_now_and_then, self._sync.interval_ms / 1000)
                await self._commit_all()
                tasks.cancel_scope.cancel()
            await self._force()
        finally:
            self._closing = True  # after any error, nothing is taken any more
            self._thread.close()

    async def _commit_all(self) -> None:
        while True:
            self._busy = False
            if not (self._waiting or self._closing or self._failed) and self._rolled.is_set():
                await self._work.wait()
            if self._failed is not None:
                raise self._failed
            if self._closing and not self._waiting:
                return
            self._work = anyio.Event()
            self._busy = True
            if not self._rolled.is_set():
                async with self._committing:
                    await self._roll_if_possible()
            while self._waiting:
                async with self._committing:
                    await self._commit(self._take()[0])
                if self._waiting and not self._sync.always:
                    await checkpoint()

    def close(self) -> None:
        """Refuse new appends and let `run` return when the line is empty."""
        self._closing = True
        self._work.set()

    async def catch_up(self) -> None:
        """Return at once: nobody else writes here, and unapplied envelopes are invisible."""

    async def sync(self) -> None:
        """Force all that was committed to disk."""
        if self._unsynced:
            self._unsynced = False
            await self._force()

    @asynccontextmanager
    async def synced(self) -> AsyncIterator[None]:
        if self._sync.always:
            yield
            return
        if self._unsynced or self._thread.busy:  # one under way may hang
            await self._force()  # most of it, while commits go on
        async with self._committing:
            self._unsynced = False
            await self._force()  # the rest, which came meanwhile
            yield

    async def _force(self) -> None:
        end = self._end()
        await self._thread.run(self._segments.sync)
        self._is_synced(*end)

    def _end(self) -> tuple[int, int, int]:
        return self._written, self._segments.active, self._segments.end

    def _is_synced(self, through: int, segment: int, position: int) -> None:
        self._synced_through = max(self._synced_through, through)
        self._segments.is_synced(through, segment, position)

    async def _sync_now_and_then(self, seconds: float) -> None:
        while True:
            await anyio.sleep(seconds)
            await self.sync()

    def _take(self) -> tuple[list[Ticket], int, int]:
        """Return the tickets of the next commit, its bytes, and the cost of applying it."""
        taken, total, count, units = [], 0, 0, 0
        while self._waiting and total < self._commit_bytes_max and count < _COMMIT_ENVELOPES:
            ticket = self._waiting.popleft()
            total += ticket.size
            count += len(ticket.envelopes)
            units += ticket.weight
            taken.append(ticket)
        return taken, total, units

    async def _commit(self, tickets: list[Ticket]) -> None:
        now = asyncio.get_running_loop().time()
        if self._disk_space.is_stale(now):
            await self._on_thread(partial(self._disk_space.ask, now))
        tickets = self._with_room(tickets)
        if not tickets:
            await checkpoint()  # there may be many to refuse
            return
        batch = [envelope for ticket in tickets for envelope in ticket.envelopes]
        try:
            if self._segments.end >= self._segment_bytes:
                await self._roll()
            buffers, places, total = self._frame(batch)
            began = monotonic()
            await self._write(buffers, total, self._written + len(batch))
            self.append_seconds.observe(monotonic() - began)
        except OSError as error:
            self._not_written(tickets, error)
            return
        self._written += len(batch)
        at = 0
        for turn, count in _turns(tickets):
            if at:
                await checkpoint()
            self._apply(turn, batch[at : at + count], places[at : at + count])
            at += count

    def _commit_at_once(self, tickets: list[Ticket]) -> None:
        tickets = self._with_room(tickets)
        if not tickets:
            return
        batch = [envelope for ticket in tickets for envelope in ticket.envelopes]
        buffers, places, total = self._frame(batch)
        self._unsynced = True
        try:
            self._segments.write(buffers, total, False)
        except OSError as error:
            self._not_written(tickets, error)
        else:
            self._written += len(batch)
            self._apply(tickets, batch, places)

    def _frame(self, batch: list[Envelope]) -> tuple[list[Body], list[LogLocation], int]:
        synced = self._written if self._sync.always else self._synced_through
        return self._segments.frame(self._written, batch, synced)

    def _not_written(self, tickets: list[Ticket], error: OSError) -> None:
        count = sum(len(ticket.envelopes) for ticket in tickets)
        _log.error("commit_failed", error=str(error), envelopes=count)
        self._refuse(tickets, f"the disk refused a write: {error}", _NONE)

    def _refuse(self, tickets: list[Ticket], why: str, allowed: frozenset[Kind]) -> None:
        """Refuse tickets, and later ones in line but for these kinds:

        they must not overtake them.
        """
        self._behind, self._allowed_behind, self._refusal = len(self._waiting), allowed, why
        self.on_refusal()
        for ticket in tickets:
            ticket.set_error(KafkaError(Code.KAFKA_STORAGE_ERROR, why))

    def _apply(
        self, tickets: list[Ticket], batch: list[Envelope], places: list[LogLocation]
    ) -> None:
        first, last = self._applied, places[-1]
        end = (last.segment, last.position + last.length)  # a body ends its frame
        self._applied += len(batch)
        outcomes = self._deliver(first, batch, places, end)
        start = 0
        for ticket in tickets:
            ticket.set_outcomes(outcomes[start : start + len(ticket.envelopes)])
            start += len(ticket.envelopes)

    async def _write(self, buffers: list[Body], total: int, through: int) -> None:
        if self._sync.always:
            await self._thread.run(partial(self._write_synced, buffers, total, through))
            return
        self._unsynced = True
        write = partial(self._segments.write, buffers, total, False)
        if total >= _THREAD_FROM_BYTES or self._segments.slow:
            await self._on_thread(write)
        else:
            write()

    async def _on_thread(self, call: Callable[[], None]) -> None:
        """Run a call that may block; not behind an fsync that may hang."""
        if self._thread.busy and not self._sync.always:
            await on_disk(call)
        else:
            await self._thread.run(call)

    def _write_synced(self, buffers: list[Body], total: int, through: int) -> None:
        self._segments.write(buffers, total, True)
        self._segments.is_synced(through, self._segments.active, self._segments.end)

    async def roll(self) -> None:
        """Let the next envelope begin a new segment, so that the active one can be freed."""
        if self._rolled.is_set():
            self._rolled = anyio.Event()
            self._work.set()
        await self._rolled.wait()

    async def _roll_if_possible(self) -> None:
        try:
            await self._roll()
        except OSError as error:
            _log.warning("segment_not_begun", error=str(error))  # the active one goes on

    async def _roll(self) -> None:
        try:
            await self._force()
            await self._thread.run(partial(self._segments.start, self._applied))
            self._deliver(self._applied, [], [], (self._segments.active, 0))
        finally:
            self._rolled.set()

    def _with_room(self, tickets: list[Ticket]) -> list[Ticket]:
        """Refuse what the disk has no room for; see `DiskSpace`."""
        if self._behind:
            tickets = self._without_those_behind(tickets)
        wanted = _framed_bytes(tickets)
        allowed = self._disk_space.allowed_kinds(wanted)
        if allowed is ALL:
            self._disk_space.count(wanted)
            return tickets
        kept, refused = _divided(tickets, allowed)
        if refused:
            self._refuse(refused, FULL, allowed)
        self._disk_space.count(_framed_bytes(kept))
        return kept

    def _without_those_behind(self, tickets: list[Ticket]) -> list[Ticket]:
        """Refuse those that stood in line behind what was refused: a commit's worth at a time."""
        count = min(self._behind, len(tickets))
        kept, refused = _divided(tickets[:count], self._allowed_behind)
        self._behind -= count
        for ticket in refused:
            ticket.set_error(KafkaError(Code.KAFKA_STORAGE_ERROR, self._refusal))
        return kept + tickets[count:]


def _framed_bytes(tickets: Iterable[Ticket]) -> int:
    return sum(t.size + FRAME_BYTES * len(t.envelopes) for t in tickets)


def _divided(
    tickets: Iterable[Ticket], allowed: frozenset[Kind]
) -> tuple[list[Ticket], list[Ticket]]:
    """Return the tickets that hold these kinds alone, and the others."""
    kept: list[Ticket] = []
    refused: list[Ticket] = []
    for ticket in tickets:
        fits = all(envelope.kind in allowed for envelope in ticket.envelopes)
        (kept if fits else refused).append(ticket)
    return kept, refused


def _turns(tickets: list[Ticket]) -> Iterator[tuple[list[Ticket], int]]:
    """Yield the tickets that one turn of the loop applies, and the number of their envelopes."""
    turn: list[Ticket] = []
    count = units = 0
    for ticket in tickets:
        if turn and units + ticket.weight > TURN:
            yield turn, count
            turn, count, units = [], 0, 0
        turn.append(ticket)
        count += len(ticket.envelopes)
        units += ticket.weight
    yield turn, count
