"""The acceptance of connections: sockets, places that count from the first packet, TLS handshakes.

A TLS handshake counts as a connection from its beginning, and must be over in time. asyncio's own
server would neither count those nor take another certificate later.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from kproxy.common.counters import Counters
from kproxy.common.errors import CannotStart
from kproxy.config.listeners import ListenerConfig
from kproxy.security.quotas import Quotas
from kproxy.security.tls import Tls
from kproxy.server.admission import Place, Room
from kproxy.server.connection import Connection
from kproxy.server.tls_protocol import TlsProtocol

_log = structlog.get_logger()

BACKLOG = 1024
_PAUSE_S = 0.1
_GONE = (errno.ECONNABORTED, errno.EPROTO)
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_GOODBYE_S = 5.0
"""The seconds that a client has to answer the end of TLS."""


def bound_sockets(listener: ListenerConfig) -> list[socket.socket]:
    """Return a socket for each address that the host's name stands for. Raises CannotStart."""
    host, port = listener.address
    found: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in addresses:
            if port == 0 and found:
                address = (address[0], found[0].getsockname()[1], *address[2:])
            try:
                found.append(_bound(family, address))
            except OSError as error:
                if error.errno not in _NOT_HERE or len(addresses) == 1:
                    raise
    except OSError as error:
        for one in found:
            one.close()
        raise CannotStart(f"cannot listen on {listener.listen}: {error.strerror}") from None
    return found


def _bound(family: int, address: Any) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(BACKLOG)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


class TlsAcceptor:
    """An acceptor of one socket: it makes a connection of each client whose handshake succeeds."""

    def __init__(
        self, listening: socket.socket, tls: Tls, make: Callable[[], Connection],
        room: Room, counters: Counters, quotas: Quotas, handshake_s: float,
    ) -> None:  # fmt: skip
        self._listening = listening
        self._tls = tls
        self._make = make
        self._room = room
        self._counters = counters
        self._quotas = quotas
        self._handshake_s = handshake_s
        self._handshakes: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Accept no more; handshakes under way are ended."""
        if self._task is not None:
            self._task.cancel()
        for task in self._handshakes:
            task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno not in _GONE:
                    _log.warning("connection_refused", peer="?", reason=str(error))
                    await asyncio.sleep(_PAUSE_S)
                continue
            except Exception:  # a listener that takes nobody would be found out by its users
                _log.exception("accept_failed")
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                self._begin(client, str(address[0]))
            except Exception:
                _log.exception("accept_failed", peer=str(address[0]))
                client.close()

    def _begin(self, client: socket.socket, ip: str) -> None:
        """Begin a client's handshake, if there is a place for it."""
        loop = asyncio.get_running_loop()
        place = self._room.come(ip, new=True)
        if place is None:
            self._counters.connections_ended["connection_refused"] += 1
            client.close()
            return
        if self._quotas.limits_connections and (wait_s := self._quotas.connected(ip)):
            self._counters.connections_ended["connection_refused"] += 1
            place.end = partial(self._turn_away, client, place)
            loop.call_later(wait_s, place.end, "")
            return
        made: list[Connection] = []
        task = loop.create_task(self._shake_hands(client, place, made))
        self._handshakes.add(task)
        place.end = partial(self._push_out, task, ip)
        task.add_done_callback(partial(self._over, client, ip, place, made))

    def _push_out(self, task: asyncio.Task[None], ip: str, event: str) -> None:
        """End a handshake that has lost its place."""
        self._counters.connections_ended[event] += 1
        _log.warning(event, peer=ip)
        task.cancel()

    def _turn_away(self, client: socket.socket, place: Place, event: str) -> None:
        """Close the socket of a client from whose address too many connections come."""
        client.close()
        place.leave()

    async def _shake_hands(
        self, client: socket.socket, place: Place, made: list[Connection]
    ) -> None:
        def make() -> Connection:
            made.append(self._make())
            made[0].place = place
            return made[0]

        client.setblocking(False)
        with suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        protocol = TlsProtocol(loop, make(), self._tls.context, done, self._handshake_s, _GOODBYE_S)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, client)
        try:
            await done
        except BaseException:
            transport.abort()
            raise
        found = protocol._get_extra_info("ssl_object")
        self._counters.handshakes[found.version() or "?"] += 1

    def _over(
        self, client: socket.socket, ip: str, place: Place, made: list[Connection],
        task: asyncio.Task[None],
    ) -> None:  # fmt: skip
        """Clean up after a handshake, however it ended: if it failed nothing of it is left."""
        self._handshakes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        self._counters.handshakes["failed"] += 1
        if not (made and made[0].made):
            place.leave()
        with suppress(OSError):
            client.close()
        if isinstance(error, OSError):  # an ssl.SSLError is one, too
            _log.warning("tls_handshake_failed", peer=ip, reason=str(error))
        elif error is not None:
            _log.error("tls_handshake_failed", peer=ip, exc_info=error)
