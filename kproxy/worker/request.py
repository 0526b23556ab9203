"""A request as its handler gets it, and the signal of what its client sends behind it."""

import sys
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio

from kproxy.common.memory_budget import MemoryBudget, ResponseBudget
from kproxy.protocol.codec import RequestHeader
from kproxy.security.peer import NOBODY, Peer
from kproxy.security.permits import EVERYTHING, Permits

LONG_POLL_S_MAX = 300.0
"""A client may ask for 24 days."""


def _uncounted() -> ResponseBudget:
    return ResponseBudget(MemoryBudget(sys.maxsize))


_serials = count(1)


class NextRequestSignal:
    """Whether the client has sent more that waits behind the request being answered.

    Each connection has one. `connection`: later connections have higher numbers. `throttle_s`: for
    how long the client is to wait behind the answer.
    """

    __slots__ = ("_wake", "arrived", "connection", "gone", "throttle_s")

    def __init__(self) -> None:
        self.connection = next(_serials)
        self.arrived = False
        self.throttle_s = 0.0
        self.gone = False  # so is the connection: nothing is to be kept for it
        self._wake: anyio.Event | None = None

    def arrive(self) -> None:
        self.arrived = True
        if self._wake is not None:
            self._wake.set()

    def reset(self) -> None:
        self.arrived = False

    def wake(self, event: anyio.Event) -> None:
        """Have an event set when more arrives, or nothing more will."""
        self._wake = event


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A decoded request: `body` is kio's value for `header.api_version`."""

    header: RequestHeader
    body: Any
    peer: Peer = NOBODY  # the client, as it was when the request came
    permits: Permits = EVERYTHING  # the client's rights
    next_request: NextRequestSignal = field(default_factory=NextRequestSignal)
    budget: ResponseBudget = field(default_factory=_uncounted)  # its answer

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def host(self) -> str:
        """The client's address as Kafka shows it: with a slash before it."""
        return f"/{self.peer.host}"

    @property
    def max_wait_s(self) -> float:
        """The seconds that its answer may wait for data that is not there yet."""
        return min(float(self.body.max_wait.total_seconds()), LONG_POLL_S_MAX)

    def throttle(self, seconds: float) -> None:
        """Have the client wait so long before its next request, and say so."""
        self.next_request.throttle_s = max(self.next_request.throttle_s, seconds)
