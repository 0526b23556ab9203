"""The settings of lanes: which records of a share group belong together, and whose turn it is."""

import re
from typing import NamedTuple

from kproxy.metadata.setting import (
    DOUBLE,
    INT,
    INT_MAX,
    SPACE,
    STRING,
    Read,
    Setting,
    decimal,
    number,
    one_of,
    parts,
    shown,
)
from kproxy.virtual.levels import LANES_FROM

LANE = "kproxy.share.lane"
IN_FLIGHT = "kproxy.share.lane.in.flight"
LOOKAHEAD = "kproxy.share.lane.lookahead"
WEIGHTS = "kproxy.share.lane.weights"
RATE = "kproxy.share.lane.rate"
ON_DEAD = "kproxy.share.lane.on.dead"
PRIORITY = "kproxy.share.priority"
PRIORITY_SHARE = "kproxy.share.priority.share"

LOOKAHEAD_MIN, LOOKAHEAD_MAX = 1000, 10_000_000
_WEIGHT_MAX = 1000
_RATE_MAX = 1_000_000
_NAME_MAX = 200  # characters of a header's name
_HEADER = "header:"
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_RATE = re.compile(r"([0-9]{1,7})/([smh])", re.ASCII)
_WEIGHT = re.compile(r"[0-9]{1,4}", re.ASCII)
_AT_ONCE_S = 0.1
"""The records of so much time may come at once: else a lane could not reach a high rate."""


class LaneRules(NamedTuple):
    """The rules of a group with lanes, or with priorities.

    `header`: whose value is the lane, empty: the key. `by_level`: there are no lanes but the levels
    of priority. `every_s`: seconds between two records of a lane, 0: as fast as it goes.
    """

    header: str = ""
    by_level: bool = False
    in_flight: int = 0
    lookahead: int = 100_000
    weights: tuple[tuple[str, int], ...] = ()
    every_s: float = 0.0
    burst: int = 1
    priority: str = ""
    share: float = 0.0
    holds: bool = False

    @property
    def alike(self) -> bool:
        """Whether all lanes have like turns, whenever they have something."""
        return not (self.weights or self.every_s or self.priority or self.holds)

    def names_like(self, other: "LaneRules") -> bool:
        """Return whether each record is in the lane of the same name by both."""
        return (self.header, self.by_level) == (other.header, other.by_level)


def _header(value: str) -> str:
    """Return the name of a header. Raise ValueError."""
    name = value.removeprefix(_HEADER)
    if name == value or not name:
        raise ValueError(f"a header is {_HEADER}NAME")
    if len(name) > _NAME_MAX or not name.isprintable():
        raise ValueError(f"a header's name has at most {_NAME_MAX} characters, all printable")
    return name


def _read_lane(value: str) -> str:
    value = value.strip(SPACE)
    if value not in ("none", "key"):
        try:
            _header(value)
        except ValueError as fault:
            raise ValueError(f"it must be none, key or {_HEADER}NAME: {fault}") from None
    return value


def _read_priority(value: str) -> str:
    value = value.strip(SPACE)
    if value:
        _header(value)
    return value


def weights_of(value: str) -> tuple[tuple[str, int], ...]:
    """Return the weights of lanes, by name. Raise ValueError."""
    found: dict[str, int] = {}
    for part in parts(value):
        name, equals, said = part.rpartition("=")
        if not equals or not name:
            raise ValueError(f"a weight is LANE=NUMBER, not {shown(part)}")
        if not _WEIGHT.fullmatch(said) or not 1 <= int(said) <= _WEIGHT_MAX:
            raise ValueError(f"a weight is a number from 1 to {_WEIGHT_MAX}, not {shown(said)}")
        if name in found:
            raise ValueError(f"{shown(name)} has two weights")
        found[name] = int(said)
    return tuple(found.items())


def _read_weights(value: str) -> str:
    return ",".join(f"{name}={weight}" for name, weight in weights_of(value))


def rate_of(value: str) -> tuple[float, int]:
    """Return the seconds between two records of a lane, and how many may come at once.

    Raise ValueError.
    """
    if not value:
        return 0.0, 1
    found = _RATE.fullmatch(value)
    if found is None or not 1 <= int(found[1]) <= _RATE_MAX:
        raise ValueError(f"a rate is NUMBER/s, /m or /h, the number from 1 to {_RATE_MAX}")
    every_s = _SECONDS[found[2]] / int(found[1])
    return every_s, 1 + int(_AT_ONCE_S / every_s)


def _read_rate(value: str) -> str:
    value = value.strip(SPACE)
    rate_of(value)
    return value


def _setting(name: str, default: str, read: Read, documentation: str, field: str) -> Setting:
    return Setting(name, STRING, default, read, documentation, field=field, level=LANES_FROM)


LANE_SETTINGS = (
    _setting(LANE, "none", _read_lane,
             "A share group's lanes, which take turns: records of one key (key), or of one value of"
             " a header (header:NAME); none: it has no lanes.", "lane"),
    number(IN_FLIGHT, INT, 0, 0,
           "Records of a lane that are given at the same time, at most, over all members; 1: in"
           " order; 0: any number.", most=INT_MAX, field="lane_in_flight", level=LANES_FROM),
    number(LOOKAHEAD, INT, 100_000, LOOKAHEAD_MIN,
           "Records of a partition, from the first one that is not done, among which lanes are"
           " looked for.", most=LOOKAHEAD_MAX, field="lane_lookahead", level=LANES_FROM),
    Setting(WEIGHTS, STRING, "", _read_weights,
            "Turns in a row of lanes by name, as in gold=4,free=2; other lanes have one.",
            field="lane_weights", value=weights_of, level=LANES_FROM),
    Setting(RATE, STRING, "", _read_rate,
            "Records of a lane that are given in a time, as in 10/s, 600/m or 5/h, in each"
            " partition; empty: any number.",
            field="lane_rate", value=rate_of, level=LANES_FROM),
    Setting(ON_DEAD, STRING, "continue", one_of("continue", "hold"),
            "What becomes of a lane whose record is given up: continue, or hold: it waits until an"
            " operator releases it (kproxy lanes).",
            field="lane_holds", value=lambda text: text == "hold", level=LANES_FROM),
    _setting(PRIORITY, "", _read_priority,
             "The header, header:NAME, that says from 0 to 9 how urgent a record is; 9 comes first,"
             " without it 4; empty: none.", "priority"),
    Setting(PRIORITY_SHARE, DOUBLE, "0.0", decimal(0, 0.9),
            "The part of turns that lower levels of priority have while a higher one has records;"
            " 0: none.", field="priority_share", value=float, level=LANES_FROM),
)  # fmt: skip


def rules_of(
    lane: str, priority: str, in_flight: int, lookahead: int,
    weights: tuple[tuple[str, int], ...], rate: tuple[float, int], share: float, holds: bool,
) -> LaneRules | None:  # fmt: skip
    """Return the rules that settings come to; None: the group has neither lanes nor priorities."""
    by_level = lane == "none"
    if by_level and not priority:
        return None
    level = _header(priority) if priority else ""
    if by_level:
        return LaneRules(by_level=True, lookahead=lookahead, priority=level, share=share)
    header = "" if lane == "key" else _header(lane)
    every_s, burst = rate
    return LaneRules(
        header, False, in_flight, lookahead, weights, every_s, burst, level, share, holds
    )
