"""The target of a record: templates of an entrance, filters of a queue that takes from another.

A template has a literal prefix, and then `{key}` or `{header:NAME}` anywhere: `device-{key}`,
`t.{header:tenant}.{header:kind}`. `{key:%}`, `{key:hex}`, `{key:hash}`, `{header:NAME:%}`,
`{header:NAME:%hex}` and `{header:NAME:%hash}` encode it (`metadata.name_encodings`): the name of a
header may have a colon, but no % without two digits behind it.

A filter is conditions that all must hold, with `&` between them:

    header:tag:red|blue   the header `tag` is one of these
    header:tag            the record has a header `tag`
    !header:tag           it has none
    key:eu-               its key begins so

In the texts of a filter and in the name of a header `%XX` stands for a byte, so that `|`, `&`, `:`,
`%` and spaces can be said. Neither has a `=`: Kafka's own tools do not take one in a value.

A template has a prefix so that it says which queues it may make. A record whose key or header does
not make the name of a queue is *unroutable*, as is one whose name would begin with `__`.

The last one of several headers of one name counts, as in Java's `Headers.lastHeader`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from string import ascii_letters, digits
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import re2  # type: ignore[import-untyped]

from kproxy.metadata.name_encodings import HASH, HEX, PERCENT, Encoding, read_encoding
from kproxy.metadata.setting import shown
from kproxy.virtual.partitioner import NAME_LENGTH_MAX, name_fault

TEXT_MAX = 1000
"""Characters of a template or a filter."""
CONFIGS_MAX = 2000
"""Characters of the settings of queues that a route makes."""
_PARTS_MAX = 16
_FIELD = re.compile(r"\{([^{}]*)\}")
_HEADER = "header:"
_LEGAL = f"{ascii_letters}{digits}._-".encode()
_INTERNAL = "__"
_PARSED_MAX = 1000

Headers = Mapping[bytes, bytes | None]


def internal(name: str) -> bool:
    """Return whether a name is one of Kafka's own queues: no route goes there."""
    return name.startswith(_INTERNAL)


