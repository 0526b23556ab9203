"""Counts what becomes of records in share groups, once the log has it."""

from collections.abc import Iterable
from enum import Enum, auto

from kproxy.common.counters import Counters
from kproxy.virtual.commands.shares import OWED, Cause, Run
from kproxy.virtual.rows.shares import STATE_BITS, RecordState


class By(Enum):
    """The reason why records change their state."""

    MEMBER = auto()
    """A member has acknowledged them."""
    TIME = auto()
    """A member held them for too long."""
    LEAVING = auto()
    """The session of their member has ended."""
    FETCH = auto()
    """A fetch gave them again, or found holes among them."""


def count(counters: Counters, runs: Iterable[Run], by: By) -> None:
    """Add what some runs say to the counters."""
    alike: dict[tuple[int, int], int] = {}
    for _, records, byte, cause in runs:
        alike[byte, cause] = alike.get((byte, cause), 0) + records
    for (byte, cause), records in alike.items():
        state, cause = byte & STATE_BITS, cause & ~OWED
        if state == RecordState.ACKNOWLEDGED:
            counters.share_accepted += records
            continue
        if cause == Cause.REJECTED:
            counters.share_rejected += records
        elif state == RecordState.AVAILABLE or cause == Cause.DELIVERY_LIMIT:
            if by is By.MEMBER:
                counters.share_released += records
            elif by is By.TIME:
                counters.share_timed_out += records
        if state == RecordState.ARCHIVED:
            counters.share_archived[_cause_of(cause, by)] += records


def _cause_of(cause: int, by: By) -> str:
    if cause == Cause.REJECTED:
        return "rejected"
    if cause == Cause.DELIVERY_LIMIT:
        return "delivery_limit"
    if cause == Cause.EXPIRED:
        return "expired"
    return "gap" if by is By.MEMBER else "hole"
