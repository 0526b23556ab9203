"""Where a record goes: templates of an entrance, filters of a queue that takes from another.

A template has a literal prefix, and then `{key}` or `{header:NAME}` anywhere: `device-{key}`,
`t.{header:tenant}.{header:kind}`. A filter is conditions that all must hold, with `&` between them:

    header:tag:red|blue   the header `tag` is one of these
    header:tag            the record has a header `tag`
    !header:tag           it has none
    key:eu-               its key begins so

In the texts of a filter `%XX` stands for a byte, so that `|`, `&`, `:` and `%` can be said. Neither
has a `=`: Kafka's own tools do not take one in a value.

Of headers of one name the last one counts, as in Java's `Headers.lastHeader`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from kproxy.virtual.partitioner import NAME_LENGTH_MAX, name_fault

TEXT_MAX = 1000
"""Characters of a template or a filter."""
_PARTS_MAX = 16
_FIELD = re.compile(r"\{([^{}]*)\}")
_HEADER = "header:"
_LEGAL = re.compile(rb"[a-zA-Z0-9._-]+")
_INTERNAL = "__"
_PARSED_MAX = 1000

Headers = Mapping[bytes, bytes | None]


class Template(NamedTuple):
    """A template, cut into its parts: a text, or after it the name of a header; None: the key."""

    prefix: str
    fields: tuple[tuple[bytes | None, str], ...]
    """(header's name or None for the key, the text behind it) of each field."""

    @property
    def needs_headers(self) -> bool:
        return any(name is not None for name, _ in self.fields)

    def fill(self, key: bytes | None, headers: Headers) -> tuple[str, str | None]:
        """(queue name, None), or ("", why the record has none)."""
        parts = [self.prefix]
        for header, behind in self.fields:
            value = key if header is None else headers.get(header)
            if value is None:
                what = "no key" if header is None else f"no header {header.decode()}"
                return "", what
            if not _LEGAL.fullmatch(value):
                what = "key" if header is None else f"header {header.decode()}"
                return "", f"the {what} is not a part of a queue name"
            parts += (value.decode(), behind)
        name = "".join(parts)
        return (name, None) if len(name) <= NAME_LENGTH_MAX else ("", "the queue name is too long")


@lru_cache(_PARSED_MAX)
def read_template(text: str) -> Template:
    """Raises ValueError, saying what a template must be."""
    if len(text) > TEXT_MAX:
        raise ValueError(f"it must not be longer than {TEXT_MAX} characters")
    prefix, *rest = _FIELD.split(text)
    fault = name_fault(prefix)
    if fault and prefix not in (".", ".."):
        raise ValueError(
            "it must begin with a text that queue names may begin with, as in device-{key}"
        )
    if prefix.startswith(_INTERNAL):
        raise ValueError(f"queue names that begin with {_INTERNAL} are not for routes")
    if not rest:
        raise ValueError("it must have a {key} or a {header:NAME}")
    if len(rest) > 2 * _PARTS_MAX:
        raise ValueError(f"it must not have more than {_PARTS_MAX} fields")
    fields: list[tuple[bytes | None, str]] = []
    for field, behind in zip(rest[::2], rest[1::2], strict=True):
        if behind and name_fault("a" + behind):
            raise ValueError(f"{behind!r} cannot be in a queue name")
        if field == "key":
            fields.append((None, behind))
        elif field.startswith(_HEADER) and len(field) > len(_HEADER):
            fields.append((field[len(_HEADER) :].encode(), behind))
        else:
            raise ValueError("between { and } there must be key or header:NAME")
    return Template(prefix, tuple(fields))


class Condition(NamedTuple):
    """`header` None: the key begins with one of `values`. Else the header is one of them, or there
    with no values; `absent`: it is not there."""

    header: bytes | None
    values: tuple[bytes, ...]
    absent: bool

    def holds(self, key: bytes | None, headers: Headers) -> bool:
        if self.header is None:
            return key is not None and key.startswith(self.values)
        if self.absent:
            return self.header not in headers
        if not self.values:
            return self.header in headers
        value = headers.get(self.header)
        return value is not None and value in self.values


class Filter(NamedTuple):
    """Conditions that all must hold."""

    conditions: tuple[Condition, ...]

    @property
    def needs_headers(self) -> bool:
        return any(one.header is not None for one in self.conditions)

    def matches(self, key: bytes | None, headers: Headers) -> bool:
        return all(one.holds(key, headers) for one in self.conditions)


def _bytes(text: str) -> bytes:
    if not text:
        raise ValueError("there is nothing between two of its marks")
    if re.search(r"%(?![0-9a-fA-F]{2})", text):
        raise ValueError("behind % there must be two hexadecimal digits")
    return unquote_to_bytes(text)


def _condition(text: str) -> Condition:
    absent = text.startswith("!")
    kind, _, rest = text[absent:].partition(":")
    if kind == "key" and rest and not absent:
        return Condition(None, tuple(_bytes(one) for one in rest.split("|")), absent=False)
    name, _, values = rest.partition(":")
    if kind != "header" or not name or (absent and ":" in rest):
        raise ValueError(
            "a condition must be header:NAME:VALUE|VALUE, header:NAME, !header:NAME or key:PREFIX"
        )
    found = tuple(_bytes(one) for one in values.split("|")) if ":" in rest else ()
    return Condition(_bytes(name), found, absent)


@lru_cache(_PARSED_MAX)
def read_filter(text: str) -> Filter:
    """Raises ValueError, saying what a filter must be. "": all records match."""
    if len(text) > TEXT_MAX:
        raise ValueError(f"it must not be longer than {TEXT_MAX} characters")
    parts = text.split("&") if text else []
    if len(parts) > _PARTS_MAX:
        raise ValueError(f"it must not have more than {_PARTS_MAX} conditions")
    return Filter(tuple(_condition(part.strip()) for part in parts))


@lru_cache(_PARSED_MAX)
def read_configs(text: str) -> dict[str, str]:
    """Settings as `name:value;name:value`. Raises ValueError; values are not checked here."""
    found = {}
    for part in text.split(";") if text else []:
        name, mark, value = part.strip().partition(":")
        if not mark or not name:
            raise ValueError("it must be a list of name:value, with ; between them")
        if name in found:
            raise ValueError(f"it names {name} twice")
        found[name] = value
    return found
