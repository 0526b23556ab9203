"""The settings of redrives: what a dead-letter queue passes on once more, where, and how fast.

A queue with `kproxy.redrive.to` passes on what it has at that moment, once (`folds.redrives`).
"""

from collections.abc import Collection, Mapping

from kproxy.metadata.lane_settings import rate_of
from kproxy.metadata.route_settings import queue_name, sound
from kproxy.metadata.routing import internal, read_filter
from kproxy.metadata.setting import BOOLEAN, LONG, STRING, Setting, boolean, is_true, whole
from kproxy.virtual.folds.redrives import FILTER, JOB, TIMES_MAX, TO
from kproxy.virtual.folds.route_definitions import TO as ROUTE_TO
from kproxy.virtual.levels import LIFE_FROM
from kproxy.virtual.partitioner import name_fault

RATE, PAUSED = "kproxy.redrive.rate", "kproxy.redrive.paused"
TIMES_MAX_DEFAULT = "3"
_JOB_MAX = 100
_ANY = "*"


def read_target(text: str) -> tuple[str, str]:
    """Return (queue, ""), or ("", the beginning of the names of origins). Raise ValueError."""
    if not text.endswith(_ANY):
        return queue_name(text), ""
    prefix = text[: -len(_ANY)]
    if prefix and (internal(prefix) or name_fault(prefix + "a")):
        raise ValueError("before * there must be a text that queue names may begin with")
    return "", prefix


def _check_job(text: str) -> None:
    if len(text) > _JOB_MAX or not text.isprintable():
        raise ValueError(f"it must be a text of {_JOB_MAX} characters at most")


REDRIVE_SETTINGS = (
    Setting(FILTER, STRING, "", sound(read_filter),
            "Which records kproxy.redrive.to passes on, as kproxy.route.filter says it.",
            level=LIFE_FROM),
    Setting(JOB, STRING, "", sound(_check_job),
            "A name that tells a redrive from those before it: under another one all records are"
            " passed on that the queue has then.", level=LIFE_FROM),
    Setting(PAUSED, BOOLEAN, "false", boolean,
            "Whether kproxy.redrive.to waits.",
            field="redrive_paused", value=is_true, level=LIFE_FROM),
    Setting(RATE, STRING, "", sound(rate_of),
            "How many records kproxy.redrive.to passes on in a time, as in 50/s, 600/m or 5/h;"
            " empty: as fast as it goes.",
            field="redrive_every_s", value=lambda text: rate_of(text)[0], level=LIFE_FROM),
    Setting(TIMES_MAX, LONG, TIMES_MAX_DEFAULT, whole(LONG, 1, 1_000_000),
            "How often a record may be redriven, as its header kproxy.redriven counts: one that"
            " dies again stays then.", level=LIFE_FROM),
    Setting(TO, STRING, "", sound(read_target),
            "The queue that the records go to once more that are here when it is set; * for where"
            " each dead letter came from, orders-* for those from queues that begin so.",
            level=LIFE_FROM),
)  # fmt: skip

_NO_CHANGE = {setting.name: (None, setting.default) for setting in REDRIVE_SETTINGS}


def redrive_conflict(values: Mapping[str, str], given: Collection[str]) -> str | None:
    """Return what is wrong with a queue's settings of a redrive, of which each by itself is
    sound."""
    to = values.get(TO)
    if to and values.get(ROUTE_TO):
        return f"{TO} and {ROUTE_TO} exclude each other: an entrance passes on all that it has"
    for setting in REDRIVE_SETTINGS:
        name = setting.name
        if not to and name in given and values.get(name) not in _NO_CHANGE[name]:
            return f"{name} has no effect without {TO}: set both, or neither"
    return None
