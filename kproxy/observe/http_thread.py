"""A small HTTP/1.1 server on a thread with an event loop of its own.

It goes on when the worker's loop is stuck. h11 understands the bytes, and asyncio moves them:
uvicorn and starlette would bring more than four addresses need, and take five times the memory.
Left out: bodies of requests, ranges, compression.

Bounds: connections that wait for their client (in a TLS handshake, before a whole request, while it
reads an answer), answers that are not read yet, pages that are made, bytes and lines of a request's
head, seconds for a whole request, and seconds of silence between two. If too many wait, or are not
read, one of the address that has most of them ends. A
page has a place of its own, of which an address has a quarter; a request that finds none is told so
at once. Probes need none: so nobody keeps them out.

Without a token every client that reaches the port may ask, and so may a page in a browser whose
name was made to point here. So names that anyone may own are refused: addresses are taken, names
without a dot, those that nobody owns (`.local`, `.internal`, `.svc`), and those that are given.
"""

import asyncio
import hmac
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

import h11
import structlog

from kproxy.security.crowd import Crowd
from kproxy.security.peer import network_of

_log = structlog.get_logger()

CONNECTIONS_MAX = 64
"""The number of connections that wait for their clients."""
PAGES_MAX = 16
UNREAD_MAX = 16
"""The number of answers that their clients have not read yet."""
_PARTS = 4
_BUSY = 429
"""Pages themselves say 503."""
_Crowd = Crowd["asyncio.Task[None]"]
_NOBODYS = frozenset(("local", "internal", "svc", "localhost"))
"""Ends of names that are of the network that a server is in."""
_HEAD_BYTES_MAX = 16 << 10
_HEAD_LINES_MAX = 100  # each of them takes some 10 us, while nobody else is answered
_HEAD_END = re.compile(rb"\n\r?\n")
_TOO_LARGE = 431
_REQUEST_S = 5.0
_ANSWER_S = 30.0
_IDLE_S = 75.0
_STOP_S = 2.0
_CANCEL_AGAIN_S = 0.02
_ACCEPT_AGAIN_S = 0.1
_READ_BYTES = 4096


class Answer(NamedTuple):
    """The answer of a path."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Answer]]
"""The pages by path; called on a thread, one at a time.

