"""The connections of one user to kproxy: a blocking client serves one thread at a time."""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

import anyio

from kproxy.common.errors import CannotStart
from kproxy.tools.client import Address, Client, Refused
from kproxy.tools.client_settings import ClientSettings, NotLoggedIn

_ANSWER_BYTES_MAX = 16 << 20
_IDLE_MAX = 4

Result = TypeVar("Result")


class Connections:
    """The clients of one user: `turns` bounds how many are in use."""

    def __init__(
        self, address: Address, settings: ClientSettings, at_once: int, timeout_s: float
    ) -> None:
        """Note where kproxy is; `timeout_s`: the time that it has for each answer."""
        self._address, self._settings, self._timeout_s = address, settings, timeout_s
        self._idle: list[Client] = []
        self._lock = Lock()
        self._closed = False
        self.turns = anyio.CapacityLimiter(at_once)

    def ask(self, asks: Callable[[Client], Result], *, again: bool = True) -> Result:
        """Return what a function finds out, on a thread.

        `again`: it changes nothing, so it may begin anew if a connection that was idle is lost.
        """
        client = self._taken() if again else None
        if client is not None:
            try:
                return self._asked(client, asks)
            except NotLoggedIn:
                raise
            except CannotStart:  # the server may have closed it long ago
                pass
        return self._asked(
            Client(
                self._address, self._settings, timeout_s=self._timeout_s,
                answer_bytes_max=_ANSWER_BYTES_MAX,
            ),
            asks,
        )  # fmt: skip

    def _asked(self, client: Client, asks: Callable[[Client], Result]) -> Result:
        try:
            found = asks(client)
        except Refused:
            self._give_back(client)
            raise
        except BaseException:  # an answer may still be on its way
            client.close()
            raise
        self._give_back(client)
        return found

    def _taken(self) -> Client | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, client: Client) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(client)
                return
        client.close()

    def close(self) -> None:
        """Close all, those in use once they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.close()
