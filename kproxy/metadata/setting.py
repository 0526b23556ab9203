"""A setting: its name, type, default and range, checked as Kafka's `ConfigDef` checks it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kproxy.common.printable import printable
from kproxy.virtual.levels import OLDEST

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7  # DescribeConfigs' ConfigType
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32  # ConfigResource's types
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
_INT_MIN, _LONG_MIN = -(2**31), -(2**63)

SET_BY = "kproxy.set.by"
"""The user who has set settings by which the server copies records (`security.behalf`), kept beside
them. No client sets, drops or sees it."""
COPIES_BY = "kproxy.copies.by"
"""The user who has said that dead letters are copies, whoever sets their queue since."""
_SHOWN_MAX = 200


def shown(text: str) -> str:
    """Return what a peer has sent, for one line of an answer: escaped, and its beginning."""
    return printable(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…")


Read = Callable[[str], str]
"""A value as it is kept and shown. Raises ValueError, saying what it must be."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a topic, a group or a broker: all that is said of it, once."""

    name: str
    kind: int
    default: str
    read: Read
    documentation: str
    broker_name: str | None = None  # the broker's setting that the default comes from, in Kafka
    has_effect: bool = True
    field: str = ""
    """The field of `QueueSettings` or `GroupSettings` that has its value; empty: none by itself."""
    value: Callable[[str], Any] = str
    level: int | Callable[[str], int] = OLDEST

    def needs(self, value: str) -> int:
        """Return the level from which the setting may have a value."""
        return self.level if isinstance(self.level, int) else self.level(value)


_WHOLE = re.compile(r"[+-]?\d{1,20}")  # digits of any script, as Long.parseLong takes them
_DECIMAL = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5})?)[fFdD]?", re.ASCII)
_HEXADECIMAL = re.compile(r"([+-]?0[xX][\da-fA-F]*\.?[\da-fA-F]*[pP][+-]?\d{1,5})[fFdD]?", re.ASCII)
_SIGHT = 32  # a longer number is none
SPACE = "".join(map(chr, range(33)))  # the characters that Java's trim takes away


def _whole(value: str, least: int, most: int) -> int:
    value = value.strip(SPACE)
    if len(value) > _SIGHT or not _WHOLE.fullmatch(value) or not least <= int(value) <= most:
        raise ValueError("it must be a whole number")
    return int(value)


def whole(kind: int, least: int | None = None, most: int | None = None) -> Read:
    """Return a check for a whole number of type INT or LONG."""
    low, high = (_INT_MIN, INT_MAX) if kind == INT else (_LONG_MIN, LONG_MAX)
    low, high = low if least is None else least, high if most is None else most

    def read(value: str) -> str:
        try:
            return str(_whole(value, low, high))
        except ValueError:
            raise ValueError(f"it must be a whole number from {low} to {high}") from None

    return read


def number(
    name: str, kind: int, default: int, least: int | None, documentation: str,
    broker_name: str | None = None, *, most: int | None = None, field: str = "",
    level: int = OLDEST,
) -> Setting:  # fmt: skip
    """Return the setting of a whole number."""
    read = whole(kind, least, most)
    return Setting(name, kind, str(default), read, documentation, broker_name, field=field,
                   value=int, level=level)  # fmt: skip


def is_true(value: str) -> bool:
    return value == "true"


def _decimal(value: str) -> float:
    """Return a number. Raise ValueError, OverflowError."""
    if len(value) > _SIGHT:
        raise ValueError
    if found := _DECIMAL.fullmatch(value):
        return float(found[1])
    if found := _HEXADECIMAL.fullmatch(value):
        return float.fromhex(found[1])
    raise ValueError


def decimal(least: float, most: float) -> Read:
    """Return a check for a number with a fraction, in the forms that Java reads; NaN is none."""

    def read(value: str) -> str:
        try:
            number = _decimal(value.strip(SPACE))
        except (ValueError, OverflowError):
            number = float("nan")
        if not least <= number <= most:
            raise ValueError(f"it must be a number from {least:g} to {most:g}")
        return str(number)

    return read


def boolean(value: str) -> str:
    """Return true or false."""
    value = value.strip(SPACE).lower()
    if value not in ("true", "false"):
        raise ValueError("it must be true or false")
    return value


def one_of(*allowed: str) -> Read:
    """Return a check for one of some words."""

    def read(value: str) -> str:
        value = value.strip(SPACE)
        if value not in allowed:
            raise ValueError(f"it must be {' or '.join(allowed)}")
        return value

    return read


def parts(value: str) -> list[str]:
    """Return the parts of a list, as Kafka cuts it."""
    value = value.strip(SPACE)
    return [part.strip(SPACE) for part in value.split(",")] if value else []


def list_of(*allowed: str) -> Read:
    """Return a check for a list of some words."""

    def read(value: str) -> str:
        found = parts(value)
        if not all(part in allowed for part in found):
            raise ValueError(f"it must be a list of: {', '.join(allowed)}")
        return ",".join(found)

    return read
