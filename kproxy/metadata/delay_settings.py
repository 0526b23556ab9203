"""The settings of queues whose records wait until they are due."""

from collections.abc import Mapping
from typing import NamedTuple

from kproxy.metadata.setting import LONG, STRING, Setting, one_of, whole

FIXED, MODE = "kproxy.delay.ms", "kproxy.delay"
MOST, RECORDS_MAX = "kproxy.delay.ms.max", "kproxy.delay.records.max"
PREFIX = "kproxy.delay"
DELIVER_AT, DELAY_MS = b"kproxy.deliver-at", b"kproxy.delay-ms"
"""Headers of a record: when it is due, in ms since the epoch; or how long it waits."""
_DAY_MS = 24 * 3600 * 1000
_HUNDRED_YEARS_MS = 36_525 * _DAY_MS


def _number(name: str, default: int, least: int, most: int | None, documentation: str) -> Setting:
    return Setting(
        name=name, kind=LONG, default=str(default), read=whole(LONG, least, most),
        documentation=documentation,
    )  # fmt: skip


DELAY_SETTINGS = (
    Setting(
        name=MODE, kind=STRING, default="none", read=one_of("none", "header"),
        documentation="Whether a record may say in a header when it is due: kproxy.deliver-at"
        " (milliseconds since 1970) or kproxy.delay-ms. Until then nobody sees it.",
    ),
    _number(FIXED, 0, 0, _HUNDRED_YEARS_MS,
            "How long each record waits before anybody sees it, unless a header says otherwise;"
            " milliseconds, 0: not at all."),
    _number(MOST, 15 * _DAY_MS, 1, _HUNDRED_YEARS_MS,
            "How long a record may wait, at most; milliseconds."),
    _number(RECORDS_MAX, 1_000_000, 1, None,
            "How many records of a partition may wait; beyond that none is taken that would."),
)  # fmt: skip


class DelaySettings(NamedTuple):
    """The settings of a queue with delays. `fixed_ms`: 0 if only records with a header wait."""

    fixed_ms: int
    by_header: bool
    max_ms: int
    records_max: int


def delays_conflict(values: Mapping[str, str]) -> str | None:
    """Return what is wrong with a queue's settings of delays, of which each by itself is sound."""
    defaults = {setting.name: setting.default for setting in DELAY_SETTINGS}
    fixed, most = (values.get(name, defaults[name]) for name in (FIXED, MOST))
    if int(fixed) > int(most):
        return f"{FIXED}={fixed} is above {MOST}={most}: raise the latter, or wait for less"
    return None
