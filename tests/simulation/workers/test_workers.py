"""Seeded: several workers share a cluster that delays, loses and reorders, and crash at any time.

Clients make, change and delete queues under few names, append, trim and commit, as idempotent
producers too; in seeds of their own they commit transactions over several queues and groups, and
die in the middle of them or go on when they are fenced. Shards move from worker to worker, some
with an old copy, some with none. The answers and rows of the real classes are held against a
plain reading of the logs, and against a fold of each from its first record on.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.limits import make_tiny
from tests.simulation.seeds import named, see, seeds, tried
from tests.simulation.workers.mistakes import MISTAKES
from tests.simulation.workers.simulated import Run, prepared
from tests.simulation.workers.txn_mistakes import TRANSACTION_MISTAKES


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return a run of a seed."""
    yield prepared(monkeypatch)
    structlog.reset_defaults()


@seeds(10, long=1000)
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
