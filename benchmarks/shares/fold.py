"""The cost of share groups in the fold, over a real store, in this process.

    python -m benchmarks.shares.fold

prints microseconds of CPU for each command, its weight, and microseconds in a unit of weight: about
10 is what a unit stands for. Nothing is measured beside: no log, no network.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kproxy.log.weight import weight
from kproxy.store.rocks import RocksKv
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.shares import (
    EARLIEST,
    OWED,
    SET_MAX,
    Cause,
    ChangeShares,
    LookAtShares,
    Run,
    SetShares,
    ShareAction,
    ShareChange,
    ShareRuns,
)
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows.shares import RecordState, state_byte
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId, ShardId
from tests.wire import batch

_ROUNDS = 200
_WINDOW = 4000
_QUEUE = QueueId(bytes(15) + b"\1")
_GROUP = "a-group"
_ACCEPTED = state_byte(RecordState.ACKNOWLEDGED, 1)
_RELEASED = state_byte(RecordState.AVAILABLE, 1)
_REJECTED = state_byte(RecordState.ARCHIVED, 1)


class Work(NamedTuple):
    """`commands`: each is measured; those before it are not."""

    name: str
    commands: Callable[[], Iterator[tuple[Envelope, bool]]]


class Shard:
    """A fold over a store, as a shard has it, written after each command."""

    def __init__(self, directory: Path) -> None:
        self._state = State(RocksKv(directory, 1 << 24))
        self._fold = Fold(self._state, ShardId(0), 1)
        self._next = 0

    def apply(self, envelope: Envelope) -> float:
        """Apply an envelope; return how many microseconds it took, with the write of the rows."""
        place = LogLocation(0, self._next * 200, len(envelope.body))
        began = time.thread_time()
        self._fold.apply(self._next, envelope, place)
        self._state.kv.write(self._state.drain())
        took = time.thread_time() - began
        self._next += 1
        return took * 1e6


def _keys() -> list[PartitionKey]:
    return [(_QUEUE, index) for index in range(SET_MAX)]


def _share(*runs: Run, keys: list[PartitionKey] | None = None) -> Envelope:
    partitions = [ShareRuns(key, 1, runs) for key in keys or _keys()[:1]]
    return ChangeShares(_GROUP, partitions, 1).envelope()


def _set(action: ShareAction, epoch: int, start: int = EARLIEST) -> Envelope:
    changes = [ShareChange(key, action, epoch, start) for key in _keys()]
    return SetShares(_GROUP, changes, 1).envelope()


def _one_by_one() -> Iterator[tuple[Envelope, bool]]:
    for at in range(_ROUNDS):
        yield _share(Run(at, 1, _ACCEPTED)), True


def _behind_an_open_one() -> Iterator[tuple[Envelope, bool]]:
    for at in range(_ROUNDS):
        yield _share(Run(_ROUNDS + 1 + at, 1, _ACCEPTED)), True


def _five_hundred() -> Iterator[tuple[Envelope, bool]]:
    for at in range(_ROUNDS):
        yield _share(Run(10_000 + 500 * at, 500, _ACCEPTED)), not at % 2


def _every_other() -> Iterator[tuple[Envelope, bool]]:
    start = 200_000
    runs = [Run(start + at, 1, _ACCEPTED) for at in range(1, _WINDOW, 2)]
    yield _share(Run(0, start, _ACCEPTED)), False
    yield _share(*runs), True
    yield _share(Run(start, _WINDOW, _REJECTED, Cause.REJECTED | OWED)), True


def _release_a_window() -> Iterator[tuple[Envelope, bool]]:
    start = 210_000
    yield _share(Run(0, start, _ACCEPTED)), False
    for _ in range(20):
        yield _share(Run(start, _WINDOW, _RELEASED)), True


def _many_partitions() -> Iterator[tuple[Envelope, bool]]:
    others = _keys()[1:]
    for at in range(20):
        yield _share(Run(at, 1, _ACCEPTED), keys=others), True


def _many_holes() -> Iterator[tuple[Envelope, bool]]:
    others = _keys()[1:]
    for at in range(20):
        yield _share(Run(100 + 300 * at, 1, _ACCEPTED), keys=others), True


def _release_many_windows() -> Iterator[tuple[Envelope, bool]]:
    others = _keys()[1:32]
    for _ in range(5):
        yield _share(Run(7000, _WINDOW, _RELEASED), keys=others), True


def _looks() -> Iterator[tuple[Envelope, bool]]:
    for _ in range(20):
        yield LookAtShares(_GROUP, _keys()).envelope(), True


def _looks_after_trims() -> Iterator[tuple[Envelope, bool]]:
    for key in _keys()[1:]:
        yield Trim(*key, 3000).envelope(), False
    yield from _looks()


def _resets() -> Iterator[tuple[Envelope, bool]]:
    for epoch in range(2, 12):
        yield _set(ShareAction.RESET, epoch), True


def _far_trim() -> Iterator[tuple[Envelope, bool]]:
    yield Trim(_QUEUE, 0, 1 << 30).envelope(), False
    yield _share(Run(0, 1, _ACCEPTED)), True


WORKS = (
    Work("one record, the first", _one_by_one),
    Work("one record behind an open one", _behind_an_open_one),
    Work("500 in one run", _five_hundred),
    Work("every other of a window of 4,000; the rest is owed", _every_other),
    Work("a window of 4,000 is released", _release_a_window),
    Work("one record of each of 499 partitions", _many_partitions),
    Work("likewise, each in a chunk of its own", _many_holes),
    Work("a look at 500", _looks),
    Work("a look at 500 after trims in their windows", _looks_after_trims),
    Work("windows of 4,000 of 31 partitions are released", _release_many_windows),
    Work("a SHARE after a trim of a billion", _far_trim),
    Work("500 are given another start", _resets),
)


def _begin(shard: Shard) -> None:
    shard.apply(CreateQueue(_QUEUE, "queue", SET_MAX, {}).envelope())
    for key in _keys():
        body = batch(b"v", count=1 << 30, last_delta=(1 << 30) - 1)
        for _ in range(2):
            shard.apply(Envelope(Kind.APPEND, *key, body=body))
    shard.apply(_set(ShareAction.INITIALISE, 1))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        shard = Shard(Path(directory))
        _begin(shard)
        sys.stdout.write(f"{'':52}{'µs':>9}{'most':>9}{'weight':>8}{'µs/unit':>9}\n")
        for name, commands in WORKS:
            taken, units = [], 1
            for envelope, counts in commands():
                took = shard.apply(envelope)
                if counts:
                    taken.append(took)
                    units = weight(envelope)
            median = statistics.median(taken)
            line = f"{name:52}{median:9.1f}{max(taken):9.1f}{units:8}{median / units:9.2f}"
            sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
