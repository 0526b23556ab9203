"""TLS of one connection, in buffers that stay small.

OpenSSL's memory BIOs never shrink, and neither uvloop's protocol nor asyncio's gives its own buffer
back: a burst of a megabyte left a megabyte with each connection. This one reads into a buffer that
all share, and hands OpenSSL little at a time either way. The states are asyncio's.
"""

import asyncio
from asyncio import sslproto
from ssl import SSLSyscallError, SSLWantReadError, SSLWantWriteError
from typing import Any

_READ_BYTES = 256 << 10
_SLICE_BYTES = 16 << 10
"""A TLS record: BIOs hold two at most. More at once is not faster."""
_PENDING_BYTES_MAX = 64 << 10
"""The bytes held while the application does not read, or write: as in a transport without TLS."""
_AGAIN = (SSLWantReadError, SSLWantWriteError, SSLSyscallError)
_OPEN = (sslproto.SSLProtocolState.WRAPPED, sslproto.SSLProtocolState.FLUSHING)
_encrypted = memoryview(bytearray(_READ_BYTES))
"""The bytes read last of any connection: they are taken before the loop reads another."""


_States: Any = sslproto.SSLProtocol
"""Its attributes are in no stub."""


class TlsProtocol(_States):  # type: ignore[misc]
    """The server's end of TLS between a transport and a buffered protocol."""

    max_size = 0  # the bytes of a buffer of its own
    _app_reading_paused: bool

    def __init__(
        self, loop: asyncio.AbstractEventLoop, app: asyncio.BufferedProtocol, context: Any,
        waiter: asyncio.Future[None], handshake_s: float, shutdown_s: float,
    ) -> None:  # fmt: skip
        super().__init__(
            loop, app, context, waiter, server_side=True, ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=shutdown_s,
        )  # fmt: skip
        self._rest = bytearray()  # encrypted, for when the application reads again
        self._set_read_buffer_limits(_PENDING_BYTES_MAX)
        self._set_write_buffer_limits(_PENDING_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest.clear()
        self._app_protocol_get_buffer = self._app_protocol_buffer_updated = _gone

    # -- reading

    def get_buffer(self, n: int) -> memoryview:
        return _encrypted

    def buffer_updated(self, nbytes: int) -> None:
        if self._rest:
            self._rest += _encrypted[:nbytes]
        else:
            self._feed(_encrypted[:nbytes])
        if self._transport is not None:
            self._control_ssl_reading()

    def _feed(self, data: memoryview) -> None:
        for start in range(0, len(data), _SLICE_BYTES):
            if self._app_reading_paused:
                self._rest += data[start:]
                return
            self._incoming.write(data[start : start + _SLICE_BYTES])
            self._go_on()

    def _go_on(self) -> None:
        states = sslproto.SSLProtocolState
        if self._state == states.DO_HANDSHAKE:
            self._do_handshake()
        elif self._state == states.WRAPPED:
            self._do_read()
        elif self._state == states.FLUSHING:
            self._do_flush()
        elif self._state == states.SHUTDOWN:
            self._do_shutdown()

    def _resume_reading(self) -> None:
        if self._app_reading_paused:
            self._app_reading_paused = False
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Take what waits, in its order: OpenSSL may have some, and the rest comes behind it."""
        if self._app_reading_paused:
            return
        if self._rest:
            self._do_read()
        if self._rest and not self._app_reading_paused:
            data, self._rest = self._rest, bytearray()
            self._feed(memoryview(data))
        if not self._app_reading_paused:
            self._go_on()
        if self._transport is not None:
            self._control_ssl_reading()

    def _get_read_buffer_size(self) -> int:
        return int(self._incoming.pending) + len(self._rest)

    def _do_read__buffered(self) -> None:
        """Decrypt what is there into the application's buffers, for as long as it reads."""
        while not self._app_reading_paused and self._state in _OPEN:
            room = self._app_protocol_get_buffer(-1)
            count, ended = self._decrypted(room)
            if count:
                self._app_protocol_buffer_updated(count)
            if ended:
                self._call_eof_received()
                self._start_shutdown()
                return
            if count < len(room):
                return

    def _decrypted(self, room: memoryview) -> tuple[int, bool]:
        """Return how many bytes were put there, and whether the client has ended TLS."""
        tls, incoming, at = self._sslobj, self._incoming, 0
        try:
            while at < len(room) and (incoming.pending or tls.pending()):
                count = tls.read(len(room) - at, room[at:] if at else room)
                if not count:
                    return at, True
                at += count
        except _AGAIN:
            pass
        return at, False

    # -- writing

    def _do_write(self) -> None:
        """Encrypt what waits, for as long as the transport takes it."""
        backlog = self._write_backlog
        try:
            while backlog and not self._ssl_writing_paused and self._transport is not None:
                data = backlog[0]
                part = data if len(data) <= _SLICE_BYTES else memoryview(data)[:_SLICE_BYTES]
                count = self._sslobj.write(part)
                self._write_buffer_size -= count
                if count < len(data):
                    backlog[0] = memoryview(data)[count:]
                else:
                    backlog.popleft()
                self._send()
        except _AGAIN:
            pass
        self._process_outgoing()

    def _send(self) -> None:
        data = self._outgoing.read()
        if data:
            self._transport.write(data)

    def resume_writing(self) -> None:
        self._ssl_writing_paused = False
        self._do_write()


def _gone(_: int) -> Any:
    """Raise for a connection that has been lost."""
    raise ConnectionResetError
