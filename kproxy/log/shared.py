"""A shard's log on a partition of Kafka's data topic, to which other workers may append as well.

Our own envelopes are applied when their delivery reports say where they landed. Envelopes of other
workers are read. Applied envelopes go to the local copy without an fsync, because the copy can be
made again from the log.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import anyio
import structlog

from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Deliver, Log, Ticket
from kproxy.log.disk_space import ALL, FRAME_BYTES, FULL, DiskSpace
from kproxy.log.sequencer import Applied, LogChanged, Sequencer
from kproxy.log.truncation import Truncation
from kproxy.log.weight import weight
from kproxy.loop.callbacks import nothing
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.loop.pace import Pace
from kproxy.loop.threads import on_disk
from kproxy.store.segments import Segments
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.outcome import LogLocation, Outcome

_log = structlog.get_logger()

_PIECE_WEIGHT = 200  # units of weight written and applied in one piece: some milliseconds
_PIECE_BYTES = 4 << 20
_RETRY_S = 1.0
_READY_MAX = 8000
UNKNOWN_FATE = Outcome(
    Code.REQUEST_TIMED_OUT, message="the cluster did not say in time whether it has the record"
)


class Link(Protocol):
    """The way to the cluster, one for all shards of a worker."""

    writer: int

    def next_counter(self) -> int:
        """Return a number for an envelope of ours, greater than all before."""
        ...

    def send(self, partition: int, envelope: Envelope) -> None:
        """Send an envelope; its report comes to the log. Raises KafkaError: no room."""
        ...

    def read(self, partition: int, start: int, end: int) -> None:
        """Ask for the records from `start` to before `end`; they come to the log."""
        ...

    async def end(self, partition: int) -> int:
        """Return the offset behind the last record there is now. Raises KafkaError."""
        ...


UNPUBLISHED = "too many changed rows wait for the cluster to take them: try again"


def _everything() -> frozenset[Kind]:
    return ALL


class PartialTicket(Ticket):
    """A ticket whose envelopes land one by one."""

    __slots__ = ("_left", "_parts")

    def __init__(self, envelopes: list[Envelope]) -> None:
        super().__init__(envelopes)
        self._parts = [UNKNOWN_FATE] * len(envelopes)
        self._left = len(envelopes)

    def set_outcome(self, slot: int, outcome: Outcome) -> None:
        self._parts[slot] = outcome
        self._left -= 1
        if not self._left:
            self.set_outcomes(self._parts)


class SharedLog(Log):
    """One shard's log. Everything happens on the event loop; `Link` brings it there."""

    def __init__(
        self,
        partition: int,
        segments: Segments,
        deliver: Deliver,
        link: Link,
        *,
        segment_bytes: int,
        disk_space: DiskSpace,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._partition = partition
        self._monotonic = clock.monotonic
        self._segments = segments
        self._deliver = deliver
        self._link = link
        self._segment_bytes = segment_bytes
        self._disk_space = disk_space
        self._sequencer = Sequencer(link.writer, 0)
        self._applied = 0
        self._last = (0, 0)  # writer and counter of the last envelope that was applied
        self._tickets: dict[int, tuple[PartialTicket, int]] = {}  # by counter
        self._ready: deque[Applied] = deque()
        self._work = anyio.Event()
        self._drained = anyio.Event()
        self._disk = anyio.Lock()
        self._waiting: list[tuple[int, anyio.Event]] = []
        self._end_before = 0
        self._truncation = Truncation(clock)
        self._broken: LogChanged | None = None
        self._failed: Exception | None = None
        self._closing = False
        self.on_refusal: Callable[[], None] = nothing
        self.admitted: Callable[[], frozenset[Kind]] = _everything
        """The kinds that are taken now: fewer where rows wait for their publication."""

    @property
    def next_offset(self) -> int:
        return self._applied

    @next_offset.setter
    def next_offset(self, offset: int) -> None:
        self._applied = offset
        self._sequencer = Sequencer(self._link.writer, offset)

    @property
    def lag(self) -> int:
        """The number of records of the log, as far as its end was seen, that are not applied."""
        return max(0, self._end_before - self._applied)

    @property
    def waiting(self) -> int:
        """The number of appended envelopes that are not settled."""
        return len(self._tickets)

    # -- appending

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = PartialTicket(list(envelopes))
        refusal = self._refusal(ticket)
        if refusal is not None:
            self.on_refusal()
            ticket.set_error(refusal)
            return ticket
        full: KafkaError | None = None
        for slot, envelope in enumerate(ticket.envelopes):
            refused = full or self._send(ticket, slot, envelope)
            if refused is not None:
                ticket.set_outcome(slot, Outcome(refused.code, message=refused.message))
                if refused.code != Code.MESSAGE_TOO_LARGE:
                    self.on_refusal()
                    full = refused  # later tickets must not overtake it
        return ticket

    def _send(self, ticket: PartialTicket, slot: int, envelope: Envelope) -> KafkaError | None:
        envelope.writer, envelope.counter = self._link.writer, self._link.next_counter()
        self._sequencer.sent(envelope)
        self._tickets[envelope.counter] = (ticket, slot)
        try:
            self._link.send(self._partition, envelope)
        except KafkaError as error:
            self._sequencer.unreported(envelope.counter)
            del self._tickets[envelope.counter]
            return error
        return None

    def _refusal(self, ticket: Ticket) -> KafkaError | None:
        if self._closing or self._broken is not None:
            return KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "another worker serves this shard")
        admitted = self.admitted()
        if admitted is not ALL and any(one.kind not in admitted for one in ticket.envelopes):
            return KafkaError(Code.KAFKA_STORAGE_ERROR, UNPUBLISHED)
        wanted = ticket.size + FRAME_BYTES * len(ticket.envelopes)
        allowed = self._disk_space.allowed_kinds(wanted)
        if allowed is not ALL and any(one.kind not in allowed for one in ticket.envelopes):
            return KafkaError(Code.KAFKA_STORAGE_ERROR, FULL)
        self._disk_space.count(wanted)
        return None

    def _resolve(self, counter: int, outcome: Outcome) -> None:
        waiting = self._tickets.pop(counter, None)
        if waiting is not None:
            waiting[0].set_outcome(waiting[1], outcome)

    # -- what the link brings

    def reported(self, reports: list[tuple[int, int | None]]) -> None:
        """Take delivery reports: (counter, log offset; None: its fate is not known)."""
        sequencer = self._sequencer
        try:
            for counter, offset in reports:
                if offset is None:
                    sequencer.unreported(counter)
                    self.on_refusal()
                    self._resolve(counter, UNKNOWN_FATE)
                else:
                    self._ready += sequencer.reported(counter, offset)
        except LogChanged as error:
            self._broken = error
        except Exception as error:
            self._failed = error  # nothing is applied behind what could not be
        self._go_on()

    async def was_read(self, records: list[tuple[int, Envelope]]) -> None:
        """Take records as the log has them, in its order; return when more may come."""
        if (changed := self._truncation.look_at(records)) is not None:
            self._break(changed)
        try:
            self._ready += self._sequencer.read_all(records)
        except LogChanged as error:
            self._broken = error
        except Exception as error:
            self._failed = error
        self._go_on()
        if len(self._ready) > _READY_MAX and not self._closing:
            self._drained = anyio.Event()
            await self._drained.wait()

    def _go_on(self) -> None:
        if self._ready and not (self._disk.locked() or self._closing or self._failed):
            self._apply_at_once()
        if self._ready or self._broken or self._failed:
            self._work.set()
        sequencer = self._sequencer
        if sequencer.gap and self._broken is None:
            self._link.read(self._partition, sequencer.next_offset, sequencer.landed_through)

    def lost(self, reason: str) -> None:
        """Note that the log does not have the next record any more."""
        self._break(LogChanged(reason))

    def _break(self, changed: LogChanged) -> None:
        self._broken = changed
        self._work.set()

    def saw_end(self, end: int, applied: int, epoch: int = -1) -> None:
        """Take the log's end, asked for when `applied` was applied, and its leader's epoch.

        Others wrote the records that are missing here.
        """
        sequencer, truncation = self._sequencer, self._truncation
        if (changed := truncation.saw_end(end, applied)) is not None:
            self._break(changed)
        if end < applied:
            return
        if (at := truncation.led_anew(epoch, self._applied - 1, self._last)) is not None:
            self._link.read(self._partition, at, at + 1)
        if end > sequencer.next_offset:
            if not sequencer.waiting or self._end_before > sequencer.next_offset:
                self._link.read(self._partition, sequencer.next_offset, end)
        self._end_before = end

    def called(self, end: int) -> None:
        """Read on: another worker has appended a record before `end`."""
        if end > self._sequencer.next_offset:
            self._link.read(self._partition, self._sequencer.next_offset, end)

    async def catch_up(self, end: int | None = None) -> None:
        """Wait until all that is in the log by now, or before `end`, is applied. KafkaError."""
        if end is None:
            end = await self._link.end(self._partition)
        if end <= self._applied:
            return
        if not self._sequencer.waiting:
            self._link.read(self._partition, self._sequencer.next_offset, end)
        event = anyio.Event()
        self._waiting.append((end, event))
        await event.wait()
        if self._broken is not None or self._closing:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)

    # -- applying

    async def run(self) -> None:
        """Apply what is ready until closed. Raises LogChanged: the local copy is to be rebuilt."""
        try:
            while not self._closing:
                if self._failed is not None:
                    raise self._failed
                if not self._ready:
                    if self._broken is not None:
                        raise self._broken
                    self._work = anyio.Event()
                    await self._work.wait()
                pace = Pace()
                while self._ready:
                    await self._apply(self._take())
                    await pace.step()
                self._drained.set()
        finally:
            self._give_up()

    def _take(self) -> list[Applied]:
        """Return the next piece; an envelope that is heavier than one by itself goes alone."""
        taken: list[Applied] = []
        size, units, ready = 0, 0, self._ready
        while ready and size < _PIECE_BYTES:
            envelope = ready[0].envelope
            units += weight(envelope)
            if units > _PIECE_WEIGHT and taken:
                break
            size += len(envelope.body)
            taken.append(ready.popleft())
        return taken

    def _apply_at_once(self) -> None:
        """Apply a little at once; `run` goes on with the rest, or where that fails or may hang."""
        pace, segments = Pace(), self._segments
        while self._ready and not pace.due and not segments.may_hang(self._segment_bytes):
            taken = self._take()
            try:
                self._apply_written(taken, self._write(taken))
            except OSError:
                self._ready.extendleft(reversed(taken))
                return
            except Exception as error:
                self._failed = error
                return

    async def _apply(self, taken: list[Applied]) -> None:
        async with self._disk:
            while True:
                try:
                    write = partial(self._write, taken)
                    hangs = self._segments.may_hang(self._segment_bytes)
                    places = await on_disk(write) if hangs else write()
                    break
                except OSError as error:  # the log has it: wait until the local copy can
                    _log.error("local_copy_not_written", shard=self._partition, error=str(error))
                    await anyio.sleep(_RETRY_S)
            self._apply_written(taken, places)

    def _write(self, taken: list[Applied]) -> list[LogLocation]:
        """Write a piece into the local copy. Raises OSError: nothing of it was written."""
        first, batch = taken[0].offset, [one.envelope for one in taken]
        assert first == self._applied, f"{first} after {self._applied}: part of the log is missing"
        return self._segments.append(first, batch, self._segment_bytes)

    def _apply_written(self, taken: list[Applied], places: list[LogLocation]) -> None:
        first, batch = taken[0].offset, [one.envelope for one in taken]
        self._applied = first + len(batch)
        self._last = batch[-1].writer, batch[-1].counter
        outcomes = self._deliver(first, batch, places, (self._segments.active, self._segments.end))
        for one, outcome in zip(taken, outcomes, strict=True):
            if one.counter is not None:
                self._resolve(one.counter, outcome)
        if self._waiting:
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        for end, event in self._waiting:
            if end <= self._applied:
                event.set()
        self._waiting = [entry for entry in self._waiting if not entry[1].is_set()]

    def _give_up(self) -> None:
        """Settle all tickets: nothing is applied here any more, clients have to ask elsewhere."""
        self._closing = True
        for counter in list(self._tickets):
            self._resolve(counter, Outcome(Code.NOT_LEADER_OR_FOLLOWER))
        for _, event in self._waiting:
            event.set()
        self._drained.set()

    def close(self) -> None:
        self._closing = True
        self._work.set()

    async def sync(self) -> None:
        segments = self._segments
        while True:
            end = self._applied, segments.active, segments.end
            await on_disk(segments.sync)
            if not segments.unforced:  # else one was filled meanwhile
                segments.is_synced(*end)
                return

    @asynccontextmanager
    async def synced(self) -> AsyncIterator[None]:
        """Sync, and hold nothing up: a copy that has lost a part behind its mark is made again."""
        await self.sync()
        yield

    async def roll(self) -> None:
        async with self._disk:
            if self._segments.end:
                await on_disk(partial(self._segments.roll, self._applied))
                self._deliver(self._applied, [], [], (self._segments.active, 0))
