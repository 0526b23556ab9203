"""The keys of an issuer of tokens, from a file or over https, read again now and then.

A thread reads them, so that no connection ever waits for an address that does not answer. Where
they cannot be read the old ones stay.
"""

import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from kproxy.errors import CannotStart
from kproxy.security.oauth import BadKeys, Key, keys_of

_log = structlog.get_logger()

_BYTES_MAX = 1 << 20
_TIMEOUT_S = 10
_EVERY_S = 3600.0
_SOONEST_S = 30.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class KeySet:
    """Keys by name. `now` is a monotonic clock, in seconds."""

    def __init__(self, source: str, now: Callable[[], float] = time.monotonic) -> None:
        """Raises CannotStart where a file is not sound; an address may answer later."""
        self._source = source
        self._now = now
        self._keys: list[Key] = []
        self._wanted = threading.Event()
        self._closed = False
        self._read_at = -_SOONEST_S
        self._thread: threading.Thread | None = None
        try:
            self.read()
        except (OSError, BadKeys, ValueError) as error:
            if not self._remote:
                raise CannotStart(f"oauth_jwks {source}: {error}") from None
            _log.error("oauth_keys_not_read", source=source, reason=str(error))

    @property
    def _remote(self) -> bool:
        return self._source.startswith("https://")

    def keys(self) -> list[Key]:
        return self._keys

    def read(self) -> None:
        """Raises OSError, BadKeys, ValueError."""
        self._read_at = self._now()
        found = keys_of(self._document())
        if not found:
            raise BadKeys("it has no key that signatures can be checked with")
        self._keys = found

    def want(self) -> None:
        """A token names a key that is not here. From the event loop; it never waits."""
        self._wanted.set()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="oauth-keys", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    def _run(self) -> None:
        while not self._closed:
            self._wanted.wait(_EVERY_S if self._keys else _SOONEST_S)
            self._wanted.clear()
            if self._closed or self._now() - self._read_at < _SOONEST_S:
                continue  # whoever asks for more gets no more reads
            try:
                self.read()
            except (OSError, BadKeys, ValueError) as error:
                _log.error("oauth_keys_not_read", source=self._source, reason=str(error))

    def _document(self) -> bytes:
        if not self._remote:
            with Path(self._source).open("rb") as file:
                return _bounded(file.read(_BYTES_MAX + 1))
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
        with opener.open(self._source, timeout=_TIMEOUT_S) as answer:
            return _bounded(answer.read(_BYTES_MAX + 1))


def _bounded(data: bytes) -> bytes:
    if len(data) > _BYTES_MAX:
        raise BadKeys(f"it is larger than {_BYTES_MAX} bytes")
    return data
