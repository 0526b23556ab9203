"""The messages to systemd (Type=notify): kproxy is ready, stops, or turns its event loop.

Each is a datagram to the socket that the environment names; if it names none, nothing is done.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

_EXTEND_S = 60
_SHARE = 3  # the divisor of the watchdog's time, from one sign of life to the next


class ServiceManager:
    """The service manager of one process. `turned` is called with each look at the event loop."""

    def __init__(
        self, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = monotonic
    ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._clock = clock
        pid = environ.get("WATCHDOG_PID", "")
        watched = environ.get("WATCHDOG_USEC", "0") if pid in ("", str(os.getpid())) else "0"
        self._period_s = int(watched) / 1e6 / _SHARE if watched.isdecimal() else 0.0
        self._told_at = float("-inf")
        self._ready = False

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send(text.encode())

    def ready(self) -> None:
        self._ready = True
        self._tell("READY=1\nSTATUS=serving")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def turned(self) -> None:
        """Send a sign of life when the event loop turns, and ask for more time where the start
        takes long.
        """
        now = self._clock()
        if not self._ready and now - self._told_at > _EXTEND_S / _SHARE:
            self._told_at = now
            self._tell(f"EXTEND_TIMEOUT_USEC={_EXTEND_S * 1_000_000}")
        elif self._period_s and now - self._told_at >= self._period_s:
            self._told_at = now
            self._tell("WATCHDOG=1")


NOBODY = ServiceManager({})
"""The manager of a process that has a supervisor, which speaks for all."""
