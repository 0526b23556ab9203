"""Times and durations as people write them."""

import re
import time
from datetime import UTC, datetime
from typing import Any

import click

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_MILLISECONDS = re.compile(r"\d{1,18}")


def duration(context: Any, parameter: Any, text: str | None) -> int | None:
    """Return an option's milliseconds. Raises BadParameter."""
    if text is None:
        return None
    if found := _DURATION.fullmatch(text):
        return int(found[1]) * _UNITS[found[2]]
    raise click.BadParameter(f"{text}: write it as 500ms, 8s, 5m, 2h or 1d")


def moment(context: Any, parameter: Any, text: str | None) -> int | None:
    """Return an option's milliseconds since 1970; -1h is an hour ago. Raises BadParameter."""
    if not text or _MILLISECONDS.fullmatch(text):
        return int(text) if text else None
    if found := _DURATION.fullmatch(text.removeprefix("-")):
        return max(0, time.time_ns() // 1_000_000 - int(found[1]) * _UNITS[found[2]])
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text}: write it as 2026-11-26T12:00:00Z, as -1h (an hour ago), or in milliseconds"
            " since 1970"
        ) from None
    # Before 1970 a number would be one that has another meaning: -1 is the end of a queue.
    return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
