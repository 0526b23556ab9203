"""Seeded: several workers share a cluster that delays, loses and reorders, and crash at any time.

Clients make, change and delete queues under few names, append, trim and commit, as idempotent
producers too; in seeds of their own they commit transactions over several queues and groups, and
die in the middle of them or go on when they are fenced. Shards move from worker to worker, some
with an old copy, some with none. The answers and rows of the real classes are held against a
plain reading of the logs, and against a fold of each from its first record on.
"""

import os
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint

from kproxy.cluster import publisher, rebuild, shard_owner
from kproxy.log import shared
from kproxy.shard import copier
from kproxy.shard import housekeeper as keeper_module
from kproxy.virtual.folds import transactions as transaction_fold
from kproxy.virtual.rows.transactions import EPOCH_LAST, Transaction
from kproxy.virtual.snapshot import RowCapture
from tests.limits import make_tiny
from tests.simulation import virtual_time
from tests.simulation.seeds import named, see, seeds, tried
from tests.simulation.twice import fold_twice
from tests.simulation.workers.cluster import World
from tests.simulation.workers.disks import SimKv, Threads
from tests.simulation.workers.mistakes import MISTAKES
from tests.simulation.workers.offset_topic import SimRowsWriter
from tests.simulation.workers.simulation import SHARDS, Simulation
from tests.simulation.workers.txn_mistakes import TRANSACTION_MISTAKES


class _Ears:
    """The stand-in for a log of events: no shard may fail by itself."""

    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, event: str, **_: Any) -> None:
        pass

    warning = debug = info

    def error(self, event: str, **more: Any) -> None:
        self._world.fault(f"{event} {more}")

    def exception(self, event: str, **more: Any) -> None:
        self._world.fault(f"{event} {more} {traceback.format_exc()}")


class _Keys(dict[bytes, None]):
    """A set of keys that are taken in the same order each time."""

    def __init__(self, keys: set[bytes]) -> None:
        super().__init__(dict.fromkeys(sorted(keys)))

    def discard(self, key: bytes) -> None:
        super().pop(key, None)

    def pop(self) -> bytes:  # type: ignore[override]
        return self.popitem()[0]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Path], Simulation]]:
    """Return a run of a seed, with the means of workers replaced by simulated ones."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(keeper_module, "_WORTH_FREEING_BYTES", 1000)
    monkeypatch.setattr(publisher, "RowsWriter", SimRowsWriter)
    monkeypatch.setattr(
        publisher, "RowCapture", lambda kv, keys, anchors: RowCapture(kv, _keys(keys), anchors)
    )

    def run(
        seed: int, directory: Path, *, transactions: bool = False, shuffled: bool = False
    ) -> Simulation:
        where = directory / f"seed-{seed}"
        simulation = Simulation(seed, where, transactions=transactions)
        monkeypatch.setattr(transaction_fold, "Transaction", Transaction)
        if simulation.conditions.epochs_worn:
            monkeypatch.setattr(transaction_fold, "Transaction", _worn)
        world, threads = simulation.world, Threads(simulation.rng)
        for module in (rebuild, publisher, copier):
            monkeypatch.setattr(module, "to_thread", threads)
        for module in (shard_owner, rebuild, shared, keeper_module):
            monkeypatch.setattr(module, "on_disk", threads.on_disk)
        for module in (shard_owner, rebuild, publisher):
            monkeypatch.setattr(module, "stoppable", threads.stoppable)
        monkeypatch.setattr(shard_owner, "RocksKv", lambda path, size: SimKv(world, path))
        monkeypatch.setattr(shard_owner, "_log", _Ears(world))
        monkeypatch.setattr(rebuild, "read_to_end", world.read_to_end)
        for module in (shard_owner, rebuild):
            monkeypatch.setattr(module, "wipe", world.wipe)
        monkeypatch.setattr(publisher, "_ROWS_AT_ONCE", simulation.conditions.rows_at_once)
        monkeypatch.setattr(publisher, "checkpoint", _checkpoint(simulation))
        virtual_time.run(simulation.run, seed, shuffled=shuffled)
        for shard, log in enumerate(world.logs):
            fold_twice(log, shard, SHARDS, seed=seed)
        return simulation

    yield run
    structlog.reset_defaults()


def _worn(producer_id: int, **values: Any) -> Transaction:
    """Make a new transactional id that looks as if it had been used for long."""
    return Transaction(producer_id, epoch=EPOCH_LAST - 6 + producer_id % 7, **values)


def _keys(keys: set[bytes]) -> Any:
    return _Keys(keys)


def _checkpoint(simulation: Simulation) -> Any:
    """Return the checkpoint between two slices of rows: slow where rows are slow."""

    async def slowly() -> None:
        await anyio.sleep(simulation.rng.choice((0.01, 0.1, 0.3)))

    return slowly if simulation.conditions.rows_slow else checkpoint


@seeds(20, long=1000)
def test_workers_agree_with_the_logs(simulated: Any, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            simulation = simulated(seed, tmp_path / str(seed), shuffled=seed % 2 == 1)
            assert sum(simulation.clients.done.values()) > 10


@seeds(8, long=1000, each=8)
def test_transactions_are_whole(simulated: Any, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            simulation = simulated(
                seed, tmp_path / str(seed), transactions=True, shuffled=seed % 2 == 1
            )
            told = simulation.transactions.truth.transactions
            assert sum(one.asked for one in told) > 3


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 200))]
)
@pytest.mark.parametrize("transactions", [False, True])
def test_workers_agree_where_limits_are_tiny(
    simulated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactions: bool, seed: int
) -> None:
    make_tiny(monkeypatch)
    simulated(seed, tmp_path, transactions=transactions, shuffled=True)


@pytest.mark.parametrize("transactions", [False, True])
def test_a_seed_is_the_same_each_time(simulated: Any, tmp_path: Path, transactions: bool) -> None:
    one, other = (
        simulated(3, tmp_path / name, transactions=transactions, shuffled=True).world.trace
        for name in ("one", "other")
    )
    assert one == other


@pytest.mark.parametrize(("mistake", "seeds"), MISTAKES)
def test_mistakes_are_seen(
    simulated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any, seeds: int
) -> None:
    mistake(monkeypatch)
    see(partial(simulated, directory=tmp_path), tried(mistake.__name__, seeds))


@pytest.mark.parametrize(("mistake", "seeds"), TRANSACTION_MISTAKES)
def test_mistakes_around_transactions_are_seen(
    simulated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any, seeds: int
) -> None:
    mistake(monkeypatch)
    run = partial(simulated, directory=tmp_path, transactions=True)
    see(run, tried(mistake.__name__, seeds))