The pages of `OPEN` are not: they wait for nothing.
"""


class HttpThread:
    """A thread that serves `pages` at a bound socket until `stop`."""

    def __init__(
        self, listening: socket.socket, pages: Pages, *,
        token: str | None = None, tls: ssl.SSLContext | None = None, names: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Take `token`, which every request has to bear, but for /livez and /readyz.

        `names`: by which it may be asked without one.
        """
        self._socket = listening
        self._pages = pages
        self._token = None if token is None else f"Bearer {token}".encode()
        self._tls = tls
        self._names = frozenset(name.lower() for name in names)
        self._fresh: _Crowd = Crowd()  # connections that wait for their clients
        self._idle: _Crowd = Crowd()  # connections that had an answer
        self._places: dict[asyncio.Task[None], tuple[_Crowd, str]] = {}
        self._unread: _Crowd = Crowd()  # connections whose answers are not read yet
        self._making: Counter[str] = Counter()  # pages, by address
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
        accepting.cancel()
        for _ in range(2):  # a transport hears of its TLS, before which it would not close
            await asyncio.sleep(0)
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:  # wait_for may have a result for it instead: then once more
                task.cancel()
            await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)
        if not accepting.cancelled():
            accepting.result()

    async def _accept(self) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(self._socket)
            except OSError:  # it has gone, or there are too many files
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            network = network_of(str(address[0]))
            task = asyncio.create_task(self._serve_one(accepted, network))
            self._wait_for_client(task, network)
            await asyncio.sleep(0)  # it begins: what never began would not close its socket

    def _wait_for_client(
        self, task: "asyncio.Task[None]", network: str, *, idle: bool = False
    ) -> None:
        """Note a connection that may be ended for another one, until `_goes_on`.

        A connection that had an answer ends first.
        """
        if len(self._places) >= CONNECTIONS_MAX:
            crowd = self._idle if self._idle.count else self._fresh
            longest = crowd.oldest(crowd.most()[0])
            self._goes_on(longest)
            longest.cancel()
        crowd = self._idle if idle else self._fresh
        self._places[task] = crowd, network
        crowd.add(network, task)

    def _goes_on(self, task: "asyncio.Task[None]") -> None:
        place = self._places.pop(task, None)
        if place is not None:
            crowd, network = place
            crowd.drop(network, task)

    @contextmanager
    def _waits(self, network: str, *, idle: bool = False) -> Iterator[None]:
        """Wait for its client, which is idle between an answer and its next request."""
        task = asyncio.current_task()
        assert task is not None
        if task not in self._places:
            self._wait_for_client(task, network, idle=idle)
        try:
            yield
        finally:
            self._goes_on(task)

    async def _serve_one(self, accepted: socket.socket, network: str) -> None:
        """Serve one connection, from its TLS handshake on, if there is to be one."""
        reader = asyncio.StreamReader(limit=_HEAD_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        writer: asyncio.StreamWriter | None = None
        try:
            with self._waits(network):
                transport, _ = await self._loop.connect_accepted_socket(
                    lambda: protocol, accepted, ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else _REQUEST_S,
                    ssl_shutdown_timeout=None if self._tls is None else _STOP_S,
                )  # fmt: skip
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            writer.transport.set_write_buffer_limits(0)  # drained bytes were sent
            await self._converse(reader, writer, network)
            with self._waits(network):
                writer.close()
                await writer.wait_closed()  # a loop that ends before leaves the socket open
        except (OSError, TimeoutError, asyncio.CancelledError, h11.ProtocolError):
            pass  # the client has gone, is too slow, or does not speak HTTP
        finally:
            # asyncio closes what it could not make a transport of
            if writer is not None:  # unread bytes would be kept for the client for ever
                writer.transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, network: str
    ) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES_MAX)
        wait_s = _REQUEST_S
        while True:
            try:
                with self._waits(network, idle=wait_s is _IDLE_S):
                    request = await asyncio.wait_for(_next_request(connection, reader), wait_s)
            except h11.RemoteProtocolError as error:
                answer, bare = Answer(error.error_status_hint, b""), True
                await self._send(connection, writer, answer, network, bare=bare)
                return
            if request is None:
                return
            answer = await self._answered(request, network)
            bare = request.method == b"HEAD"
            await self._send(connection, writer, answer, network, bare=bare)
            if answer.status == _BUSY or {connection.our_state, connection.their_state} != {
                h11.DONE
            }:
                return
            connection.start_next_cycle()
            wait_s = _IDLE_S

    async def _answered(self, request: h11.Request, network: str) -> Answer:
        path = request.target.split(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        if request.method not in (b"GET", b"HEAD"):
            return Answer(405, b"GET or HEAD\n")
        if path not in OPEN and self._misnamed(request):
            return Answer(421, b"another name than this server's: give http_hosts, or a token\n")
        if path not in OPEN and not self._may(request):
            return Answer(401, b"a bearer token is needed\n")
        if page is None:
            return Answer(404, "\n".join(self._pages).encode() + b"\n")
        if path in OPEN:
            return page()
        return await self._made(page, network)

    async def _made(self, page: Callable[[], Answer], network: str) -> Answer:
        """Return a page, made in one of the places for pages."""
        making = self._making
        if making.total() >= PAGES_MAX or making[network] >= PAGES_MAX // _PARTS:
            return Answer(_BUSY, b"too many ask for pages at once\n")
        making[network] += 1
        try:
            async with self._turn:
                return await self._loop.run_in_executor(None, page)
        finally:
            making[network] -= 1
            if not making[network]:
                del making[network]

    def _misnamed(self, request: h11.Request) -> bool:
        """Whether the name that it was asked by is one that anyone may own."""
        if self._token is not None:
            return False
        host = dict(request.headers).get(b"host", b"").decode("latin-1").lower()
        name = host.partition(":")[0].rstrip(".")
        top = name.rpartition(".")[2]
        if host.startswith("[") or top.isdecimal():  # an address
            return False
        return "." in name and top not in _NOBODYS and name not in self._names

    def _may(self, request: h11.Request) -> bool:
        if self._token is None:
            return True
        said = dict(request.headers).get(b"authorization", b"")
        return hmac.compare_digest(said, self._token)

    async def _send(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer,
        network: str, *, bare: bool,
    ) -> None:  # fmt: skip
        headers = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body)))]
        if answer.status == 401:
            headers.append(("WWW-Authenticate", "Bearer"))
        head = h11.Response(status_code=answer.status, headers=headers)
        writer.write(connection.send(head) or b"")
        if not bare and answer.body:
            writer.write(connection.send(h11.Data(data=answer.body)) or b"")
        with suppress(h11.LocalProtocolError):  # the body of an answer to HEAD is not sent
            writer.write(connection.send(h11.EndOfMessage()) or b"")
        with self._waits(network):  # a client that reads an answer is not idle
            if writer.transport.get_write_buffer_size():
                await self._read(writer, network)

    async def _read(self, writer: asyncio.StreamWriter, network: str) -> None:
        """Wait until a client has read its answer; another one may have to go for it."""
        task, unread = asyncio.current_task(), self._unread
        assert task is not None
        if unread.count >= UNREAD_MAX:
            holder = unread.most()[0]
            longest = unread.oldest(holder)
            unread.drop(holder, longest)
            longest.cancel()
        unread.add(network, task)
        try:
            await asyncio.wait_for(writer.drain(), _ANSWER_S)
        finally:
            if unread.has(network, task):
                unread.drop(network, task)


OPEN = frozenset(("/livez", "/readyz"))
"""Paths that say nothing but yes or no: probes cannot all bear a token, nor wait for a scrape."""


async def _next_request(
    connection: h11.Connection, reader: asyncio.StreamReader
) -> h11.Request | None:
    """Return the next request; None: the client has gone. Raises ProtocolError.

    The connection is not done with a request that has a body: it ends with the answer.
    """
    while True:
        _check_lines(connection.trailing_data[0])
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            connection.next_event()  # its end, where it has no body
            return event
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return None


def _check_lines(received: bytes) -> None:
    """Raise ProtocolError: the head that this begins with has too many lines."""
    end = _HEAD_END.search(received)
    if received.count(b"\n", 0, end.end() if end else len(received)) > _HEAD_LINES_MAX:
        raise h11.RemoteProtocolError("too many lines", error_status_hint=_TOO_LARGE)
