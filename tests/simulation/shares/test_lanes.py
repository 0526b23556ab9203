"""Seeded: share groups with lanes, beside all that goes wrong for those without.

Keys, headers and levels are random; the groups' rules change while members hold records.
"""

from collections import Counter

from tests.simulation.seeds import named, seeds
from tests.simulation.shares.lanes import LaneHappenings, LaneWorld
from tests.simulation.shares.members import simulated
from tests.simulation.shares.truth import Truth


def with_lanes(seed: int, *, shuffled: bool = False) -> Truth:
    return simulated(seed, shuffled=shuffled, world=LaneWorld, happenings=LaneHappenings)


@seeds(4, long=1000)
def test_lanes_keep_their_order(seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            with_lanes(seed, shuffled=seed % 2 == 1)


def test_enough_happens_in_lanes() -> None:
    counted: Counter[str] = Counter()
    for seed in range(2):
        counted += with_lanes(seed).counted
    for name in ("given in order", "given again", "accepted", "rejected", "gaps", "given up",
                 "void by term", "acknowledged: NONE", "cut out"):  # fmt: skip
        assert counted[name] > 5, counted
