"""The aborted part of a stretch of a share partition: a group of read_committed is not given it."""

from bisect import bisect_right
from contextlib import suppress

from kproxy.fetching.aborted import AbortedSearch
from kproxy.protocol.batch import read_header
from kproxy.store.damage import DamagedBatch
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import StoredBatch, transaction_of


class AbortedStretch:
    """The aborted transactions of a partition's stretch: by producer (first offset, marker's).

    `read`: by its base offset, the transaction of each batch that was read as its row did not say.
    """

    __slots__ = ("_by_producer", "end", "least", "most", "read", "start")

    def __init__(self, start: int, search: AbortedSearch) -> None:
        self.start, self.end = start, search.end
        self.read: dict[int, int] = {}
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for (producer_id, first), marker in zip(search.found, search.markers, strict=True):
            self._by_producer.setdefault(producer_id, []).append((first, marker))
        self.least = min((first for _, first in search.found), default=search.end)
        self.most = max(search.markers, default=start)

    def has(self, producer_id: int, offset: int) -> bool:
        """Return whether a batch was aborted: a producer's transactions follow one another."""
        mine = self._by_producer.get(producer_id, ())
        at = bisect_right(mine, offset, key=_first_offset) - 1
        return at >= 0 and offset < mine[at][1]


def transactions_of(segments: Segments, batches: list[StoredBatch]) -> dict[int, int]:
    """Return the transaction of each batch by its base offset."""
    found = {}
    for base, *place in batches:
        with suppress(DamagedBatch):  # the next look says so
            found[base] = transaction_of(read_header(bytes(segments.batch(*place) or b"")))
    return found


def _first_offset(one: tuple[int, int]) -> int:
    return one[0]
