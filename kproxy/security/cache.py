"""Rows of security in a worker's memory: who may what, users' credentials, quotas.

All rows are there before the first connection is, and every change is folded as it is announced:
what is not there is not allowed.
"""

import os
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, Protocol

import structlog

from kproxy.common.errors import Code, KafkaError
from kproxy.security.acls import Acls, Binding
from kproxy.security.scram import Credentials, Shape
from kproxy.virtual.commands.access import Secure
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.access import (
    ACL,
    QUOTA,
    SALT_ROW,
    USER,
    acl_of,
    decode_secured,
    quota_of,
    user_name,
    user_of,
)

_log = structlog.get_logger()

ROWS_MAX = 100_000
"""Rules, credentials and quotas that there may be together: each worker has them all in memory."""
_SECRET_BYTES = 32

Entity = tuple[tuple[str, str | None], ...]
Value = dict[str, Any]


class Rows(Protocol):
    """A source of rows of security."""

    def secured_row(self, name: str) -> bytes | None: ...
    def secured(self) -> Iterator[str]: ...


class SecurityCache:
    """All rows of security. `generation` goes up with each change of an access rule."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._held: dict[str, Value] = {}
        self.generation = 0
        self.acls = Acls()
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.shapes: dict[str, Counter[Shape]] = defaultdict(Counter)
        """The shapes of the present credentials, by mechanism: how many have each."""
        self.salt_secret = self._unkept = os.urandom(_SECRET_BYTES)
        """The secret that salts of unknown users follow from: the same on all workers."""
        self.on_change: list[Callable[[str, Value | None], None]] = []
        """The callbacks for each row that changes:

        its name, and its value, None where it is gone.
        """
        for name in list(rows.secured()):
            self.changed(name)

    def __len__(self) -> int:
        return len(self._held)

    # -- looking up

    def credentials(self, user: str, mechanism: str) -> Value | None:
        """Return the credentials of a user for a SASL mechanism, as they were put."""
        return self._held.get(user_name(user, mechanism))

    def check_room(self, names: Iterable[str]) -> None:
        """Raise KafkaError (POLICY_VIOLATION) if there is no room for rows of these names."""
        room = ROWS_MAX - len(self._held)
        for name in names:
            if name in self._held:
                continue
            room -= 1
            if room < 0:
                message = f"there may be {ROWS_MAX} rules, users' credentials and quotas together"
                raise KafkaError(Code.POLICY_VIOLATION, message)

    def beside_users(self) -> dict[str, Value]:
        """Return the rows that are put with the first user."""
        if SALT_ROW in self._held:
            return {}
        return {SALT_ROW: {"secret": b64encode(self._unkept).decode()}}

    def names(self) -> tuple[str, ...]:
        """Return the names of all rows, as they are now: a user's are
        `virtual.rows.access.user_of`.
        """
        return tuple(self._held)

    # -- following

    def applied(self, log_offset: int, envelope: Envelope, outcome: Outcome) -> None:
        """Take a command that the shard of these rows has folded."""
        if envelope.kind == Kind.SECURE:
            for name in Secure.decode(envelope).changes:
                self.changed(name)

    def changed(self, name: str) -> None:
        """Read a row again that may have changed."""
        try:
            data = self._rows.secured_row(name)
            value = None if data is None else decode_secured(data).value
            if value == self._held.get(name):
                return
            self._take(name, value)
        except (ValueError, LookupError, TypeError) as error:
            _log.error("security_row_unknown", name=name[:200], reason=str(error))
            return
        if value is None:
            del self._held[name]
        else:
            self._held[name] = value
        if name[0] == ACL:
            self.generation += 1
        for told in self.on_change:
            told(name, value)

    def _take(self, name: str, value: Value | None) -> None:
        """Take a row's value.

        Raises ValueError, LookupError or TypeError where no kproxy wrote it.
        """
        if name[0] == ACL:
            binding = Binding.of_row(acl_of(name))
            if value is None:
                self.acls.remove(binding)
            else:
                self.acls.add(binding)
        elif name[0] == QUOTA:
            entity, key = quota_of(name)
            if value is None:
                del self.quotas[entity][key]
                if not self.quotas[entity]:
                    del self.quotas[entity]
            else:
                limit = float(value["value"])
                if not entity or not 0 < limit < inf:
                    raise ValueError("a quota of nobody, or of nothing")
                self.quotas.setdefault(entity, {})[key] = limit
        elif name[0] == USER:
            before = self._held.get(name)
            shapes = self.shapes[user_of(name)[1]]
            after = None if value is None else Credentials.of(value).shape
            if before is not None:
                shapes -= Counter([Credentials.of(before).shape])
            if after is not None:
                shapes[after] += 1
        elif name == SALT_ROW:
            self.salt_secret = self._unkept if value is None else b64decode(value["secret"])
        else:
            raise ValueError("there is no such kind of row")
