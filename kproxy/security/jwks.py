"""The keys of an issuer of tokens, from a file or over https, read again now and then.

A thread reads them, so that no connection ever waits for an address that does not answer. If they
cannot be read the old ones stay, whatever the reason is. A whole read has a deadline: an address
that answers drop by drop must not hold the thread.
"""

import http.client
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from kproxy.common.errors import CannotStart
from kproxy.security.oauth import BadKeys, Key, keys_of

_log = structlog.get_logger()

_BYTES_MAX = 1 << 20
_TIMEOUT_S = 10.0  # for one step
_DEADLINE_S = 30.0  # for all
_EVERY_S = 3600.0
_SOONEST_S = 30.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class _Connection(http.client.HTTPSConnection):
    """One that can be cut off by another thread at any time."""

    opened: socket.socket | None = None

    def connect(self) -> None:
        self.opened = socket.create_connection((self.host, self.port), self.timeout)
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        self.sock = self.opened = wrapped = context.wrap_socket(
            self.opened, server_hostname=self.host, do_handshake_on_connect=False
        )
        wrapped.do_handshake()  # from here on `opened` is what it reads from

    def cut(self) -> None:
        if self.opened is not None:
            with suppress(OSError):
                socket.socket.shutdown(self.opened, socket.SHUT_RDWR)

    def end(self) -> None:
        """Close it, whoever of urllib's still holds it."""
        self.close()
        if self.opened is not None and (number := self.opened.detach()) >= 0:
            socket.close(number)


class _Https(urllib.request.HTTPSHandler):
    """An HTTPS client that remembers its connection."""

    made: _Connection | None = None

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, request)

    def _connection(self, host: str, **more: Any) -> _Connection:
        self.made = _Connection(host, timeout=more["timeout"])
        return self.made

    @contextmanager
    def ended(self, seconds: float) -> Iterator[None]:
        """End the reads of the block after so many seconds, finished or not."""
        over, late = threading.Event(), threading.Event()

        def watch() -> None:
            wait_s = seconds
            while not over.wait(wait_s):
                late.set()
                if self.made is not None:
                    self.made.cut()
                wait_s = 1.0  # once more: there may have been no connection yet

        threading.Thread(target=watch, name="oauth-keys-deadline", daemon=True).start()
        try:
            yield
        finally:
            over.set()
            if self.made is not None:
                self.made.end()
            if late.is_set():
                raise TimeoutError(f"it took longer than {seconds:g} s")


class KeySet:
    """Keys by name. `now` is a monotonic clock, in seconds."""

    def __init__(self, source: str, now: Callable[[], float] = time.monotonic) -> None:
        """Read the keys of a file; `start` asks an address. Raises CannotStart: it is not sound."""
        self._source = source
        self._now = now
        self._keys: list[Key] = []
        self._wanted = threading.Event()
        self._answered = threading.Event()
        self._closed = self._at_once = False
        self._read_at = -_SOONEST_S
        self._thread: threading.Thread | None = None
        try:
            if not self._remote:
                self.read()
        except Exception as error:
            raise CannotStart(f"oauth_jwks {source}: {error}") from None

    @property
    def _remote(self) -> bool:
        return self._source.startswith("https://")

    def keys(self) -> list[Key]:
        return self._keys

    def read(self) -> None:
        """Read the keys. Raises any error that stands in the way."""
        self._read_at = self._now()
        found = keys_of(self._document())
        if not found:
            raise BadKeys("it has no key that signatures can be checked with")
        self._keys = found

    def want(self) -> None:
        """Ask for a read: a token names a key that is not here.

        From the event loop; it never waits.
        """
        self._wanted.set()

    def reload(self) -> None:
        """Read them now: somebody has withdrawn one. From the event loop as well."""
        self._at_once = True
        self._wanted.set()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="oauth-keys", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for the first answer of an address, so long at most."""
        self._answered.wait(seconds)

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    def _run(self) -> None:
        if self._remote:
            self._try(told=False)
        self._answered.set()
        while not self._closed:
            self._wanted.wait(_EVERY_S if self._keys else _SOONEST_S)
            self._wanted.clear()
            at_once, self._at_once = self._at_once, False
            if self._closed or (not at_once and self._now() - self._read_at < _SOONEST_S):
                continue  # later requests get no more reads
            self._try(told=at_once)

    def _try(self, *, told: bool) -> None:
        """Read the keys; the thread goes on, whatever an address answers."""
        try:
            self.read()
        except Exception as error:
            if not self._closed:
                _log.error("oauth_keys_not_read", source=self._source, reason=_reason(error))
        else:
            if told:
                _log.info("oauth_keys_read", source=self._source, keys=len(self._keys))

    def _document(self) -> bytes:
        if not self._remote:
            with Path(self._source).open("rb") as file:
                return _bounded(file.read(_BYTES_MAX + 1))
        https = _Https()
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}), https)
        with https.ended(_DEADLINE_S), opener.open(self._source, timeout=_TIMEOUT_S) as answer:
            return _bounded(answer.read(_BYTES_MAX + 1))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _bounded(data: bytes) -> bytes:
    if len(data) > _BYTES_MAX:
        raise BadKeys(f"it is larger than {_BYTES_MAX} bytes")
    return data
