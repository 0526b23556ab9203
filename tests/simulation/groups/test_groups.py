"""Seeded: members of groups of all protocols, on a shard whose owner changes at any moment.

They join, leave, stall, die, come back under their instance ids and hear nothing; their
coordinators crash, stand still, and are deposed without knowing it. Queues grow. The log, and the
answers to members, are held against what is true (`truth`).
"""

from typing import Any

import pytest

from tests.simulation.groups.mistakes import MISTAKES
from tests.simulation.groups.simulated import simulated
from tests.simulation.seeds import see, seeds, sums, tried


@seeds(6, long=1000)
def test_each_partition_has_one_owner(seeds: range) -> None:
    counted = sums(lambda seed: simulated(seed, shuffled=seed % 2 == 1), seeds)
    assert min(counted["committed"], counted["told"]) > 100


def test_a_seed_is_the_same_each_time() -> None:
    assert simulated(3, shuffled=True) == simulated(3, shuffled=True)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)
    see(simulated, tried(mistake.__name__, 40))
