"""All limits of kproxy are registered, and simulations hold where all are tiny."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kproxy.delays import looker
from kproxy.routes import cutting, passage, reading
from kproxy.shares import dead_letter_batches, dead_letter_sender
from tests.limits import FIXED, REGISTERED, TINY, limits, make_tiny
from tests.simulation import test_rebuild, virtual_time
from tests.simulation.delays import test_rebuild_delays
from tests.simulation.delays import world as delays
from tests.simulation.routes import test_dead_letters, test_routes
from tests.simulation.seeds import named, seeds
from tests.simulation.shares import members as shares_members
from tests.simulation.shares import test_rebuild_shares
from tests.simulation.transactions import clients as transactions_clients
from tests.simulation.transactions import test_rebuild_transactions

Run = Callable[[int], object]


def test_each_limit_is_registered() -> None:
    """A new one belongs into `TINY` of tests/limits.py, or into `FIXED` with a reason."""
    found = set(limits())
    assert not sorted(found - REGISTERED), "limits that are not registered"
    assert not sorted(REGISTERED - found), "registered limits that are no more"
    assert not TINY.keys() & {name for names in FIXED.values() for name in names.split()}


def _routes(patch: pytest.MonkeyPatch) -> Run:
    patch.setattr(passage, "to_thread", virtual_time.Inline)
    patch.setattr(cutting, "CUT_BYTES", 600)
    patch.setattr(reading, "READ_BYTES", 500)
    return lambda seed: test_routes.run(seed, shuffled=True)


def _dead_letters(patch: pytest.MonkeyPatch) -> Run:
    patch.setattr(dead_letter_sender, "to_thread", virtual_time.Inline)
    patch.setattr(dead_letter_sender, "BATCH_BYTES", 900)
    patch.setattr(dead_letter_batches, "_READ_BYTES", 400)
    return lambda seed: test_dead_letters.run(seed, shuffled=True)


def _shares(patch: pytest.MonkeyPatch) -> Run:
    return lambda seed: shares_members.simulated(seed, shuffled=True)


def _transactions(patch: pytest.MonkeyPatch) -> Run:
    return transactions_clients.simulated


def _delays(patch: pytest.MonkeyPatch) -> Run:
    async def run_sync(work: Callable[..., Any], *args: Any, limiter: Any = None) -> Any:
        return work(*args)

    patch.setattr(looker.to_thread, "run_sync", run_sync)
    return lambda seed: asyncio.run(delays.World(seed).run())


def _rebuilds(patch: pytest.MonkeyPatch) -> Run:
    kinds = (
        test_rebuild.Simulation, test_rebuild_delays.WithDelays, test_rebuild_shares.WithShares,
        test_rebuild_transactions.WithTransactions,
    )  # fmt: skip

    def run(seed: int) -> None:
        for kind in kinds:
            for each in range(seed * 5, seed * 5 + 5):
                asyncio.run(kind(each).run())

    return run


@seeds(3, long=200, each=20)
@pytest.mark.parametrize(
    "simulation", [_routes, _dead_letters, _shares, _transactions, _delays, _rebuilds]
)
def test_simulations_hold_where_limits_are_tiny(
    monkeypatch: pytest.MonkeyPatch, simulation: Callable[[pytest.MonkeyPatch], Run], seeds: range
) -> None:
    run = simulation(monkeypatch)
    make_tiny(monkeypatch)
    for seed in seeds:
        with named(seed):
            run(seed)
