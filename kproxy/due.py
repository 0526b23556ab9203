"""Looking now and then at rows that an index files under the time when they are due."""

from itertools import islice

from anyio.lowlevel import checkpoint

from kproxy.pulse import pulse
from kproxy.shard import Shard


class Looks:
    """Slices of one shard's index; `run` until cancelled. A subclass says what is due, and acts."""

    def __init__(self, shard: Shard, first: bytes, slice_: int, period_s: float) -> None:
        """`first`: the kind of row, which the index begins with."""
        self._shard = shard
        self._first = self._from = first
        self._slice = slice_
        self._period_s = period_s

    async def run(self) -> None:
        while True:
            await pulse(self._period_s)
            while self._shard.serving and await self.look():
                await checkpoint()

    async def look(self) -> bool:
        """Look at some of what is due; whether there may be more."""
        raise NotImplementedError

    def _due(self, end: bytes) -> tuple[list[bytes], bool]:
        """The next keys below `end`, and whether there may be more.

        Not from the first again: those are deleted, and RocksDB would step over them all.
        """
        keys = [key for key, _ in islice(self._shard.kv.scan(self._from, end), self._slice)]
        more = len(keys) == self._slice
        self._from = keys[-1] + b"\0" if more else self._first
        return keys, more

    def _again(self) -> None:
        """What was not done stays filed: the next look begins with the first."""
        self._from = self._first
