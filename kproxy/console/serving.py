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
    """A browser's connection: one too many is dropped, and so is one that asks for nothing, or does
    not read what it asked for.
    """

    _looks: asyncio.TimerHandle | None = None
    _stood: tuple[Any, int] | None = None
    """The request and the unsent bytes when nothing was going on, at the last look."""

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

    def shutdown(self) -> None:
        """End, for the console stops. A browser that is idle may not answer the end of TLS."""
        super().shutdown()
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def _look(self) -> None:
        """Close a connection on which nothing has come or gone since the last look."""
        unsent = self.transport.get_write_buffer_size()
        stands = self.conn.their_state is h11.IDLE or unsent > 0
        stood, self._stood = self._stood, (self.cycle, unsent) if stands else None
        if stands and stood == self._stood:
            self.transport.abort()
            return
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
