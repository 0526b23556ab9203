"""The run of a seed, with the means of workers replaced by simulated ones."""

import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint

from kproxy.cluster import log_prefix, lost_end, publisher, rebuild, shard_owner
from kproxy.log import shared
from kproxy.shard import copier
from kproxy.shard import housekeeper as keeper_module
from kproxy.virtual.folds import transactions as transaction_fold
from kproxy.virtual.rows.transactions import EPOCH_LAST, Transaction
from kproxy.virtual.snapshot import RowCapture
from tests.simulation import virtual_time
from tests.simulation.twice import fold_twice
from tests.simulation.workers.cluster import World
from tests.simulation.workers.disks import SimKv, Threads
from tests.simulation.workers.offset_topic import SimRowsWriter
from tests.simulation.workers.simulation import SHARDS, Simulation


class Run(Protocol):
    """A run of a seed."""

    def __call__(
        self, seed: int, directory: Path, *, transactions: bool = False, shuffled: bool = False
    ) -> Simulation: ...


class _Ears:
    """The stand-in for a log of events: no shard may fail by itself."""

    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, event: str, **_: Any) -> None:
        self._world.happened[event] += 1

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


def prepared(patch: pytest.MonkeyPatch) -> Run:
    """Replace the means of workers, and return a run of a seed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    patch.setattr(os, "fsync", lambda fd: None)
    patch.setattr(os, "fdatasync", lambda fd: None)
    patch.setattr(keeper_module, "_WORTH_FREEING_BYTES", 1000)
    patch.setattr(publisher, "RowsWriter", SimRowsWriter)
    patch.setattr(
        publisher, "RowCapture", lambda kv, keys, anchors: RowCapture(kv, _Keys(keys), anchors)
    )

    def run(
        seed: int, directory: Path, *, transactions: bool = False, shuffled: bool = False
    ) -> Simulation:
        where = directory / f"seed-{seed}"
        simulation = Simulation(seed, where, transactions=transactions)
        patch.setattr(transaction_fold, "Transaction", Transaction)
        if simulation.conditions.epochs_worn:
            patch.setattr(transaction_fold, "Transaction", _worn)
        world, threads = simulation.world, Threads(simulation.rng)
        for module in (rebuild, publisher, copier):
            patch.setattr(module, "to_thread", threads)
        for module in (shard_owner, rebuild, log_prefix, lost_end, shared, keeper_module):
            patch.setattr(module, "on_disk", threads.on_disk)
        for module in (shard_owner, rebuild, publisher):
            patch.setattr(module, "stoppable", threads.stoppable)
        patch.setattr(shard_owner, "RocksKv", lambda path, size: SimKv(world, path))
        patch.setattr(shard_owner, "_log", _Ears(world))
        patch.setattr(rebuild, "read_to_end", world.read_to_end)
        for module in (shard_owner, rebuild):
            patch.setattr(module, "wipe", world.wipe)
        patch.setattr(publisher, "_ROWS_AT_ONCE", simulation.conditions.rows_at_once)
        patch.setattr(publisher, "checkpoint", _checkpoint(simulation))
        virtual_time.run(simulation.run, seed, shuffled=shuffled)
        for shard, log in enumerate(world.logs):
            world.happened += fold_twice(log, shard, SHARDS, seed=seed)
        return simulation

    return run


def _worn(producer_id: int, **values: Any) -> Transaction:
    """Make a new transactional id that looks as if it had been used for long."""
    return Transaction(producer_id, epoch=EPOCH_LAST - 6 + producer_id % 7, **values)


def _checkpoint(simulation: Simulation) -> Any:
    """Return the checkpoint between two slices of rows: slow where rows are slow."""

    async def slowly() -> None:
        await anyio.sleep(simulation.rng.choice((0.01, 0.1, 0.3)))

    return slowly if simulation.conditions.rows_slow else checkpoint


def counted(simulation: Simulation) -> Mapping[str, int]:
    """Return the conditions that a simulation reached."""
    found = simulation.world.happened + simulation.clients.done
    found["in a transaction"] += sum(
        one.asked for one in simulation.transactions.truth.transactions
    )
    return found
