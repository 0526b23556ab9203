"""The offset topic of a simulated cluster: transactions, fences, and rows that are seen late."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from kproxy.upstream.rows_writer import NotPublished
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.snapshot import AS_OF_KEY, decode, decode_as_of, encode_as_of
from tests.simulation.folded import Folded, differing, of_kinds, of_the_living

_EXACTLY = b"qpkohwguKTUJflAGON#"


def _now() -> float:
    """Return the loop's time; on a thread of a loop in real time, the same clock."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


class PublishedRows:
    """One shard's rows. A read_committed reader sees a commit a little later."""

    def __init__(self, shard: int, shards: int, log: list[Envelope]) -> None:
        self.fence = 0
        self._log = log
        self._folded = Folded(shard, shards)  # as of the latest rows
        self._committed: dict[bytes, bytes] = {}
        self._seen: dict[bytes, bytes] = {}
        self._unseen: list[tuple[float, dict[bytes, bytes | None]]] = []

    def commit(self, changes: dict[bytes, bytes | None], seen_at: float) -> None:
        _put(self._committed, changes)
        if self._unseen:
            seen_at = max(seen_at, self._unseen[-1][0])
        self._unseen.append((seen_at, changes))

    def read(self) -> dict[bytes, bytes]:
        """Return the rows that a read_committed reader sees now."""
        now = _now()
        while self._unseen and self._unseen[0][0] <= now:
            _put(self._seen, self._unseen.pop(0)[1])
        return self._seen

    def settled(self) -> bool:
        self.read()
        return not self._unseen

    @property
    def as_of(self) -> int:
        return _as_of(self._committed)

    @property
    def seen_as_of(self) -> int:
        return _as_of(self.read())

    def faults(self, log_start: int) -> Iterator[str]:
        """Yield how the rows differ from the fold of the log before the offset they stand for."""
        if self.as_of < self._folded.next_offset:
            yield f"rows as of {self.as_of} behind rows as of {self._folded.next_offset}"
            return
        for envelope in self._log[self._folded.next_offset : self.as_of]:
            self._folded.take(envelope)
        wanted = self._folded.rows
        found = dict(self._local())
        kept = of_the_living(found, wanted)
        exactly = of_the_living(of_kinds(wanted, _EXACTLY), wanted)
        if wrong := differing(of_kinds(kept, _EXACTLY), exactly):
            yield f"rows as of {self.as_of} differ: {wrong}"
        if too_many := of_kinds(found, b"vx").keys() - of_kinds(wanted, b"vx").keys():
            yield f"rows as of {self.as_of} that never were: {too_many}"
        voids = {key for key in of_kinds(wanted, b"v") if key >= rows.no_effect_key(log_start)}
        if too_few := voids - found.keys():
            yield f"rows as of {self.as_of} lack {too_few}"

    def _local(self) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._committed.items():
            if key != AS_OF_KEY:
                for local, data in decode(key, value):
                    if data is not None:
                        yield local, data


def _put(into: dict[bytes, bytes], changes: dict[bytes, bytes | None]) -> None:
    for key, value in changes.items():
        if value is None:
            into.pop(key, None)
        else:
            into[key] = value


def _as_of(found: dict[bytes, bytes]) -> int:
    return decode_as_of(found[AS_OF_KEY]) if found else 0


class SimRowsWriter:
    """`RowsWriter`: one transaction at a time, fenced by the next one's."""

    def __init__(self, upstream: Any, shard: int, row_bytes_max: int) -> None:
        self._life, self._world, self._shard = upstream.life, upstream.world, shard
        self._published: PublishedRows = upstream.world.published[shard]
        self._fence = -1

    def fence(self, stop: Any) -> None:
        if self._life.alive:
            self._published.fence += 1
            self._fence = self._published.fence

    def write(self, rows: Iterator[tuple[bytes, bytes | None]], as_of: int, stop: Any) -> None:
        world, published = self._world, self._published
        if self._fence != published.fence:
            raise NotPublished("fenced", True)
        if world.dice(0.05) or not self._life.alive:
            raise NotPublished("timed out", False)
        seen_at = _now() + world.delay()
        published.commit(dict(rows) | {AS_OF_KEY: encode_as_of(as_of)}, seen_at)
        world.trace.append(("rows", self._shard, as_of))
        for fault in published.faults(world.starts[self._shard]):
            world.fault(f"shard {self._shard}: {fault}")
        if world.dice(0.05):
            raise NotPublished("its fate is not known", False)

    def close(self) -> None:
        pass
