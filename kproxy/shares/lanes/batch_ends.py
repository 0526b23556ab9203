"""The ends of batches that lanes were looked for in, so that a row is got, and not searched for."""

from array import array
from bisect import bisect_left
from collections.abc import Callable

from kproxy.shares.lanes.cutting import Span
from kproxy.virtual.rows.batches import batch_key, stored_batch
from kproxy.virtual.types import PartitionKey

_RECORDS_MIN = 8  # in a batch whose end is kept: a byte for each record at most


class BatchEnds:
    """The last offsets of the larger batches, ascending. A batch of one record needs none."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = array("Q")

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        return 8 * len(self._ends)

    def note(self, base: int, last: int) -> None:
        """Note a batch, behind all that were noted before it."""
        ends = self._ends
        if last - base + 1 >= _RECORDS_MIN and (not ends or ends[-1] < last):
            ends.append(last)

    def trim(self, start: int) -> None:
        """Forget batches before an offset, once they are half of all."""
        gone = bisect_left(self._ends, start)
        if 2 * gone > len(self._ends):
            del self._ends[:gone]

    def span_of(
        self, get: Callable[[bytes], bytes | None], key: PartitionKey, offset: int
    ) -> Span | None:
        """Return the batch that has an offset, if its row is where it was; else None."""
        ends = self._ends
        at = bisect_left(ends, offset)
        for last in (*ends[at : at + 1], offset):
            name = batch_key(*key, last)
            data = get(name)
            if data is not None and (batch := stored_batch(name, data))[0] <= offset:
                return batch, last
        return None
