"""One connection: frames in, answers out in request order, everything between bounded.

Produces overlap: each is appended as it arrives, and answered when durable, without a task of its
own (measured: a task step for each costs more than the rest of it). Any other request starts when
all before it have been answered, and a Produce behind it waits for it, as with Kafka, which takes
one request of a connection at a time. A long poll ends when something waits behind it: Spark asks
for offsets behind each Fetch, and with Kafka waits half a second for each.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Protocol, cast

import anyio
import structlog

from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.protocol.frames import FrameAssembler
from kproxy.protocol.varint import Malformed
from kproxy.server.descriptors import unsent_bytes
from kproxy.server.dispatch import Accepted, accept, answer, produced
from kproxy.worker.worker import NextRequestSignal, Worker

_log = structlog.get_logger()

_SEND_BYTES = 1 << 20
_TAKEN_BYTES_MIN = 64 << 10
"""What a client takes of its answers in `send_stalled_ms_max`, or it is one that does not read."""


class ConnectionLimiter(Protocol):
    """Who counts connections."""

    def register(self, connection: "Connection") -> bool:
        """Whether there is room for one more; if so, `run` will be run."""
        ...

    def unregister(self, connection: "Connection") -> None: ...


class _Left(Exception):
    """The client has gone: nobody waits for the answer."""


class PendingRequest:
    """A request in line."""

    __slots__ = ("accepted", "begun", "done", "size")

    def __init__(self, accepted: Accepted, size: int) -> None:
        self.accepted = accepted
        self.size = size
        self.done = False
        self.begun = False


class Connection(asyncio.Protocol):
    """Serves one client until it leaves, misbehaves, falls silent or the server stops.

    Callbacks of the transport and of the log do everything but answering what overlaps with
    nothing, which `run` does.
    """

    def __init__(self, worker: Worker, limiter: ConnectionLimiter) -> None:
        self._worker = worker
        self._config = worker.config
        self._limiter = limiter
        self._memory = worker.request_memory
        self._assembler = FrameAssembler(worker.config.frame_bytes_max)
        self._unfinished = 0  # bytes of a request that is not whole yet
        self._frames: deque[bytes] = deque()  # whole, not in line yet
        self._line: deque[PendingRequest] = deque()
        self._serial = 0  # of the line, those that do not overlap
        self._behind = NextRequestSignal()
        self._turn = asyncio.Event()  # the first in line is for `run`
        self._scope = anyio.CancelScope()
        self._reading = True
        self._ended = False  # no more requests are taken
        self._closed = False
        self._admitted = False
        self._advancing = self._taking = self._wants_room = self._soon = False
        self._drained: asyncio.Future[None] | None = None  # while the client does not read
        self._sending_since: float | None = None
        self._unsent = 0  # as of then
        self.active_at = time.monotonic()

    # -- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        address = transport.get_extra_info("peername") or ("?", 0)
        self.ip = str(address[0])
        self._peer = f"{self.ip}:{address[1]}"
        self._admitted = self._limiter.register(self)
        if not self._admitted:
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.active_at = time.monotonic()
        try:
            complete = self._assembler.feed(data)
            self._note_unfinished(self._assembler.buffered_bytes)
        except Malformed as error:
            self._fail(error)
            return
        for frame in complete:
            self._memory.take(len(frame))
        self._frames += complete
        self._take_all()

    def eof_received(self) -> bool:
        self._end()
        return True  # what is in line is still answered

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._sending_since, self._unsent = time.monotonic(), unsent_bytes(self._transport)

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        self._sending_since = None
        if drained is not None and not drained.done():
            drained.set_result(None)
        self._advance()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._scope.cancel()
        held = sum(map(len, self._frames)) + sum(waiting.size for waiting in self._line)
        self._memory.give_back(self._unfinished + held)
        self._frames.clear()
        self._line.clear()
        self._memory.wait_no_more(self._has_room)
        if self._admitted:
            self._limiter.unregister(self)

    # -- what the server calls

    async def run(self) -> None:
        """Answer what overlaps with nothing, for as long as the connection lasts."""
        with self._scope:
            while not self._closed:
                await self._turn.wait()
                self._turn.clear()
                try:
                    await self._answer_first()
                except _Left:
                    return
                except Exception as error:
                    self._fail(error)

    def stop_reading(self) -> None:
        """Take no more requests; what is in line is still answered."""
        self._memory.give_back(sum(map(len, self._frames)))
        self._frames.clear()
        self._pause_reading()
        self._end()

    def abort(self) -> None:
        """End the connection, whatever it waits for."""
        self._transport.abort()

    def expire(self, now: float) -> None:
        """Called every so often: end a silent connection, or one that does not read."""
        self._note_taken(now)
        since = self.active_at if self._closed else self._sending_since
        if since is not None:
            if (now - since) * 1000 > self._config.send_stalled_ms_max:
                _log.warning("client_does_not_read", peer=self._peer)
                self.abort()
        elif self._unfinished and not self._line:
            if (now - self.active_at) * 1000 > self._config.receive_stalled_ms_max:
                _log.warning("client_stopped_inside_a_request", peer=self._peer)
                self.abort()
        elif not self._line and (now - self.active_at) * 1000 > self._config.connection_idle_ms_max:
            _log.debug("connection_idle", peer=self._peer)
            self.abort()

    def _note_taken(self, now: float) -> None:
        """A client that reads slowly is let: what it still has to take becomes less."""
        if self._sending_since is not None and not self._closed:
            unsent = unsent_bytes(self._transport)
            if unsent <= self._unsent - _TAKEN_BYTES_MIN:
                self._sending_since, self._unsent = now, unsent

    # -- in

    def _note_unfinished(self, count: int) -> None:
        self._memory.give_back(self._unfinished)
        self._memory.take(count)
        self._unfinished = count
        if count and self._memory.exhausted:
            raise Malformed("request memory is used up (request_bytes_buffered_max)")

    def _take_all(self) -> None:
        """Put what has come in line, and read on once all of it is."""
        self._taking = True
        try:
            while self._frames and not self._closed:
                if self._serial:
                    self._behind.arrive()
                    break
                if len(self._line) >= self._config.in_flight_requests_max:
                    break
                self._behind.reset()
                if not self._take(self._frames.popleft()):
                    return
        finally:
            self._taking = False
        if self._frames or self._ended:
            self._pause_reading()
            self._close_at_end()
        elif self._unfinished or self._memory.has_room:
            self._resume_reading()
        else:
            self._pause_reading()
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        if not self._wants_room:
            self._wants_room = True
            self._memory.when_room(self._has_room)

    def _has_room(self) -> None:
        self._wants_room = False
        self._take_all()

    def _take(self, frame: bytes) -> bool:
        size = len(frame)
        try:
            accepted = accept(self._worker, frame, "/" + self.ip, self._behind)
        except Exception as error:
            self._memory.give_back(size)
            self._fail(error)
            return False
        waiting = PendingRequest(accepted, size)
        self._line.append(waiting)
        if accepted.appending is None:
            self._serial += 1
            self._advance()
        else:
            accepted.appending.add_done_callback(lambda: self._settled(waiting))
        return True

    def _pause_reading(self) -> None:
        if self._reading and not self._closed:
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self._transport.resume_reading()

    def _end(self) -> None:
        self._ended = True
        self._close_at_end()

    def _close_at_end(self) -> None:
        if self._ended and not self._line and not self._frames and not self._closed:
            self._transport.close()

    # -- out

    def _settled(self, waiting: PendingRequest) -> None:
        """What is done in one turn of the loop is answered in one write."""
        waiting.done = True
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._advance_soon)

    def _advance_soon(self) -> None:
        self._soon = False
        self._advance()

    def _advance(self) -> None:
        """Answer from the front of the line what can be; then take what waits behind it."""
        if self._advancing or self._closed:
            return
        self._advancing = True
        try:
            self._answer_done()
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._advancing = False
        if not self._taking and (self._frames or not self._reading or self._ended):
            self._take_all()

    def _answer_done(self) -> None:
        self._write_done()
        if self._line and self._drained is None:
            first = self._line[0]
            if first.accepted.appending is None and not first.begun:
                first.begun = True
                self._turn.set()

    def _write_done(self) -> None:
        """What is done is answered, also where the next one ends the connection."""
        line = self._line
        frames = []
        try:
            while line and self._drained is None and line[0].done:
                frame = produced(line[0].accepted)
                if frame is not None:
                    frames.append(frame)
                self._answered()
        finally:
            if frames:
                self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    async def _answer_first(self) -> None:
        self._check_here()
        frame = await answer(self._worker, self._line[0].accepted)
        if isinstance(frame, StreamedResponse):
            await self._send_read(frame)
        elif frame:
            await self._send(frame)
        self._check_here()
        self._serial -= 1
        self._answered()
        self._advance()

    def _answered(self) -> None:
        self._memory.give_back(self._line.popleft().size)
        self.active_at = time.monotonic()

    async def _send(self, frame: bytes | bytearray) -> None:
        memory = self._worker.answer_memory
        memory.take(len(frame))
        try:
            if len(frame) <= _SEND_BYTES:
                await self._write(frame)
                return
            view = memoryview(frame)
            for start in range(0, len(view), _SEND_BYTES):
                await self._write(view[start : start + _SEND_BYTES])
        finally:
            memory.give_back(len(frame))

    async def _send_read(self, frame: StreamedResponse) -> None:
        with frame.pinned():
            while (chunk := await frame.read()) is not None:
                await self._send(chunk)
                await self._worker.answer_memory.wait_for_room()

    def _check_here(self) -> None:
        """The scope's end does not reach `run` where what that waits for came in the same turn.

        Raises:
            _Left: the connection was lost meanwhile.
        """
        if self._closed:
            raise _Left

    async def _write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, and wait until the transport takes more."""
        self._check_here()
        self._transport.write(data)
        if self._drained is not None:
            await self._drained

    # -- the boundary

    def _fail(self, error: Exception) -> None:
        """A peer's fault ends its connection with one log line, one of ours with a trace.

        What was written by then is sent, unless the client does not read.
        """
        if not isinstance(error, Malformed):
            _log.exception("request_failed", peer=self._peer)
        elif not self._closed:
            _log.warning("request_refused", peer=self._peer, reason=str(error))
        with suppress(Exception):
            self._write_done()
        if self._drained is None:
            self._closed = True
            self.active_at = time.monotonic()
            self._transport.close()
        else:
            self.abort()
