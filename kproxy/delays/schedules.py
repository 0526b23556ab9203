"""The schedules of records that wait again once they are appended, as a header says.

    kproxy.every   the milliseconds from one time to the next, a second at least
    kproxy.cron    a cron line of five fields, or of six with seconds, in the time of `kproxy.tz`
    kproxy.tz      a name of the IANA time zone database; without it UTC

An interval counts before a cron line. Times that have passed while nobody could deliver
are left out: a schedule goes on at its next time from now. By daylight saving a time that does not
exist comes as soon as it would have, and one that comes twice comes once.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kproxy.metadata.setting import shown

EVERY, CRON, ZONE = b"kproxy.every", b"kproxy.cron", b"kproxy.tz"
SCHEDULES = frozenset((EVERY, CRON, ZONE))
EVERY_MS_LEAST = 1000
_EVERY_MS_MAX = 36_525 * 24 * 3600 * 1000
_LINE_MAX = 200
_PARSED_MAX = 1000
_PASSED_MAX = 2 * 3600 + 1  # times in an hour that comes twice, of a line with seconds
_NUMBER = re.compile(r"\d{1,13}")
_NAME = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")


class Schedule(NamedTuple):
    """An interval in ms, or a cron line and its time zone."""

    every_ms: int
    line: str = ""
    zone: str = "UTC"

    def after(self, due_ms: int, now_ms: int) -> int | None:
        """Return the next time behind one, and behind now; None: there is none."""
        if self.every_ms:
            missed = max(0, now_ms - due_ms) // self.every_ms
            return due_ms + (missed + 1) * self.every_ms
        from cronsim import CronSim  # type: ignore[import-not-found,import-untyped,unused-ignore]

        behind_ms = max(due_ms, now_ms)
        begin = datetime.fromtimestamp(behind_ms // 1000, UTC).astimezone(_zone(self.zone))
        times = (int(one.timestamp()) * 1000 for one in CronSim(self.line, begin))
        # In an hour that comes twice times of its first turn come first, which have passed.
        return next((one for one in islice(times, _PASSED_MAX) if one > behind_ms), None)


@lru_cache(_PARSED_MAX)
def _zone(name: str) -> ZoneInfo:
    """Return a time zone. Raise ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError("it must be a time zone, as Europe/Berlin")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise ValueError("there is no such time zone; Europe/Berlin is one") from None


@lru_cache(_PARSED_MAX)
def _checked_line(line: str) -> None:
    """Check a cron line. Raise ValueError."""
    try:
        from cronsim import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
            CronSim,
            CronSimError,
        )
    except ImportError:
        raise ValueError("kproxy was installed without the package cronsim") from None
    try:
        if len(line) > _LINE_MAX or next(CronSim(line, datetime.now(UTC)), None) is None:
            raise ValueError("it never fires, or is too long")
    except CronSimError as error:
        raise ValueError(f"it is no cron line ({error}); 30 2 * * 1-5 is one") from None


def schedule_in(headers: Mapping[bytes, bytes | None]) -> Schedule | None:
    """Return the schedule that a record's headers say; None: none. Raise ValueError."""
    for name, read in ((EVERY, _interval), (CRON, _cron)):
        if name in headers:
            text = (headers[name] or b"").decode("utf-8", "replace")
            try:
                return read(text, headers)
            except ValueError as fault:
                raise ValueError(f"header {name.decode()}={shown(text)}: {fault}") from None
    return None


def _interval(text: str, headers: Mapping[bytes, bytes | None]) -> Schedule:
    if not _NUMBER.fullmatch(text) or not EVERY_MS_LEAST <= int(text) <= _EVERY_MS_MAX:
        raise ValueError(f"it must be milliseconds, {EVERY_MS_LEAST} at least")
    return Schedule(int(text))


def _cron(text: str, headers: Mapping[bytes, bytes | None]) -> Schedule:
    _checked_line(text)
    zone = (headers.get(ZONE) or b"UTC").decode("utf-8", "replace")
    try:
        _zone(zone)
    except ValueError as fault:
        raise ValueError(f"{ZONE.decode()}={shown(zone)}: {fault}") from None
    return Schedule(0, text, zone)