class Template(NamedTuple):
    """A template, cut into its parts: a text, or after it the name of a header; None: the key."""

    prefix: str
    start: bytes
    """The prefix."""
    fields: tuple[tuple[bytes | None, bytes], ...]
    """(header's name or None for the key, the text behind it) of each field."""
    doubtful: bool
    """Whether the prefix alone does not say that a name is no queue of Kafka's own."""
    encodings: tuple[Encoding | None, ...] = ()
    """The encodings of each field; empty: none of them has any."""

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at."""
        return frozenset(name for name, _ in self.fields if name is not None)

    def fill(self, key: bytes | None, headers: Headers) -> tuple[str, str | None]:
        """Return (queue name, None), or ("", why the record has none).

        The caller checks that the name is not the entrance's own.
        """
        _, name, fields, doubtful, encodings = self
        if encodings:
            return self._fill_encoded(key, headers)
        for header, behind in fields:
            value = key if header is None else headers.get(header)
            if not value or len(value) > NAME_LENGTH_MAX:
                return "", _lack(header, value)
            name += value + behind
        # `translate` looks at all bytes in half the time of a pattern.
        if len(name) > NAME_LENGTH_MAX or doubtful or name.translate(None, _LEGAL):
            return self._judged(name, key, headers)
        return name.decode(), None

    def _fill_encoded(self, key: bytes | None, headers: Headers) -> tuple[str, str | None]:
        name = self.start
        for (header, behind), encoding in zip(self.fields, self.encodings, strict=True):
            value = key if header is None else headers.get(header)
            hashed = encoding is not None and encoding.kind == HASH
            if not value or (len(value) > NAME_LENGTH_MAX and not hashed):
                return "", _lack(header, value)
            if encoding is not None:
                value = encoding.encode(value)
            elif value.translate(None, _LEGAL):
                return "", f"the {_what(header)} is not a part of a queue name"
            name += value + behind
        return self._judged(name, None, {})

    def unfill(self, name: str) -> list[tuple[str, bytes | None]] | None:
        """Return the field and the value of each part of a name, for people; None: it makes no
        such name. A value of which there is only a hash is None."""
        encodings = self.encodings or (None,) * len(self.fields)
        pattern = re2.escape(self.prefix)
        for (_, behind), encoding in zip(self.fields, encodings, strict=True):
            some = "[A-Za-z0-9._-]+?" if encoding is None else encoding.pattern
            pattern += f"({some}){re2.escape(behind.decode())}"
        found = re2.fullmatch(pattern, name)
        if found is None:
            return None
        return [
            (_what(header), part.encode() if encoding is None else encoding.decode(part))
            for (header, _), encoding, part in zip(
                self.fields, encodings, found.groups(), strict=True
            )
        ]

    def _judged(self, name: bytes, key: bytes | None, headers: Headers) -> tuple[str, str | None]:
        for header, _ in self.fields:
            value = (key if header is None else headers.get(header)) or b""
            if value.translate(None, _LEGAL):
                return "", f"the {_what(header)} is not a part of a queue name"
        if len(name) > NAME_LENGTH_MAX:
            return "", _TOO_LONG
        made = name.decode()
        if internal(made) or name_fault(made):
            return "", f"{made} is not a queue that a route may go to"
        return made, None


_TOO_LONG = f"the queue name is longer than {NAME_LENGTH_MAX} characters"


def _what(header: bytes | None) -> str:
    """Return a field, for people."""
    return "key" if header is None else f"header {shown(header.decode(errors='backslashreplace'))}"


def _lack(header: bytes | None, value: bytes | None) -> str:
    if value is None:
        return f"no {_what(header)}"
    return _TOO_LONG if value else f"the {_what(header)} is empty"


def _check_text(text: str, most: int) -> None:
    if len(text) > most:
        raise ValueError(f"it must not be longer than {most} characters")
    if not text.isprintable():
        raise ValueError("it must not have control characters: %XX stands for a byte")


@lru_cache(_PARSED_MAX)
def read_template(text: str) -> Template:
    """Read a template. Raise ValueError, saying what a template must be."""
    _check_text(text, TEXT_MAX)
    prefix, *rest = _FIELD.split(text)
    if not rest:
        raise ValueError("it must have a {key} or a {header:NAME}, as in device-{key}")
    fault = name_fault(prefix)
    if fault and prefix not in (".", ".."):
        raise ValueError(
            "it must begin with a text that queue names may begin with, as in device-{key}"
        )
    if internal(prefix):
        raise ValueError(f"it must not begin with {_INTERNAL}: no route goes to such queues")
    if len(rest) > 2 * _PARTS_MAX:
        raise ValueError(f"it must not have more than {_PARTS_MAX} fields")
    fields: list[tuple[bytes | None, bytes]] = []
    encodings: list[Encoding | None] = []
    for number, (said, behind) in enumerate(zip(rest[::2], rest[1::2], strict=True), 1):
        field, kind = _encoded(said)
        last = 2 * number == len(rest)
        encodings.append(None if kind is None else read_encoding(kind, behind, last=last))
        if behind and name_fault("a" + behind):
            raise ValueError(f"{shown(repr(behind))} must not be in it: it is in no queue's name")
        if field == "key":
            fields.append((None, behind.encode()))
        elif field.startswith(_HEADER) and len(field) > len(_HEADER):
            fields.append((_bytes(field[len(_HEADER) :]), behind.encode()))
        else:
            raise ValueError(
                "between { and } there must be key or header:NAME, or one that is encoded: key:%,"
                " key:hex, key:hash, header:NAME:%, header:NAME:%hex or header:NAME:%hash"
            )
    if len(prefix) + sum(1 + len(behind) for _, behind in fields) > NAME_LENGTH_MAX:
        raise ValueError(
            f"its texts must be shorter: a queue name has at most {NAME_LENGTH_MAX} characters"
        )
    doubtful = prefix in (_INTERNAL[:1], ".")  # a name may be `__x`, or `..`
    known = tuple(encodings) if any(encodings) else ()
    return Template(prefix, prefix.encode(), tuple(fields), doubtful, known)


_OF_KEYS = {"key:%": PERCENT, "key:hex": HEX, "key:hash": HASH}
_OF_HEADERS = {":%": PERCENT, ":%hex": HEX, ":%hash": HASH}


def _encoded(field: str) -> tuple[str, str | None]:
    """Return a field without its encoding, and which that is."""
    if (kind := _OF_KEYS.get(field)) is not None:
        return "key", kind
    for end, kind in _OF_HEADERS.items():
        if field.startswith(_HEADER) and field.endswith(end):
            return field[: -len(end)], kind
    return field, None


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
        return headers.get(self.header) in self.values


class Filter(NamedTuple):
    """Conditions that all must hold."""

    conditions: tuple[Condition, ...]

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at."""
        return frozenset(one.header for one in self.conditions if one.header is not None)

    def matches(self, key: bytes | None, headers: Headers) -> bool:
        for one in self.conditions:  # noqa: SIM110  `all` takes twice as long
            if not one.holds(key, headers):
                return False
        return True


def _bytes(text: str) -> bytes:
    if not text:
        raise ValueError("there must be something between two of its marks")
    if re.search(r"%(?![0-9a-fA-F]{2})", text):
        raise ValueError("behind % there must be two hexadecimal digits")
    if " " in text or "|" in text:
        raise ValueError("it must not have a space or a | in its texts: %20 and %7C stand for them")
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
    """Read a filter. Raise ValueError, saying what a filter must be. "": all records match."""
    _check_text(text, TEXT_MAX)
    parts = text.split("&") if text else []
    if len(parts) > _PARTS_MAX:
        raise ValueError(f"it must not have more than {_PARTS_MAX} conditions")
    return Filter(tuple(_condition(part.strip()) for part in parts))


@lru_cache(_PARSED_MAX)
def read_configs(text: str) -> dict[str, str]:
    """Return settings from `name:value;name:value`, values unchecked. Raise ValueError."""
    _check_text(text, CONFIGS_MAX)
    found = {}
    for part in text.split(";") if text else []:
        name, mark, value = part.strip().partition(":")
        if not mark or not name:
            raise ValueError("it must be a list of name:value, with ; between them")
        if name in found:
            raise ValueError(f"it must not name {shown(name)} twice")
        found[name] = value
    return found
