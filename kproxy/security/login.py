"""The login of a connection's client: Kafka's SASL states, without sockets, clocks or threads.

A client asks for a mechanism (`handshake`), then sends tokens (`authenticate`) until the mechanism
says who it is. It may begin again later: then it must use the same mechanism and be the same.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kproxy.common.errors import Code
from kproxy.security.scram import BadLogin

AGAIN_S = 1.0
"""The seconds after which a client that is logged in may begin again."""


class Identity(NamedTuple):
    """The identity of a client."""

    name: str
    expires_s: float | None = None  # since 1970: its token's end


class Step(NamedTuple):
    """An answer to a token. `identity` where that was the last."""

    token: bytes
    identity: Identity | None = None
    refusal: str = ""
    """The reason of a refusal, for the log: the client hears it with this answer, or the next."""


class Exchange(Protocol):
    """One exchange by one mechanism."""

    @property
    def user(self) -> str:
        """The user that the client has named so far; for the log."""
        ...

    async def step(self, token: bytes) -> Step:
        """Return the answer to a token. Raises BadLogin."""
        ...


Begin = Callable[[str], Exchange]
"""A function that begins an exchange with a client at an IP address."""
Mechanisms = Mapping[str, Begin]
"""The mechanisms that a listener offers, in its order."""


class Login:
    """One connection's logins."""

    def __init__(self, mechanisms: Mechanisms) -> None:
        self._mechanisms = mechanisms
        self.ip = ""
        """The address of its client."""
        self._exchange: Exchange | None = None
        self._began_at = 0.0
        self.mechanism = ""
        self.identity: Identity | None = None
        self.raw = False
        """Whether tokens come without a header: the handshake was of version 0."""

    @property
    def done(self) -> bool:
        return self.identity is not None

    @property
    def under_way(self) -> bool:
        return self._exchange is not None

    @property
    def user(self) -> str:
        return self._exchange.user if self._exchange is not None else ""

    @property
    def offered(self) -> list[str]:
        return list(self._mechanisms)

    def handshake(self, mechanism: str, version: int, now: float) -> Code:
        """Begin. `now`: seconds of a monotonic clock. Raises BadLogin: out of turn."""
        if self._exchange is not None:
            raise BadLogin("a handshake amid a login")
        make = self._mechanisms.get(mechanism)
        if make is None:
            return Code.UNSUPPORTED_SASL_MECHANISM
        if self.done:
            if now - self._began_at < AGAIN_S:
                return Code.ILLEGAL_SASL_STATE
            if mechanism != self.mechanism:
                raise BadLogin(f"another mechanism than {self.mechanism} at first")
        self._began_at = now
        self.mechanism = mechanism
        self.raw = version == 0 and not self.done
        self._exchange = make(self.ip)
        return Code.NONE

    async def authenticate(self, token: bytes) -> Step:
        """Return the answer to a token. Raises BadLogin."""
        if self._exchange is None:
            raise BadLogin("a token without a handshake")
        step = await self._exchange.step(token)
        if step.identity is not None:
            before, self._exchange, self.raw = self.identity, None, False
            if before is not None and before.name != step.identity.name:
                raise BadLogin(f"another user than {before.name} at first")
            self.identity = step.identity
        return step
