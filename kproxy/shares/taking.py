"""The limits of one fetch on a window, and what it has taken."""

from collections.abc import Sequence
from typing import NamedTuple

from kproxy.virtual.commands.shares import Run
from kproxy.virtual.rows.batches import StoredBatch

Stretch = tuple[int, int, StoredBatch | None]
"""The first and the last offset of a batch, or of a hole where nothing is to be given."""
EXPIRED: StoredBatch = (-1, -1, -1, 0)
"""The batch of a stretch whose records have expired: they are archived as a hole is."""


class Range(NamedTuple):
    """Acquired records that were delivered equally often."""

    first: int
    last: int
    deliveries: int


def parted(ranges: Sequence[Range], some: frozenset[int]) -> tuple[list[Range], list[Range]]:
    """Return the ranges without some offsets, and these offsets as ranges."""
    if not some:
        return list(ranges), []
    parts: tuple[list[Range], list[Range]] = [], []
    for first, last, deliveries in ranges:
        begin = first
        for offset in range(first, last + 1):
            if offset == last or (offset in some) != (offset + 1 in some):
                parts[offset in some].append(Range(begin, offset, deliveries))
                begin = offset + 1
    return parts


class Limits(NamedTuple):
    """The limits that the group's settings and one fetch set."""

    deliveries_max: int
    window_max: int
    records_max: int
    exact: bool = False  # record_limit: one range, never more than `records_max`
    batch_size: int = 0  # ranges are cut at the end of a batch once they have so many

    @property
    def throttle(self) -> int:
        """The deliveries after which less is given at once (KIP-932, as of Kafka 4.2)."""
        return max(2, (self.deliveries_max + 1) // 2)

    def throttles(self, deliveries: int) -> bool:
        return deliveries >= self.throttle


class Taking:
    """The records that one fetch has taken so far."""

    __slots__ = (
        "archived", "count", "limits", "piece_left", "ranges", "redelivered", "runs", "throttled",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.ranges: list[Range] = []
        self.runs: list[Run] = []
        self.archived: list[Run] = []
        self.redelivered = False
        self.count = 0
        self.throttled: int | None = None  # after so many deliveries
        self.piece_left = 0

    def throttle(self, deliveries: int, size: int) -> None:
        """Take half as many each time, and the last time one alone."""
        self.throttled = deliveries
        last = deliveries >= self.limits.deliveries_max - 1
        self.piece_left = 1 if last else max(1, size >> (deliveries - self.limits.throttle + 1))

    @property
    def left(self) -> int:
        return self.limits.records_max - self.count

    @property
    def full(self) -> bool:
        return self.count >= self.limits.records_max

    def goes_on(self, first: int, deliveries: int) -> bool:
        """Return whether what begins here may be taken, too: an exact fetch has one range."""
        if not self.limits.exact or not self.ranges:
            return True
        before = self.ranges[-1]
        return before.last + 1 == first and before.deliveries == deliveries

    def take(self, first: int, last: int, deliveries: int) -> None:
        """Take a range; ranges go on over batches till they are as long as the fetch likes."""
        self.count += last - first + 1
        self.piece_left -= last - first + 1
        if self.ranges:
            before = self.ranges[-1]
            if (
                before.last + 1 == first
                and before.deliveries == deliveries
                and (self.limits.exact or before.last - before.first + 1 < self.limits.batch_size)
            ):
                self.ranges[-1] = before._replace(last=last)
                return
        self.ranges.append(Range(first, last, deliveries))
