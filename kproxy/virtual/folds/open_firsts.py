"""A search for a partition's earliest open transaction without a walk over those that have ended.

Rows by first offset (`l`) say which transactions are open. When one is open for long, and thousands
of others come and go behind it, RocksDB would step over all that they left: so the transactions
opened beside another one are kept in memory, as offsets. It follows from the rows: a fold that
begins anew knows nothing, and looks at the rows once.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict

from kproxy.virtual.changes import Keys
from kproxy.virtual.rows.transactions import OPEN_FIRSTS
from kproxy.virtual.types import PartitionKey

PARTITIONS_MAX = 1000
OFFSETS_MAX = 200_000
"""The most offsets of all partitions; those that were not looked at for longest are forgotten."""


class _Known:
    """The first offsets of all open transactions of a partition that begin at `since` or later."""

    __slots__ = ("firsts", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.firsts = array("q")  # ascending


class OpenFirsts:
    """The first offsets of open transactions, in partitions where several are open."""

    def __init__(self) -> None:
        self._known: OrderedDict[PartitionKey, _Known] = OrderedDict()
        self._offsets = 0

    def begun(self, key: PartitionKey, first_offset: int) -> None:
        """Note that a transaction has its first record there, and another is open before it."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(first_offset)
        self._known.move_to_end(key)
        known.firsts.append(first_offset)
        self._offsets += 1
        while len(self._known) > PARTITIONS_MAX or self._offsets > OFFSETS_MAX:
            _, forgotten = self._known.popitem(last=False)
            self._offsets -= len(forgotten.firsts)

    def ended(self, key: PartitionKey, first_offset: int) -> None:
        """Note that a transaction that began there has ended."""
        known = self._known.get(key)
        if known is not None:
            at = bisect_left(known.firsts, first_offset)
            if known.firsts[at : at + 1] == array("q", (first_offset,)):
                del known.firsts[at]
                self._offsets -= 1

    def following(self, key: PartitionKey, first_offset: int, firsts: Keys) -> int:
        """Return the first offset of the earliest open one, once the one from here has ended.

        -1: none is. `firsts`: the keys of OPEN_FIRST rows.
        """
        known = self._known.get(key)
        if known is None:
            return self._looked_for(key, first_offset, None, firsts)
        if first_offset < known.since:
            found = self._looked_for(key, first_offset, known.since, firsts)
            if found >= 0:
                return found
            known.since = first_offset
        if known.firsts:
            return known.firsts[0]
        del self._known[key]
        return -1

    def _looked_for(self, key: PartitionKey, start: int, end: int | None, firsts: Keys) -> int:
        low, high = OPEN_FIRSTS.since(key, start)
        if end is not None:
            high = OPEN_FIRSTS.key(key, end)
        found = next(firsts.between(low, high, bounded=end is not None), None)
        return -1 if found is None else OPEN_FIRSTS.parts(found)[1]
