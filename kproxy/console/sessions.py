"""Logins and what is known of each: a session ends after half an hour without a page.

A cookie holds a random token and nothing else; the console keeps its hash. All is in memory: a
console that starts again knows nobody.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from kproxy.console.connections import Connections

_SESSIONS_MAX = 200
_OF_USER_MAX = 20
"""The sessions of one user: so it keeps no other out."""
_IDLE_S, _WHOLE_S = 30 * 60.0, 12 * 3600.0
_FAILURES_MAX, _FAILURES_S = 10, 60.0
_ADDRESSES_MAX = 1000


class Full(Exception):
    """A refusal: the console has as many sessions as it may have."""


class Session:
    """A user's login."""

    def __init__(self, user: str, connections: Connections, now: float) -> None:
        self.user = user
        self.connections = connections
        self.began = self.used = now


class Sessions:
    """All logins, the one that was used last at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_hash: OrderedDict[bytes, Session] = OrderedDict()

    def begin(self, user: str, connections: Connections) -> str:
        """Return the token of a new session, for which the user's oldest may end. Raises Full."""
        self.end_old()
        own = [key for key, one in self._by_hash.items() if one.user == user]
        for key in own[: max(0, len(own) - _OF_USER_MAX + 1)]:  # the idlest
            self._by_hash.pop(key).connections.close()
        if len(self._by_hash) >= _SESSIONS_MAX:
            raise Full
        token = secrets.token_urlsafe(32)
        self._by_hash[_hash(token)] = Session(user, connections, self._clock())
        return token

    def find(self, token: str, *, used: bool = True) -> Session | None:
        """Return a session, which is used by that; not `used`: a page refreshes by itself."""
        self.end_old()
        session = self._by_hash.get(key := _hash(token))
        if session is not None and used:
            session.used = self._clock()
            self._by_hash.move_to_end(key)
        return session

    def end(self, token: str) -> None:
        if session := self._by_hash.pop(_hash(token), None):
            session.connections.close()

    def end_old(self) -> None:
        """End what was idle for too long, or lasts for too long."""
        now = self._clock()
        while self._by_hash:
            key, oldest = next(iter(self._by_hash.items()))
            if now - oldest.used < _IDLE_S:
                break
            del self._by_hash[key]
            oldest.connections.close()
        for key in [k for k, one in self._by_hash.items() if now - one.began >= _WHOLE_S]:
            self._by_hash.pop(key).connections.close()

    def end_all(self) -> None:
        while self._by_hash:
            self._by_hash.popitem()[1].connections.close()

    def __len__(self) -> int:
        return len(self._by_hash)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


class Failures:
    """The failed logins of each address in the last minute: so many, and no more are tried.

    An attempt counts from its beginning, so that none is tried beside others. Addresses of IPv6
    count by 64 bits: one machine has all that begin with them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def too_many(self, address: str) -> bool:
        since, count = self._by_address.get(_network(address), (0.0, 0))
        return count >= _FAILURES_MAX and self._clock() - since < _FAILURES_S

    def forgive(self, address: str) -> None:
        """Take an attempt back: it did not fail."""
        address = _network(address)
        if found := self._by_address.get(address):
            self._by_address[address] = found[0], found[1] - 1

    def add(self, address: str) -> None:
        address = _network(address)
        since, count = self._by_address.pop(address, (self._clock(), 0))
        if self._clock() - since >= _FAILURES_S:
            since, count = self._clock(), 0
        self._by_address[address] = since, count + 1
        while len(self._by_address) > _ADDRESSES_MAX:
            self._by_address.popitem(last=False)


def _network(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return f"{int(found) >> 64:x}/64"
    return address
