"""The times after which a connection was silent, stuck inside a request, or unread for too long.

Times are seconds of one monotonic clock, and arguments. The connection says what happens; the
server asks every second whether a time is over.
"""

from collections.abc import Callable

from kproxy.config.server import Config

_READ_BYTES_MIN = 64 << 10
"""The bytes of its answers that a client reads in `send_stalled_ms_max`, or it counts as not
reading.
"""

_DONE_MS_MAX = 30_000
"""The milliseconds that a client's requests are worked on once it has sent its last."""


class ConnectionTimeouts:
    """The times of one connection."""

    __slots__ = ("_active_at", "_config", "_left_at", "_unread", "_unread_since")

    def __init__(self, config: Config, now: float) -> None:
        self._config = config
        self._active_at = now
        self._unread_since: float | None = None  # while the client has answers to read
        self._unread = 0  # bytes, as of then
        self._left_at: float | None = None

    def active(self, now: float) -> None:
        """Note that bytes came, or an answer left."""
        self._active_at = now

    def left(self, now: float) -> None:
        """Note that the client sends no more: its requests are to be done in time."""
        if self._left_at is None:
            self._left_at = now

    def unread(self, now: float, count: int) -> None:
        """Note that so many bytes wait for the client to read them."""
        self._unread_since, self._unread = now, count

    def all_read(self) -> None:
        self._unread_since = None

    def expired(
        self, now: float, unread: Callable[[], int], *, idle: bool, inside_frame: bool
    ) -> str | None:
        """Return the event that ends the connection, or None.

        `unread` counts the bytes that wait for the client. Slow readers are tolerated. `idle`: no
        request waits for its answer. `inside_frame`: a request has come in part.
        """
        config = self._config
        if self._unread_since is not None:
            count = unread()
            if count <= self._unread - _READ_BYTES_MIN:
                self.unread(now, count)
            if (now - self._unread_since) * 1000 > config.send_stalled_ms_max:
                return "client_does_not_read"
            return None
        if self._left_at is not None and (now - self._left_at) * 1000 > _DONE_MS_MAX:
            return "client_left"
        silent_ms = (now - self._active_at) * 1000
        if idle and inside_frame:
            over = silent_ms > config.receive_stalled_ms_max
            return "client_stopped_inside_a_request" if over else None
        return "connection_idle" if idle and silent_ms > config.connection_idle_ms_max else None
