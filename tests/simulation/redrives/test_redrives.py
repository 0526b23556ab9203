"""Seeded: each letter is redriven exactly once by each job, whatever happens to owners, messages
and settings."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kproxy.routes import redriving
from kproxy.routes.passage import Passage, Step
from kproxy.virtual.folds import redrives
from kproxy.virtual.folds import routes as route_fold
from kproxy.virtual.folds.routes import RouteFold
from kproxy.virtual.rows import routes as route_rows
from kproxy.virtual.rows.routes import Epoch, Landed, Route
from tests.simulation.redrives.world import RedriveWorld
from tests.simulation.routes.dead_letters import lived
from tests.simulation.routes.mistakes import ended_route_begins_anew
from tests.simulation.routes.test_routes import make_small
from tests.simulation.seeds import named, see, seeds


@pytest.fixture(autouse=True)
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def run(seed: int, *, shuffled: bool = False) -> RedriveWorld:
    return lived(RedriveWorld(seed), seed, shuffled=shuffled)


@seeds(4, long=500)
def test_each_letter_is_redriven_once_by_each_job(seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            assert run(seed, shuffled=seed % 2 == 1).seen["redriven"] > 20


def test_enough_happens() -> None:
    seen: Counter[str] = Counter()
    for seed in range(3):
        seen += run(seed).seen
    for name in ("taken", "void", "cut", "job", "cancelled", "changed", "once more"):
        assert seen[name] > 2, seen


Patch = pytest.MonkeyPatch


def _jobs_are_not_told_apart(patch: Patch) -> None:
    made = redrives.redrive_id
    patch.setattr(redrives, "redrive_id", lambda queue_id, job: made(queue_id, ""))


def _it_has_no_end(patch: Patch) -> None:
    begun = redrives.begun

    def endless(*of: Any) -> Route:
        route = begun(*of)
        return route._replace(epochs=(*route.epochs[:1], Epoch(1 << 40, b"")))

    patch.setattr(redrives, "begun", endless)


def _a_change_is_of_what_is_cut_next(patch: Patch) -> None:
    tell = RouteFold._end

    def changed(
        self: RouteFold, source: Any, definer: Any, data: bytes, spec: bytes, as_of: int
    ) -> bool:
        route = route_rows.decode_route(data)
        if spec and route.cut < route.epochs[-1].start:
            kept = [one for one in route.epochs[:-1] if one.start < route.cut]
            epochs = (*kept, Epoch(route.cut, spec), route.epochs[-1])
            self._put(source, definer, route._replace(as_of=as_of, epochs=epochs))
        return tell(self, source, definer, data, spec, as_of)

    patch.setattr(RouteFold, "_end", changed)


def _a_cancelled_one_goes_on(patch: Patch) -> None:
    patch.setattr(redrives, "ended", lambda route, as_of: None)


def _its_row_goes_when_it_is_over(patch: Patch) -> None:
    patch.setattr(route_fold, "is_redrive", lambda definer: False)


def _nothing_is_void(patch: Patch) -> None:
    patch.setattr(Landed, "has", lambda self, through, part: False)


def _a_new_owner_does_not_ship_again(patch: Patch) -> None:
    async def again(self: Passage, route: Route, row: Any) -> tuple[Step, int]:
        self._landed = route.cut
        return Step.DONE, 0

    patch.setattr(Passage, "_ship_again", again)


def _the_letters_headers_stay(patch: Patch) -> None:
    patch.setattr(redriving, "_OF_LETTERS", (redriving.TIMES,))


def _times_are_not_counted(patch: Patch) -> None:
    patch.setattr(redriving, "_times", lambda said: 0)


MISTAKES: dict[str, tuple[Callable[[Patch], None], int]] = {
    "jobs are not told apart": (_jobs_are_not_told_apart, 5),
    "it has no end": (_it_has_no_end, 5),
    "a change is of what is cut next": (_a_change_is_of_what_is_cut_next, 20),
    "a cancelled one goes on": (_a_cancelled_one_goes_on, 10),
    "its row goes when it is over": (_its_row_goes_when_it_is_over, 10),
    "one that is over begins anew": (ended_route_begins_anew, 20),
    "nothing is void": (_nothing_is_void, 5),
    "a new owner does not ship again": (_a_new_owner_does_not_ship_again, 10),
    "the letter's headers stay": (_the_letters_headers_stay, 2),
    "times are not counted": (_times_are_not_counted, 2),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    plant, count = MISTAKES[mistake]
    plant(monkeypatch)
    see(run, range(count))
