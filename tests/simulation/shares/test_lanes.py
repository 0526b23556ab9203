"""Seeded: share groups with lanes, beside all that goes wrong for those without.

Keys, headers and levels are random; the groups' rules change while members hold records.
"""

import inspect
from collections import Counter
from functools import partial
from typing import Any

import anyio
import pytest

from tests.simulation.seeds import named, see, seeds
from tests.simulation.shares.lane_mistakes import SIMULATED, TURNS
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
                 "void by term", "acknowledged: NONE", "cut out", "expired"):  # fmt: skip
        assert counted[name] > 5, counted


@pytest.mark.long
@pytest.mark.parametrize(("mistake", "seeds"), SIMULATED)
def test_mistakes_in_lanes_are_seen(
    monkeypatch: pytest.MonkeyPatch, mistake: Any, seeds: range
) -> None:
    mistake(monkeypatch)
    see(with_lanes, seeds, OverflowError, LookupError)


@pytest.mark.parametrize(("mistake", "check"), TURNS)
def test_mistakes_in_turns_are_seen(
    monkeypatch: pytest.MonkeyPatch, mistake: Any, check: Any
) -> None:
    mistake(monkeypatch)
    run = partial(anyio.run, check) if inspect.iscoroutinefunction(check) else check
    with pytest.raises(AssertionError):
        run()
