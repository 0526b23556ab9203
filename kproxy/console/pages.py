"""Pages as functions: each is asked on a thread, and says which template shows what."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from kproxy.console.history import History
from kproxy.tools.client import Client

_TEXT_MAX = 4096
_NUMBER = re.compile(r"\d{1,18}")
LINES = 50
"""The lines of a list."""


class BadQuery(Exception):
    """The address of a page asks for something that is not there; one line for a person."""


class Query:
    """A page's part of the path, and what follows the question mark."""

    def __init__(self, asked: Mapping[str, str], path: Mapping[str, str] | None = None) -> None:
        self._asked = asked
        self._values = {**asked, **(path or {})}

    def text(self, name: str, default: str = "", most: int = _TEXT_MAX) -> str:
        """Return a text. Raises BadQuery."""
        value = self._values.get(name, default)
        if len(value) > most:
            raise BadQuery(f"{name} is too long")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadQuery(f"{name} is no text") from None
        return value

    def link(self, path: str, /, **more: Any) -> str:
        """Return the address of this page with other parts."""
        return link(path, **{**self._asked, "done": None, **more})

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number, or the default where there is none. Raises BadQuery."""
        value = self.text(name)
        if not value:
            return default
        if not _NUMBER.fullmatch(value):
            raise BadQuery(f"{name}: {value} is no whole number")
        return int(value)

    def choice(self, name: str, known: Sequence[str]) -> str:
        """Return one of these, the first where none is named. Raises BadQuery."""
        value = self.text(name) or known[0]
        if value not in known:
            raise BadQuery(f"{name} is one of {', '.join(known)}")
        return value


class Asked(NamedTuple):
    """A page that is asked for, and by whose connection."""

    client: Client
    query: Query
    contents: bool
    """Whether records' keys, values and headers may be shown."""
    history: History | None = None


class Page(NamedTuple):
    """A template and what it shows."""

    template: str
    values: dict[str, Any]
    status: int = 200


PageOf = Callable[[Asked], Page]
Walk = Callable[..., tuple[list[Any], str | None]]
"""A walk over names as by `tools.records.walks`: what it finds, and the name to go on from."""
ActionOf = Callable[[Asked], str]
"""A change that a form asks for; it returns the address of the page to see next."""
DONE = {
    "written": "The record was written.",
    "cancelled": "The record was cancelled: it will not be delivered.",
    "nothing": "Nothing waits under that key: it was delivered, or cancelled, or never there.",
    "changed": "The setting was changed.",
    "created": "The queue was created.",
    "deleted": "It was deleted.",
    "reset": "The offsets were set.",
    "aborted": "The transaction was aborted.",
    "begun": "The redrive has begun. It is the server's: this page may be closed.",
    "paused": "The redrive pauses within two seconds.",
    "resumed": "The redrive goes on.",
    "stopped": "The redrive was stopped: what has landed stays, nothing more comes.",
    "rate": "The rate was changed.",
}
"""The words that a page begins with after a change: an address names one of these alone."""


def link(path: str, /, **query: Any) -> str:
    """Return an address with these parts, without those that are None or empty."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def walked(asked: Asked, path: str, walk: Walk, prefix: str = "") -> dict[str, Any]:
    """Return what a walk over names finds, and the address of the names after those.

    `prefix`: the beginning of the names where none is asked for, nor a name to go on from.
    """
    first = asked.query.text("from")
    prefix = asked.query.text("prefix", "" if first else prefix)
    found, after = walk(asked.client, first=first, prefix=prefix, limit=LINES)
    following = after and link(path, **{"prefix": prefix, "from": after})
    return {"lines": found, "prefix": prefix, "after": after, "following": following}
