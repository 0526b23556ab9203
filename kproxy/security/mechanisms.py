"""The mechanisms that clients log in by, over users' credentials and issuers' tokens."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from kproxy.config.listeners import OAUTHBEARER, PLAIN
from kproxy.security import oauth, scram
from kproxy.security.hashing import Hashing
from kproxy.security.login import Begin, Identity, Mechanisms, Step
from kproxy.security.peer import network_of
from kproxy.security.scram import BadLogin, Credentials, Shape

PLAIN_BYTES_MAX = 4096
_WRONG = "Authentication failed: Invalid username or password"
_SOMEBODY_ELSE = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class Rows(Protocol):
    """A source of credentials."""

    @property
    def salt_secret(self) -> bytes: ...
    @property
    def shapes(self) -> Mapping[str, Counter[Shape]]: ...
    def credentials(self, user: str, mechanism: str, /) -> Mapping[str, Any] | None: ...


class Users:
    """Credentials, of those who are there and of those who are not."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._hashing = Hashing()

    def known(self, user: str, mechanism: str) -> Credentials | None:
        value = self._rows.credentials(user, mechanism)
        return None if value is None else Credentials.of(value)

    def credentials(self, user: str, mechanism: str) -> Credentials:
        """Return a user's credentials; for an unknown user, fake ones that look like most."""
        found = self.known(user, mechanism)
        if found is not None:
            return found
        usual = self._rows.shapes.get(mechanism)
        shape = usual.most_common(1)[0][0] if usual else scram.OURS
        return scram.nobodys(mechanism, user, self._rows.salt_secret, shape)

    def _usual(self) -> str:
        """Return the mechanism that checks the passwords of most users."""
        shapes = self._rows.shapes
        return max(scram.HASHES, key=lambda one: shapes[one].total() if one in shapes else 0)

    async def verify(self, user: str, password: bytes, ip: str = "") -> bool:
        """Whether that is the password; who is not there takes as long as who is."""
        for mechanism in scram.HASHES:
            if (found := self.known(user, mechanism)) is not None:
                break
        else:
            mechanism = self._usual()
            found = self.credentials(user, mechanism)
        address = network_of(ip)
        work = partial(scram.matches, mechanism, password, found)
        right = await self._hashing.run(address, work)
        if not right:
            self._hashing.wrong(address)
        return right and self.known(user, mechanism) == found  # nor were they changed meanwhile


class _Plain:
    """The mechanism PLAIN (RFC 4616): the password itself. A refusal has Kafka's words."""

    def __init__(self, users: Users, ip: str) -> None:
        self._users = users
        self._ip = ip
        self.user = ""

    async def step(self, token: bytes) -> Step:
        if len(token) > PLAIN_BYTES_MAX:
            raise BadLogin(f"a message of {len(token)} bytes")
        parts = token.split(b"\0")
        if len(parts) != 3:
            told = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            raise BadLogin("a message that has not three parts", told)
        for part, what in zip(parts[1:], ("username", "password"), strict=True):
            if not part:
                raise BadLogin(f"no {what}", f"Authentication failed: {what} not specified")
        try:
            authorized, user = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError:
            raise BadLogin("a name that is not UTF-8", _WRONG) from None
        self.user = user
        if authorized not in ("", user):
            raise BadLogin("somebody else to be authorized as", _SOMEBODY_ELSE)
        if not await self._users.verify(user, parts[2], self._ip):
            raise BadLogin("an unknown user or a wrong password", _WRONG)
        return Step(b"", Identity(user))


class _Scram:
    """The two messages of SCRAM."""

    def __init__(self, mechanism: str, users: Users) -> None:
        self._mechanism = mechanism
        self._users = users
        self._server = scram.Server(mechanism, lambda user: users.credentials(user, mechanism))

    @property
    def user(self) -> str:
        return self._server.user

    async def step(self, token: bytes) -> Step:
        begun = self._server.credentials
        answer = self._server.step(token)
        if begun is None:
            return Step(answer)
        if self._users.known(self.user, self._mechanism) != begun:
            raise BadLogin("credentials that were changed meanwhile")
        return Step(answer, Identity(self.user))


class _OAuth:
    """OAUTHBEARER: one message, or two where the first is refused."""

    def __init__(self, tokens: oauth.Checks) -> None:
        self._exchange = oauth.Exchange(tokens)

    @property
    def user(self) -> str:
        return ""

    async def step(self, token: bytes) -> Step:
        answer = self._exchange.step(token)
        bearer = self._exchange.bearer
        if bearer is None:
            return Step(answer, refusal=self._exchange.refusal)
        return Step(answer, Identity(bearer.name, bearer.expires_s))


def offered(names: tuple[str, ...], users: Users, tokens: oauth.Checks | None) -> Mechanisms:
    """Return the mechanisms of a listener."""
    found: dict[str, Begin] = {}
    for name in names:
        if name == PLAIN:
            found[name] = lambda ip: _Plain(users, ip)
        elif name == OAUTHBEARER and tokens is not None:
            found[name] = lambda _: _OAuth(tokens)
        elif name in scram.HASHES:
            found[name] = _scram(name, users)
    return found


def _scram(name: str, users: Users) -> Begin:
    return lambda _: _Scram(name, users)
