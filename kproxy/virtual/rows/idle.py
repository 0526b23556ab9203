"""Rows of queues that are deleted once nobody has used them for long."""

from collections.abc import Mapping
from typing import NamedTuple

from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.schema import Keys, Rows

IDLE_MS, WITH_RECORDS = "kproxy.expire.idle.ms", "kproxy.expire.with.records"
"""Settings of queues that the fold reads as well: they are in its own log."""

IDLE_DUE = Keys(RowKind.IDLE_DUE, "QP")
"""The times at which to look, and the partitions; 0: at once."""


class Idle(NamedTuple):
    """A partition's time in that index, the end that it had at the last look, and since when
    nobody is known to have used it."""

    filed_ms: int
    end: int
    since_ms: int


IDLE = Rows(RowKind.IDLE, "P", Idle, "qqq")


def idle_ms_of(configs: Mapping[str, str]) -> int:
    """Return the time without use after which a queue is deleted; -1: never."""
    return int(configs.get(IDLE_MS, "-1"))
