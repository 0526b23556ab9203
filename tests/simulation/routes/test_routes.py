"""Seeded: each record is passed on exactly once and in order, whatever happens to owners, messages,
settings and queues."""

from collections import Counter

import pytest

from kproxy import native
from kproxy.routes import cutting, passage, reading
from tests.simulation import virtual_time
from tests.simulation.routes.dead_letters import lived
from tests.simulation.routes.mistakes import MISTAKES
from tests.simulation.routes.world import RouteWorld
from tests.simulation.seeds import named, see, seeds

pytestmark = pytest.mark.usefixtures("small_cuts")


@pytest.fixture
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Make cuts of a few records, in several parts."""
    patch.setattr(passage, "to_thread", virtual_time.Inline)
    patch.setattr(cutting, "CUT_BYTES", 600)
    patch.setattr(cutting, "PART_TARGETS", 2)
    patch.setattr(reading, "READ_BYTES", 500)


def run(seed: int, *, shuffled: bool = False) -> RouteWorld:
    """Run a seed: odd ones with the native lane, where it was built."""
    native.choose("auto" if seed % 2 else "off")
    return lived(RouteWorld(seed), seed, shuffled=shuffled)


@seeds(10, long=500)
def test_each_is_passed_on_once_and_in_order(seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            assert run(seed, shuffled=seed % 2 == 1).seen["passed on"] > 50


def test_enough_happens() -> None:
    seen: Counter[str] = Counter()
    for seed in range(4):
        seen += run(seed).seen
    for name in ("taken", "void", "cut", "void cut", "target deleted", "committed", "aborted"):
        assert seen[name] > 5, seen


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    plant, seeds = MISTAKES[mistake]
    plant(monkeypatch)
    see(run, range(seeds))
