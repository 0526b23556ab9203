"""Values of groups' settings: how they are read, and what they come to. Texts are Kafka's."""

import re
from enum import Enum
from typing import NamedTuple

from kproxy.metadata.setting import INT, INT_MAX, SPACE, Read, boolean, parts, whole
from kproxy.virtual.partitioner import name_fault

BACKOFFS_MAX = 20
_DURATION_MS_MAX = (1 << 53) - 1


class OffsetReset(Enum):
    """The beginning of a share group in a partition that it has not read."""

    LATEST = "latest"
    EARLIEST = "earliest"
    BY_DURATION = "by_duration"


class AutoOffsetReset(NamedTuple):
    """`share.auto.offset.reset`; `duration_ms` before now, where it is by duration."""

    kind: OffsetReset = OffsetReset.LATEST
    duration_ms: int = 0


FROM_LATEST = AutoOffsetReset()
_NUMBER = r"[-+]?[0-9]{1,19}"
_DURATION = re.compile(
    rf"([-+]?)P(?:({_NUMBER})D)?(T(?:({_NUMBER})H)?(?:({_NUMBER})M)?"
    rf"(?:({_NUMBER})(?:[.,]([0-9]{{0,9}}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)  # as Java's Duration
_LONG = range(-(1 << 63), 1 << 63)


def _duration_ms(text: str) -> int:
    """Read a duration. Raise ValueError for what Java's Duration does not read, or below 0."""
    found = _DURATION.fullmatch(text)
    if found is None or (found[3] or "").upper() == "T" or not any(found.group(2, 4, 5, 6)):
        raise ValueError
    days, hours, minutes, seconds = (
        int(given or 0) * unit
        for given, unit in zip(found.group(2, 4, 5, 6), (86_400, 3600, 60, 1), strict=True)
    )
    nanos = int((found[7] or "").ljust(9, "0"))
    if (found[6] or "").startswith("-"):
        nanos = -nanos
    total = days + hours + minutes + seconds
    if any(part not in _LONG for part in (days, hours, minutes, seconds, total)):
        raise ValueError
    duration = total * 10**9 + nanos
    if found[1] == "-":
        duration = -duration
    if duration < 0:
        raise ValueError
    return min(duration // 10**6, _DURATION_MS_MAX)


_BY_DURATION = "by_duration:"


def reset_of(value: str) -> AutoOffsetReset:
    """Return a reset from its text. Raise ValueError."""
    if value.startswith(_BY_DURATION):
        duration_ms = _duration_ms(value.removeprefix(_BY_DURATION))
        return AutoOffsetReset(OffsetReset.BY_DURATION, duration_ms)
    if value == OffsetReset.BY_DURATION.value:
        raise ValueError
    return AutoOffsetReset(OffsetReset(value))


def _trimmed(value: str) -> str:
    return value.strip(SPACE)


def at_least(least: int | None) -> Read:
    """Return a check for a number. None: that is looked at later, as the worker has a say in it."""
    number_of = whole(INT)

    def read(value: str) -> str:
        try:
            number = int(number_of(value))
        except ValueError:
            raise ValueError("Not a number of type INT") from None
        if least is not None and number < least:
            raise ValueError(f"Value must be at least {least}")
        return str(number)

    return read


def true_or_false(value: str) -> str:
    try:
        return boolean(value)
    except ValueError:
        raise ValueError("Expected value to be either true or false") from None


def isolation(value: str) -> str:
    value = _trimmed(value)
    if value not in ("read_committed", "read_uncommitted"):
        raise ValueError("String must be one of: read_committed, read_uncommitted")
    return value


def offset_reset(value: str) -> str:
    value = _trimmed(value)
    try:
        reset_of(value)
    except ValueError:
        raise ValueError(
            f"Invalid value `{value}` for configuration share.auto.offset.reset. The value must be"
            " either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
        ) from None
    return value


class WholeFault(ValueError):
    """A fault whose text says which setting it is of, as some of Kafka's do."""


def assignor(name: str, *known: str) -> Read:
    """Return a check of the name of an assignor."""

    def read(value: str) -> str:
        value = _trimmed(value)
        if value not in known:
            raise WholeFault(
                f"{name} '{value}' is not a registered task assignor. Registered assignors are:"
                f" [{', '.join(known)}]."
            )
        return value

    return read


def tag_keys(name: str) -> Read:
    """Return a check of a list of keys of client tags."""

    def read(value: str) -> str:
        found = parts(value)
        if len(set(found)) < len(found):
            raise WholeFault(f"{name} must not contain duplicate tag keys.")
        if "" in found:
            raise WholeFault(f"Configuration '{name}' values must not be empty.")
        return ",".join(found)

    return read


def dead_letter_queue(value: str) -> str:
    value = _trimmed(value)
    if value.startswith("__"):
        raise WholeFault(
            "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"
        )
    fault = name_fault(value) if value else None
    if fault is not None:
        raise ValueError(fault)
    return value


def backoffs(value: str) -> str:
    found = parts(value)
    if len(found) > BACKOFFS_MAX:
        raise ValueError(f"it must be at most {BACKOFFS_MAX} times in milliseconds")
    read = whole(INT, 0, INT_MAX)
    return ",".join(read(part) for part in found)
