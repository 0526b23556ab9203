"""A simulated log is folded twice: rows may not depend on when changes are written.

A fold that reads the stored rows past changes that are not written yet, or relies on what is in
memory, comes to other rows on another worker. Live, changes are written after each group of
envelopes that a disk or a cluster takes in one go; on recovery after many.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.state import State
from kproxy.virtual.types import ShardId
from tests.fakes import DictKv
from tests.simulation.folded import differing

Place = Callable[[int, Envelope], LogLocation]
_MANY = 60


def _place(log_offset: int, envelope: Envelope) -> LogLocation:
    return LogLocation(0, log_offset, len(envelope.body))


def fold_twice(
    log: Sequence[Envelope], shard: int = 0, shards: int = 1, *, shared: bool = True,
    first_rows: Mapping[bytes, bytes] | None = None, seed: int = 0, place: Place = _place,
) -> Counter[str]:  # fmt: skip
    """Fold a log with changes written after each envelope, and after some: the same rows.

    Return how often what became of a kind of envelope, as in "APPEND: NONE".
    """
    became: Counter[str] = Counter()

    def rows(written_after: Iterator[int], cached: int) -> dict[bytes, bytes]:
        kv = DictKv(dict(first_rows or {}))
        state = State(kv, cached)
        fold = Fold(state, ShardId(shard), shards, shared=shared)
        left = next(written_after)
        for log_offset, envelope in enumerate(log):
            outcome = fold.apply(log_offset, envelope, place(log_offset, envelope))
            became[f"{Kind(envelope.kind).name}: {Code(outcome.code).name}"] += 1
            left -= 1
            if not left:
                kv.write(state.drain())
                state.take_touched()
                left = next(written_after)
        kv.write(state.drain())
        return kv.rows

    rng = random.Random(seed)
    one = rows(repeat(1), 1000)
    found = Counter(became)
    other = rows(iter(lambda: rng.choice((1, 2, 7, _MANY)), 0), 3)
    assert not (wrong := differing(other, one)), f"rows depend on when they are written: {wrong}"
    return found
