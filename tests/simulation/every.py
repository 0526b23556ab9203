"""All simulations by name: how each runs a seed, and the conditions that its generator reaches.

`make soak` runs them by fresh seeds (`tests/running/soak.py`). A run returns how often it reached
which condition; one that many seeds never reach is a branch of a generator that is dead.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kproxy.virtual import producers
from tests.limits import make_tiny
from tests.simulation import test_crashes, test_rebuild, test_shared_log
from tests.simulation.delays import test_delays, test_rebuild_delays
from tests.simulation.delays import world as delays
from tests.simulation.groups import simulated as groups
from tests.simulation.routes import test_dead_letters, test_routes
from tests.simulation.shares import members as shares_members
from tests.simulation.shares import test_rebuild_shares
from tests.simulation.transactions import clients as transactions_clients
from tests.simulation.transactions import test_rebuild_transactions
from tests.simulation.workers import simulated

Run = Callable[[int], Mapping[str, int]]
"""A run of a seed, which returns how often it reached which condition."""
Prepare = Callable[[pytest.MonkeyPatch, Path], Run]
"""A call that replaces the means of a simulation, and gives its run. It may use the directory."""


def _inline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producers, "PRODUCERS_INLINE", 1)


def _crashes(patch: pytest.MonkeyPatch, directory: Path) -> Run:
    _inline(patch)
    return test_crashes.crashing(patch, directory)


def _shared_log(patch: pytest.MonkeyPatch, directory: Path) -> Run:
    _inline(patch)
    return test_shared_log.run


def _rebuild(kind: type[test_rebuild.Simulation]) -> Prepare:
    def prepare(patch: pytest.MonkeyPatch, directory: Path) -> Run:
        _inline(patch)
        test_rebuild.look_shortly(patch)

        def run(seed: int) -> Mapping[str, int]:
            simulation = kind(seed)
            asyncio.run(simulation.run())
            return Counter(simulation.seen) + Counter(simulation.done) + simulation.became

        return run

    return prepare


def _shares(patch: pytest.MonkeyPatch, directory: Path) -> Run:
    return lambda seed: shares_members.simulated(seed, shuffled=seed % 2 == 1).counted


def _routes(patch: pytest.MonkeyPatch, directory: Path) -> Run:
    test_routes.make_small(patch)
    return lambda seed: test_routes.run(seed, shuffled=seed % 2 == 1).seen


def _dead_letters(patch: pytest.MonkeyPatch, directory: Path) -> Run:
    test_dead_letters.make_small(patch)
    return lambda seed: test_dead_letters.run(seed, shuffled=seed % 2 == 1).seen


def _transactions(patch: pytest.MonkeyPatch, directory: Path) -> Run:
    return lambda seed: transactions_clients.simulated(seed).model.counted


def _delays(patch: pytest.MonkeyPatch, directory: Path) -> Run:
    test_delays.make_small(patch)

    def run(seed: int) -> Mapping[str, int]:
        world = delays.World(seed)
        asyncio.run(world.run())
        return world.counted()

    return run


def _groups(patch: pytest.MonkeyPatch, directory: Path) -> Run:
    return lambda seed: groups.simulated(seed, shuffled=seed % 2 == 1)


def _workers(*, transactions: bool) -> Prepare:
    def prepare(patch: pytest.MonkeyPatch, directory: Path) -> Run:
        made = simulated.prepared(patch)

        def run(seed: int) -> Mapping[str, int]:
            shuffled = seed % 2 == 1
            return simulated.counted(
                made(seed, directory, transactions=transactions, shuffled=shuffled)
            )

        return run

    return prepare


SIMULATIONS: dict[str, Prepare] = {
    "crashes": _crashes,
    "shared-log": _shared_log,
    "rebuild": _rebuild(test_rebuild.Simulation),
    "rebuild-shares": _rebuild(test_rebuild_shares.WithShares),
    "rebuild-transactions": _rebuild(test_rebuild_transactions.WithTransactions),
    "rebuild-delays": _rebuild(test_rebuild_delays.WithDelays),
    "shares": _shares,
    "routes": _routes,
    "dead-letters": _dead_letters,
    "transactions": _transactions,
    "delays": _delays,
    "groups": _groups,
    "workers": _workers(transactions=False),
    "workers-transactions": _workers(transactions=True),
}
"""All of them; `conditions` says what each reaches. `NAME-tiny` is one with tiny limits."""


def prepared(name: str, patch: pytest.MonkeyPatch, directory: Path) -> Run:
    """Return the run of a simulation, also of one with tiny limits."""
    run = SIMULATIONS[name.removesuffix("-tiny")](patch, directory)
    if name.endswith("-tiny"):
        make_tiny(patch)
    return run
