"""Rows of security, in shard 0: access rules, users' credentials, quotas. SECURE puts them.

A row's *name* is a letter that says what it is, and a key. The fold reads neither name nor value:
`kproxy.security` does. All workers keep all of these rows.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import ShardId

SECURITY_SHARD = ShardId(0)
ACL, USER, QUOTA, SALT = "A", "U", "Q", "S"
"""The kind of a row: the first letter of its name."""
SALT_ROW = SALT
"""The name of the secret that salts of absent users follow from, made with the first user."""
_JSON = ord("{")


class Secured(NamedTuple):
    """A row of security."""

    value: dict[str, Any]
    changed_at: int
    """Log offset of shard 0."""

    def encode(self) -> bytes:
        return orjson.dumps({"value": self.value, "changed_at": self.changed_at})


def secured_key(name: str) -> bytes:
    return RowKind.SECURED + name.encode()


def decode_secured(data: bytes) -> Secured:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    if data[0] != _JSON:
        raise later_form("a row of kind 2", data[0])
    values = orjson.loads(data)
    return Secured(values["value"], values["changed_at"])


def acl_name(binding: Iterable[Any]) -> str:
    """Return the name of an access rule, which is all in its name (`security.acls.Binding`)."""
    return ACL + orjson.dumps(list(binding)).decode()


def acl_of(name: str) -> list[Any]:
    """Return the access rule of a name."""
    values: list[Any] = orjson.loads(name[1:])
    return values


def user_name(user: str, mechanism: str) -> str:
    """Return the name of a user's credentials for one SASL mechanism."""
    return f"{USER}{mechanism}:{user}"


def user_of(name: str) -> tuple[str, str]:
    """Return (user, mechanism) of a name."""
    mechanism, _, user = name[1:].partition(":")
    return user, mechanism


def quota_name(entity: Iterable[tuple[str, str | None]], key: str) -> str:
    """Return the name of an entity's quota: pairs of types and names; None is the default's."""
    return QUOTA + orjson.dumps([sorted(entity, key=str), key]).decode()


def quota_of(name: str) -> tuple[tuple[tuple[str, str | None], ...], str]:
    """Return (entity, key) of a name."""
    entity, key = orjson.loads(name[1:])
    return tuple((kind, value) for kind, value in entity), key
