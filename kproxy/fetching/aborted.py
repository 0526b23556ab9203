"""The aborted transactions that a read_committed consumer must know of.

From a transaction's first offset on, the consumer leaves out the producer's records, until it comes
to the ABORT marker. So of a stretch that it is given it needs each transaction that begins before
the stretch's end, and whose marker lies at its start or later.

Rows are filed by markers, and have the last stable offset as it was behind each. Rows behind one
speak of transactions that begin at that offset or later: they were open then, or had not begun. So
a look ends at a row where that offset is not before the stretch's end. One that ends at an earlier
row has found all that begins before the offset there.
"""

from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.transactions import ABORTED
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

ROWS_MAX = 5000
"""The rows looked at in one turn of the loop: some milliseconds. Nearly always a few do."""

AbortedTransaction = tuple[int, int]
"""Producer id and first offset."""


class AbortedSearch:
    """A search for the aborted transactions of a stretch of a partition, in slices.

    For a transaction that was open for long, all that were aborted meanwhile are looked at for each
    stretch before its marker (as in Kafka).
    """

    __slots__ = ("_key", "_next", "_start", "end", "found", "markers")

    def __init__(self, key: PartitionKey, start: int, end: int) -> None:
        self._key = key
        self._start = self._next = start
        self.end = end
        self.found: list[AbortedTransaction] = []
        self.markers: list[int] = []  # the end of each of them

    def is_of(self, key: PartitionKey, start: int) -> bool:
        return self._start == start and self._key == key

    def look(self, state: State) -> int:
        """Look further. All that begins before the returned offset is found; `end`: all is."""
        end, add, through = self.end, self.found.append, self._start
        end_at = self.markers.append
        rows = state.kv.walk(*transaction_rows.aborted_range(self._key, self._next))
        for number, (key, value) in enumerate(rows):
            if number == ROWS_MAX:
                self._next = ABORTED.parts(key)[1]
                return through
            producer_id, first_offset, through = ABORTED.decode(value)
            if first_offset < end:
                add((producer_id, first_offset))
                end_at(ABORTED.parts(key)[1])
            if through >= end:
                break
        return end
