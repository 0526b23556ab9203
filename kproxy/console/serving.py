"""uvicorn for the console: bounded connections, and a time for each request's head."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kproxy.console.origin import Application

_CONNECTIONS_MAX = 256
HEAD_S = 10.0
_HEAD_BYTES_MAX = 32 << 10
_STOP_S = 5
_BACKLOG = 128


class Connection(H11Protocol):
    """A browser's connection: one too many is dropped, and so is one that says nothing."""

    _looks: asyncio.TimerHandle | None = None
    _silent_since: Any = None
    """The request that was the last one when nothing had been said: a mark, to be compared."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS_MAX:
            transport.abort()
            return
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._looks is not None:
            self._looks.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Close a connection on which no request's head has come for some time."""
        waits = self.conn.their_state is h11.IDLE
        if waits and self._silent_since == (self.cycle,):
            self.transport.abort()
            return
        self._silent_since = (self.cycle,) if waits else None
        self._looks = self.loop.call_later(HEAD_S, self._look)


def server(
    app: Application, certificate: Path | None = None, key: Path | None = None
) -> uvicorn.Server:
    """Return a server of the application; `run` and `serve` take its socket."""
    config = uvicorn.Config(
        app, http=Connection, ws="none", lifespan="on", interface="asgi3", log_config=None,
        log_level="error", access_log=False, proxy_headers=False, server_header=False,
        date_header=True, backlog=_BACKLOG, timeout_keep_alive=5,
        timeout_graceful_shutdown=_STOP_S, h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
        ssl_certfile=certificate, ssl_keyfile=key,
    )  # fmt: skip
    config.load()  # which reads the certificate
    return uvicorn.Server(config)


def run(
    app: Application, listener: socket.socket, certificate: Path | None, key: Path | None
) -> None:
    """Serve until stopped by a signal."""
    server(app, certificate, key).run(sockets=[listener])
