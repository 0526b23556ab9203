"""Seeded: transactions over three logs, with workers that are late, several at once, or gone.

Clients with and without KIP-890, their zombies, some near their last epoch, write to queues that
are trimmed, deleted and made again, and commit offsets to groups that others commit to as well.
The view of readers is held against what clients were told
(`tests/virtual/folds/transaction_model.py`), and the rows against a fold of each whole log.
"""

from collections import Counter
from typing import Any

import pytest

from tests.simulation.seeds import named, see, seeds, tried
from tests.simulation.transactions.clients import simulated
from tests.simulation.transactions.mistakes import MISTAKES


@seeds(40, long=1000, each=20)
def test_readers_see_what_clients_were_told(seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            assert simulated(seed).landed > 100


def test_enough_happens() -> None:
    counted: Counter[str] = Counter()
    for seed in range(5):
        counted += simulated(seed).model.counted
    assert counted["committed"] >= 40
    assert counted["not committed"] >= 40
    assert counted["offsets"] >= 10


def test_a_seed_is_the_same_each_time() -> None:
    one, other = (simulated(3) for _ in range(2))
    assert [log.kv.rows for log in one.logs] == [log.kv.rows for log in other.logs]


@pytest.mark.parametrize(("mistake", "seeds"), MISTAKES)
def test_mistakes_are_seen(monkeypatch: pytest.MonkeyPatch, mistake: Any, seeds: int) -> None:
    mistakes = mistake(monkeypatch)
    see(lambda seed: simulated(seed, mistakes), tried(mistake.__name__, seeds))
