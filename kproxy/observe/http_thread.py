"""A small HTTP/1.1 server on a thread with an event loop of its own.

It goes on when the worker's loop is stuck. h11 understands the bytes, and asyncio moves them: what
uvicorn and starlette bring beyond that is not needed for four addresses, and takes five times the
memory. Left out: bodies of requests, ranges, compression.

Bounds: connections, TLS handshakes, bytes of a request's head, seconds for a whole request, and
seconds of silence between two. Where there are too many connections, that one ends which has been
waiting for its client longest: so nobody keeps a probe out.
"""

import asyncio
import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

import h11
import structlog

_log = structlog.get_logger()

CONNECTIONS_MAX = 16
_HEAD_BYTES_MAX = 16 << 10
_REQUEST_S = 5.0
_ANSWER_S = 30.0
_IDLE_S = 75.0
_STOP_S = 2.0
_ACCEPT_AGAIN_S = 0.1
_READ_BYTES = 4096


class Answer(NamedTuple):
    """What a path says."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Answer]]
"""By path; called on a thread, one at a time, but for those of `OPEN`: they wait for nothing."""


class HttpThread:
    """Serves `pages` at a bound socket until `stop`."""

    def __init__(
        self, listening: socket.socket, pages: Pages, *,
        token: str | None = None, tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        """`token`: what every request has to bear, but for /livez and /readyz."""
        self._socket = listening
        self._pages = pages
        self._token = None if token is None else f"Bearer {token}".encode()
        self._tls = tls
        self._open = 0
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # for their clients, longest first
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._turn = asyncio.Lock()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End connections and wait for the thread, for a while."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            _log.exception("http_failed")
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        self._socket.setblocking(False)
        accepting = asyncio.create_task(self._accept())
        await asyncio.wait(
            (accepting, asyncio.create_task(self._stopping.wait())),
            return_when=asyncio.FIRST_COMPLETED,
        )
        self._socket.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not accepting.cancelled():
            accepting.result()

    async def _accept(self) -> None:
        """Of connections that are made as of others: who is longest at it ends for another."""
        making: dict[asyncio.Task[None], None] = {}
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._socket)
            except OSError:  # it has gone, or there are too many files
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(making) >= CONNECTIONS_MAX:
                longest = next(iter(making))
                del making[longest]
                longest.cancel()
            task = asyncio.create_task(self._make(accepted))
            making[task] = None
            task.add_done_callback(lambda done: making.pop(done, None))
            await asyncio.sleep(0)  # it begins: what never began would not close its socket

    async def _make(self, accepted: socket.socket) -> None:
        """Have a connection be served, after its TLS handshake if there is to be one."""
        reader = asyncio.StreamReader(limit=_HEAD_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader, self._connected)
        with suppress(OSError, TimeoutError):  # the client has gone, or speaks no TLS
            await self._loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _REQUEST_S,
                ssl_shutdown_timeout=None if self._tls is None else _STOP_S,
            )  # fmt: skip

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        ended = False
        try:
            if self._open > CONNECTIONS_MAX and self._waiting:
                longest = next(iter(self._waiting))
                del self._waiting[longest]
                longest.transport.abort()
            elif self._open > CONNECTIONS_MAX:
                return
            writer.transport.set_write_buffer_limits(0)  # what is drained was sent
            await self._converse(reader, writer)
            ended = True
        except (OSError, TimeoutError, asyncio.CancelledError, h11.ProtocolError):
            pass  # the client has gone, is too slow, or does not speak HTTP
        finally:
            self._open -= 1
            # What a client does not read would be kept for it otherwise, for ever.
            writer.close() if ended and not self._stopping.is_set() else writer.transport.abort()

    @contextmanager
    def _waits(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """For its client: it may be ended for another one."""
        self._waiting[writer] = None
        try:
            yield
        finally:
            self._waiting.pop(writer, None)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES_MAX)
        wait_s = _REQUEST_S
        while True:
            try:
                with self._waits(writer):
                    request = await asyncio.wait_for(_next_request(connection, reader), wait_s)
            except h11.RemoteProtocolError as error:
                await self._send(connection, writer, Answer(error.error_status_hint, b""), True)
                return
            if request is None:
                return
            answer = await self._answered(request)
            await self._send(connection, writer, answer, request.method == b"HEAD")
            if {connection.our_state, connection.their_state} != {h11.DONE}:
                return
            connection.start_next_cycle()
            wait_s = _IDLE_S

    async def _answered(self, request: h11.Request) -> Answer:
        path = request.target.split(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        if request.method not in (b"GET", b"HEAD"):
            return Answer(405, b"GET or HEAD\n")
        if path not in OPEN and not self._may(request):
            return Answer(401, b"a bearer token is needed\n")
        if page is None:
            return Answer(404, "\n".join(self._pages).encode() + b"\n")
        if path in OPEN:
            return page()
        async with self._turn:
            return await self._loop.run_in_executor(None, page)

    def _may(self, request: h11.Request) -> bool:
        if self._token is None:
            return True
        said = dict(request.headers).get(b"authorization", b"")
        return hmac.compare_digest(said, self._token)

    async def _send(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer, bare: bool
    ) -> None:
        headers = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body)))]
        if answer.status == 401:
            headers.append(("WWW-Authenticate", "Bearer"))
        head = h11.Response(status_code=answer.status, headers=headers)
        writer.write(connection.send(head) or b"")
        if not bare and answer.body:
            writer.write(connection.send(h11.Data(data=answer.body)) or b"")
        with suppress(h11.LocalProtocolError):  # of an answer to HEAD the body is not sent
            writer.write(connection.send(h11.EndOfMessage()) or b"")
        with self._waits(writer):
            await asyncio.wait_for(writer.drain(), _ANSWER_S)


OPEN = frozenset(("/livez", "/readyz"))
"""Paths that say nothing but yes or no: probes cannot all bear a token, nor wait for a scrape."""


async def _next_request(
    connection: h11.Connection, reader: asyncio.StreamReader
) -> h11.Request | None:
    """The next request, its body passed over; None: the client has gone. Raises ProtocolError."""
    request: h11.Request | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return None
