"""Periodic scan of a time-ordered index for entries that are due."""

from itertools import islice
from typing import NamedTuple

from anyio.lowlevel import checkpoint

from kproxy.loop.pulse import pulse
from kproxy.shard.shard import Shard
from kproxy.virtual.rows.kinds import RowKind


class _Bounds(NamedTuple):
    """The bounds of a look: nothing is filed before `low`, nor from `high` on."""

    low: bytes
    high: bytes
    late: bytes = b""  # the start of a pass over late filings; empty: it is over
    cursor: bytes = b""  # the place where it goes on

    def with_filed(self, low: bytes, high: bytes) -> "_Bounds":
        late = b"" if high >= self.late else self.late  # once more from its start
        return _Bounds(min(self.low, low), max(self.high, high + b"\0"), late, self.cursor)


class DueIndexScanner:
    """A scanner of one shard's index, in slices; `run` until cancelled.

    A subclass says which keys are due, and acts. The scanner remembers where anything can be filed:
    deleted keys lie outside, and RocksDB would step over all of them at each look.
    """

    def __init__(self, shard: Shard, index: RowKind, slice_: int, period_s: float) -> None:
        self._shard = shard
        self._index = index
        self._slice = slice_
        self._period_s = period_s
        self._bounds = self._before = _Bounds(*index.range())
        self._more = False
        self._left: tuple[bytes, bytes] | None = None

    async def run(self) -> None:
        while True:
            await pulse(self._period_s)
            while self._shard.serving and await self.scan_once():
                await checkpoint()

    async def scan_once(self) -> bool:
        """Look at some of what is due; whether there may be more."""
        raise NotImplementedError

    def _next_due(self, end: bytes, late: bytes) -> tuple[list[bytes], bool]:
        """Return the next keys below `end`, or from `late` on, and whether there may be more.

        Only by a clock that was ahead is anything filed from `late` on, and nobody would look at it
        in time. The caller deletes these keys, files them again, or tells `_stays`.
        """
        self._hear()
        self._before = bounds = self._bounds
        keys = self._keys(bounds.low, bounds.high) if bounds.low < end else []
        found, keys = keys, [key for key in keys if key < end]
        whole = len(keys) == self._slice
        if whole:
            self._bounds = bounds._replace(low=keys[-1] + b"\0")
        elif bounds.low < end:  # nothing lies before the next one, and until then nobody looks
            following = found[len(keys)] if len(keys) < len(found) else max(end, bounds.high)
            self._bounds = bounds._replace(low=following)
        if not keys:
            keys = self._filed_late(late)
        self._more = whole or late < self._bounds.high
        return keys, self._more

    def _filed_late(self, late: bytes) -> list[bytes]:
        bounds = self._bounds
        if bounds.high <= late:
            return []
        if not bounds.late:
            bounds = bounds._replace(late=late, cursor=late)
        keys = self._keys(bounds.cursor, bounds.high)
        if len(keys) == self._slice:
            self._bounds = bounds._replace(cursor=keys[-1] + b"\0")
        else:
            self._bounds = _Bounds(bounds.low, bounds.late)
        return keys

    def _keys(self, start: bytes, end: bytes) -> list[bytes]:
        return [key for key, _ in islice(self._shard.kv.scan(start, end), self._slice)]

    def _hear(self) -> None:
        """Hear what was filed since the last time; where a pass is over, what stays as well."""
        filed = self._shard.state.filed.pop(self._index.byte, None)
        if filed is not None:
            self._bounds = self._bounds.with_filed(*filed)
        if not self._more and self._left is not None:
            self._bounds = self._bounds.with_filed(*self._left)
            self._left = None

    def _retry(self) -> None:
        """Give the last keys again."""
        self._bounds = self._before

    def _leave(self, key: bytes) -> None:
        """Leave this key as it is until all was looked at."""
        low, high = self._left or (key, key)
        self._left = min(low, key), max(high, key)
