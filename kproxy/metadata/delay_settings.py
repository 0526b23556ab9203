"""The settings of queues whose records wait until they are due."""

from collections.abc import Mapping
from typing import NamedTuple

from kproxy.metadata.setting import LONG, STRING, Setting, number, one_of
from kproxy.virtual.levels import DELAYS_FROM, LIFE_FROM

FIXED, MODE = "kproxy.delay.ms", "kproxy.delay"
REPLACE = "kproxy.delay.replace"
MOST, RECORDS_MAX = "kproxy.delay.ms.max", "kproxy.delay.records.max"
DELIVER_AT, DELAY_MS = b"kproxy.deliver-at", b"kproxy.delay-ms"
"""Headers of a record: when it is due, in ms since the epoch; or how long it waits."""
_DAY_MS = 24 * 3600 * 1000
_HUNDRED_YEARS_MS = 36_525 * _DAY_MS


DELAY_SETTINGS = (
    Setting(MODE, STRING, "none", one_of("none", "header"),
            "Whether a record may say in a header when it is due: kproxy.deliver-at (milliseconds"
            " since 1970) or kproxy.delay-ms. Until then nobody sees it.", level=DELAYS_FROM),
    number(FIXED, LONG, 0, 0,
           "How long each record waits before anybody sees it, unless a header says otherwise;"
           " milliseconds, 0: not at all.", most=_HUNDRED_YEARS_MS, level=DELAYS_FROM),
    number(MOST, LONG, 15 * _DAY_MS, 1, "How long a record may wait, at most; milliseconds.",
           most=_HUNDRED_YEARS_MS, level=DELAYS_FROM),
    Setting(REPLACE, STRING, "none", one_of("none", "key"),
            "Whether a record replaces the one of its key that waits; without a value it cancels"
            " that one.", level=lambda text: LIFE_FROM if text == "key" else DELAYS_FROM),
    number(RECORDS_MAX, LONG, 1_000_000, 1,
           "How many records of a partition may wait; beyond that none is taken that would.",
           level=DELAYS_FROM),
)  # fmt: skip


class DelaySettings(NamedTuple):
    """The settings of a queue with delays. `fixed_ms`: 0 if only records with a header wait."""

    fixed_ms: int
    by_header: bool
    max_ms: int
    records_max: int
    by_key: bool = False
    """Whether a record replaces the one of its key that waits."""


def delays_conflict(values: Mapping[str, str]) -> str | None:
    """Return what is wrong with a queue's settings of delays, of which each by itself is sound."""
    defaults = {setting.name: setting.default for setting in DELAY_SETTINGS}
    fixed, most = (values.get(name, defaults[name]) for name in (FIXED, MOST))
    if int(fixed) > int(most):
        return f"{FIXED}={fixed} is above {MOST}={most}: raise the latter, or wait for less"
    if values.get(REPLACE) == "key" and not int(fixed) and values.get(MODE) != "header":
        return f"{REPLACE} has no effect without {MODE}=header or {FIXED}: set one of them"
    return None
