"""Seeded: share groups on a shard whose owner changes at any moment, held against what is true.

Members fetch, accept, release, reject, renew, let locks run out, leave, come back on another
connection and die. Owners crash, stand still, are deposed without knowing it; what they log is
lost, late, twice, or there though they were told otherwise. Records are trimmed, compacted and
aborted, groups reset, queues deleted and made again.
"""

from collections import Counter
from typing import Any

import pytest

from tests.simulation.seeds import named, see, seeds, tried
from tests.simulation.shares.members import simulated
from tests.simulation.shares.mistakes import MISTAKES, RARE


@seeds(10, long=1000)
def test_members_get_what_is_theirs(seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            assert simulated(seed, shuffled=seed % 2 == 1).counted["given"] > 100


def test_enough_happens() -> None:
    counted: Counter[str] = Counter()
    for seed in range(4):
        counted += simulated(seed).counted
    for name in (
        "given again", "accepted", "rejected", "gaps", "given up", "owed", "void by term",
        "void by epoch", "acknowledged: NONE", "acknowledged: INVALID_RECORD_STATE",
        "acknowledged: REQUEST_TIMED_OUT", "acknowledged: NOT_LEADER_OR_FOLLOWER",
        "acknowledged: INVALID_REQUEST",
    ):  # fmt: skip
        assert counted[name] > 5, counted


def test_a_seed_is_the_same_each_time() -> None:
    one, other = (simulated(3) for _ in range(2))
    assert one.shard.kv.rows == other.shard.kv.rows


@pytest.mark.parametrize(
    ("mistake", "seeds"),
    [*MISTAKES, *(pytest.param(*one, marks=pytest.mark.long) for one in RARE)],
)
def test_mistakes_are_seen(monkeypatch: pytest.MonkeyPatch, mistake: Any, seeds: range) -> None:
    mistake(monkeypatch)
    see(simulated, tried(mistake.__name__, seeds.stop), OverflowError)
