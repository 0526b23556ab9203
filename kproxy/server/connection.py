"""One connection: a socket and the worker around a `RequestPipeline`, which decides the order.

The transport's callbacks go to the pipeline, and the pipeline's actions to the transport. `run`
answers the exclusive requests, one after the other. Overlapping requests need no task.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, cast

import anyio
import structlog

from kproxy.common.counters import TIMED_EVERY, WAITED
from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.loop.asking import ASKING, Asking
from kproxy.protocol.codec import decode_header
from kproxy.protocol.frames import Frame
from kproxy.protocol.varint import Malformed, Superseded
from kproxy.security.certificates import BadCertificate, PrincipalRules
from kproxy.security.peer import Peer, holder
from kproxy.server import metering
from kproxy.server.admission import Place
from kproxy.server.descriptors import PeerIs, peer_is, unsent_bytes
from kproxy.server.dispatch import Accepted, accept, answer
from kproxy.server.pipeline.actions import Held, PipelinedRequest
from kproxy.server.pipeline.requests import RequestPipeline
from kproxy.server.served_listener import ANY_LISTENER, ServedListener
from kproxy.server.timeouts import ConnectionTimeouts
from kproxy.store.damage import Damaged
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker

_log = structlog.get_logger()

_SEND_BYTES = 1 << 20


class ConnectionLimiter(Protocol):
    """A limiter that knows all connections."""

    def register(self, connection: "Connection") -> None:
        """Add one more: its `run` will be run."""
        ...

    def unregister(self, connection: "Connection") -> None: ...


class _Left(Exception):
    """The client has gone: nobody waits for the answer."""


class Connection(asyncio.BufferedProtocol):
    """A connection: it serves one client until it leaves, misbehaves, falls silent or the server
    stops.
    """

    def __init__(
        self, worker: Worker, limiter: ConnectionLimiter, listener: ServedListener = ANY_LISTENER
    ) -> None:
        self._worker = worker
        self._listener = listener
        self.place: Place | None = None  # TLS: who accepted it has taken one before its handshake
        self.made = False
        self._counters = worker.counters
        self._quotas = worker.quotas
        self._limiter = limiter
        self._monotonic = worker.clock.monotonic
        self._next_request = NextRequestSignal()
        self._pipeline = RequestPipeline(
            self, self._next_request, worker.request_memory,
            frame_bytes_max=worker.config.frame_bytes_max,
            in_flight_max=worker.config.in_flight_requests_max,
        )  # fmt: skip
        self._muting = metering.Muting(self._quotas, self._pipeline, self._monotonic)
        self._timeouts = ConnectionTimeouts(worker.config, self._monotonic())
        self._exclusive: Accepted | None = None  # for `run` to answer
        self._begun = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._admitted = False
        self._asking = Asking()
        self._waited = [0.0]  # seconds in long polls of the exclusive request
        self._room: memoryview | None = None  # for the frame under way
        self._drained: asyncio.Future[None] | None = None  # while the client does not read

    # -- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.made = True
        self._loop = asyncio.get_running_loop()
        address = transport.get_extra_info("peername") or ("?", 0)
        self.ip = str(address[0])
        self.peer = Peer(host=self.ip, listener=self._listener.name)
        self._peer = f"{self.ip}:{address[1]}"
        self._counters.connections += 1
        before = self.place is not None
        if not before:
            self.place = self._listener.room.come(self.ip, new=self._listener.sasl)
        if self.place is None:
            self._counters.connections_ended["connection_refused"] += 1
            self.abort()
            return
        self._limiter.register(self)
        self._admitted = True
        self._known()
        self.place.end = self._pushed_out
        if self._listener.rules is not None:
            self._name_by_certificate(self._listener.rules)
        elif self._quotas.limits_connections and not before:
            self._leave_waiting(self._quotas.connected(self.ip))
        if not self._listener.sasl:
            self.place.known(self.peer.principal)

    def _known(self) -> None:
        """Use the parts of the client's user or address, as far as it is known."""
        self._asking.holder = holder(self.peer)
        self._pipeline.hold_in(self._worker.request_memory.part(self._asking.holder))
        self._answers = self._worker.answer_memory.part(self._asking.holder)

    def _pushed_out(self, event: str) -> None:
        """Close the connection, which has lost its place."""
        self._counters.connections_ended[event] += 1
        _log.warning(event, peer=self._peer, listener=self.peer.listener)
        self.abort()

    def _name_by_certificate(self, rules: PrincipalRules) -> None:
        ssl_object = self._transport.get_extra_info("ssl_object")
        try:
            principal = rules.principal(ssl_object.getpeercert(binary_form=True))
        except BadCertificate as error:
            self._counters.connections_ended["certificate_refused"] += 1
            _log.warning("certificate_refused", peer=self._peer, reason=str(error))
            self.abort()
            return
        self.peer = self.peer._replace(principal=principal)
        self._known()
        if not self._listener.sasl:
            _log.info(
                "login", peer=self._peer, listener=self.peer.listener, principal=principal,
                mechanism="certificate", again=False,
            )  # fmt: skip

    def _leave_waiting(self, wait_s: float) -> None:
        """Close it after so many seconds: too many connections come from its address."""
        if wait_s:
            self._counters.connections_ended["connection_refused"] += 1
            self._muting.until_end(wait_s, self.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the loop puts the next bytes, before it asks anybody else."""
        room = self._room = self._pipeline.room()
        return self._worker.read_buffer if room is None else room

    def buffer_updated(self, count: int) -> None:
        self._timeouts.active(self._monotonic())
        if self._room is None:
            self._pipeline.data_received(self._worker.read_buffer[:count])
        else:
            self._room = None
            self._pipeline.room_filled(count)

    def eof_received(self) -> bool:
        self._timeouts.left(self._monotonic())
        self._pipeline.end_input()
        return self._listener.tls is None  # then what was accepted is still answered

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._timeouts.unread(self._monotonic(), unsent_bytes(self._transport))
        self._pipeline.pause_writing()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if self._pipeline.closed:
            self._timeouts.unread(self._monotonic(), unsent_bytes(self._transport))
        else:
            self._timeouts.all_read()
        if drained is not None and not drained.done():
            drained.set_result(None)
        self._pipeline.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._scope.cancel()
        self._muting.cancel()
        self._pipeline.lost()
        self._next_request.gone = True
        self._worker.share_sessions.disconnected(self._next_request.connection)
        if self.place is not None:
            self.place.leave()
        if self._admitted:
            self._limiter.unregister(self)

    # -- what the server calls

    async def run(self) -> None:
        """Answer the exclusive requests, for as long as the connection lasts."""
        WAITED.set(self._waited)
        ASKING.set(self._asking)
        with self._scope:
            while not self._pipeline.closed:
                await self._begun.wait()
                self._begun.clear()
                try:
                    await self._answer_exclusive()
                except _Left:
                    return
                except Exception as error:
                    if not self._pipeline.closed:
                        self._pipeline.fail(error)
                    elif not isinstance(error, Malformed):
                        self.report(error)

    def stop_reading(self) -> None:
        """Take no more requests; those accepted are still answered."""
        self._pipeline.stop()

    def expire(self) -> None:
        """End the connection where a time is over, or its client gone. Called every second."""
        if not self._pipeline.reading:
            self._look_for_client()
        event = self._timeouts.expired(
            self._monotonic(), lambda: unsent_bytes(self._transport),
            idle=self._pipeline.idle, inside_frame=self._pipeline.inside_frame,
        )  # fmt: skip
        if event is not None:
            self._counters.connections_ended[event] += 1
            (_log.debug if event == "connection_idle" else _log.warning)(event, peer=self._peer)
            self.abort()

    def _look_for_client(self) -> None:
        """Look whether the client has left: while the socket is not read, nobody says so."""
        there = peer_is(self._transport)
        if there is PeerIs.HERE:
            return
        if there is PeerIs.GONE or (self._pipeline.muted and self._pipeline.idle):
            self.abort()  # its waiting requests were never taken
            return
        self._timeouts.left(self._monotonic())
        self._next_request.arrive()  # a long poll ends

    # -- what the pipeline has done

    def accept(self, frame: Frame) -> Accepted:
        counters = self._counters
        if self._quotas.active:
            self._hold_back(frame)
        counters.requests += 1
        counters.request_bytes += len(frame)
        if self._quotas.active:
            return self._accept_metered(frame)
        if counters.requests % TIMED_EVERY:
            return accept(self._worker, frame, self.peer, self._next_request)
        return self._accept_timed(frame)

    def _accept_timed(self, frame: Frame) -> Accepted:
        counters = self._counters
        began = self._monotonic()
        accepted = accept(self._worker, frame, self.peer, self._next_request)
        accepted.began = began
        if accepted.call is not None:
            names = accepted.call.queues()
            for name in names:
                counters.busy_in.add(name, TIMED_EVERY * len(frame) // len(names))
        return accepted

    def _accept_metered(self, frame: Frame) -> Accepted:
        began = self._monotonic()
        if self._counters.requests % TIMED_EVERY:
            accepted = accept(self._worker, frame, self.peer, self._next_request)
        else:
            accepted = self._accept_timed(frame)
        if accepted.call is not None:
            took = self._monotonic() - began
            wait_s = metering.appended(self._quotas, self.peer, accepted, took)
            self._muting.mute(wait_s, self.peer, accepted.header.client_id)
        return accepted

    def _hold_back(self, frame: Frame) -> None:
        """Raise Held for a client that is to wait already, by another connection perhaps."""
        header = decode_header(frame, loads=False)
        wait_s = metering.owed(self._quotas, self.peer, header)
        if wait_s:
            self._muting.mute(wait_s, self.peer, header.client_id)
            raise Held

    def begin(self, request: PipelinedRequest) -> None:
        self._exclusive = cast(Accepted, request)
        self._begun.set()

    def flush_soon(self) -> None:
        self._loop.call_soon(self._pipeline.flush)

    def send(self, frames: list[bytes]) -> None:
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self._counters.response_bytes += len(data)
        self._counters.writes += 1
        self._transport.write(data)
        self._timeouts.active(self._monotonic())

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection; sent bytes still go out, for as long as the client reads."""
        if self._drained is None:
            self._timeouts.unread(self._monotonic(), unsent_bytes(self._transport))
        if not self._transport.is_closing():  # closed twice, asyncio's for TLS answers no more
            self._transport.close()

    def abort(self) -> None:
        """End the connection, whatever it waits for."""
        self._transport.abort()

    def report(self, error: Exception) -> None:
        """Log an error: a peer's fault is one line, one of ours a trace."""
        if isinstance(error, Superseded):  # a client that recovers has one connection too many
            self._counters.connections_ended["request_superseded"] += 1
            _log.info("request_superseded", peer=self._peer, reason=str(error))
        elif isinstance(error, Malformed):
            self._counters.connections_ended["request_refused"] += 1
            _log.warning("request_refused", peer=self._peer, reason=str(error))
        elif isinstance(error, Damaged):  # it was said where; the next answer says which queue
            self._counters.connections_ended["batch_damaged"] += 1
        else:
            self._counters.connections_ended["request_failed"] += 1
            _log.error("request_failed", peer=self._peer, exc_info=error)

    # -- answering an exclusive request

    async def _answer_exclusive(self) -> None:
        self._check_here()
        request, self._exclusive = self._exclusive, None
        assert request is not None
        began, self._waited[0] = self._monotonic(), 0.0
        answering = self._respond(self._worker, request)
        if self._quotas.active:
            metered = metering.answered(self._quotas, self.peer, request, answering)
            response, wait_s = await metered
            self._check_here()
            self._muting.mute(wait_s, self.peer, request.header.client_id)
        else:
            response = await answering
        timed = self._counters.request_seconds.get(request.header.api_key)
        if timed is not None:
            timed.observe(self._monotonic() - began - self._waited[0])
        if isinstance(response, StreamedResponse):
            await self._send_streamed(response)
        elif response:
            await self._send(response)
        self._check_here()
        self._timeouts.active(self._monotonic())
        self._pipeline.answered()

    def _respond(
        self, worker: Worker, request: Accepted
    ) -> Coroutine[Any, Any, bytes | bytearray | StreamedResponse]:
        return answer(worker, request)

    async def _send_streamed(self, response: StreamedResponse) -> None:
        """Send an answer chunk by chunk.

        A client that reads slowly by many connections holds its part.
        """
        with response.pinned():
            while (chunk := await response.read()) is not None:
                await self._send(chunk)
                await self._answers.wait_for_room()

    async def _send(self, frame: bytes | bytearray) -> None:
        memory = self._answers
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

    async def _write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, and wait until the transport takes more."""
        self._check_here()
        self._counters.response_bytes += len(data)
        self._counters.writes += 1
        self._transport.write(data)
        if self._drained is not None:
            await self._drained

    def _check_here(self) -> None:
        """Raise _Left if it was closed: the scope does not reach what was awaited just now."""
        if self._pipeline.closed:
            raise _Left
