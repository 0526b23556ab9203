"""Seeded: delays as they are delivered, by workers whose clocks jump, over a log that fails."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kproxy.delays import delays as delays_module
from kproxy.delays import delivery, looker, splitting
from kproxy.virtual import producers
from kproxy.virtual.folds import delays as delay_fold
from kproxy.virtual.rows.delays import DELAY_ENTRIES, waiting_range
from tests.simulation.delays.world import World
from tests.simulation.seeds import see, seeds, sums


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Have looks run on the loop, a few records at once."""

    async def run_sync(work: Callable[..., Any], *args: Any, limiter: Any = None) -> Any:
        return work(*args)

    patch.setattr(looker.to_thread, "run_sync", run_sync)
    patch.setattr(delivery, "BATCHES_AT_ONCE", 4)
    patch.setattr(splitting, "GROUPS_MAX", 6)
    patch.setattr(splitting, "_FEWER", 2)


def run(seed: int) -> Counter[str]:
    world = World(seed)
    asyncio.run(world.run())
    return world.counted()


@seeds(40, long=2000)
def test_each_is_seen_once_in_order_and_never_early(seeds: range) -> None:
    seen = sums(run, seeds)
    assert min(seen[name] for name in ("jumps", "takeovers", "retried", "split")) > 3, seen


def _due_before_its_time(patch: pytest.MonkeyPatch) -> None:
    """Ignore the time, in looks and in the fold."""
    plan = delivery.plan
    patch.setattr(
        looker, "plan",
        lambda shard, key, from_ms, now_ms, *more: plan(shard, key, from_ms, now_ms + 99, *more),
    )  # fmt: skip
    decode = delay_fold.Due.decode
    patch.setattr(
        delay_fold.Due, "decode",
        staticmethod(lambda envelope: decode(envelope)._replace(time_ms=1 << 62)),
    )  # fmt: skip


def _due_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delay_fold, "remove_waiting", lambda *removed: None)


def _in_any_order(patch: pytest.MonkeyPatch) -> None:
    plan = delivery.plan

    def backwards(*args: Any) -> Any:
        planned = plan(*args)
        return planned._replace(batches=planned.batches[-1:])

    patch.setattr(looker, "plan", backwards)


def _order_of_arrival_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        delays_module.Delays, "due_ms",
        lambda self, shard, key, delay_ms, now_ms: now_ms + delay_ms,
    )  # fmt: skip


def _sequences_are_not_judged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producers, "judge", lambda *asked: None)


def _what_is_left_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delivery, "grouped", lambda *args: [])


def _what_is_sooner_is_not_filed(patch: pytest.MonkeyPatch) -> None:
    def file_at(state: Any, key: Any, due_ms: int) -> None:
        if state.get(DELAY_ENTRIES.key(key)) is None:
            delay_fold_file(state, key, due_ms)

    delay_fold_file = delay_fold.file_at
    patch.setattr(delay_fold, "file_at", file_at)


def _what_failed_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(looker.Looker, "_retry", lambda self: None)


def _what_came_meanwhile_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    """Begin the next look a millisecond after the records that were delivered."""
    patch.setattr(
        looker.delay_rows, "waiting_range",
        lambda key, due_ms=0, offset=0: waiting_range(key, due_ms + 1 if due_ms else 0),
    )  # fmt: skip


def _a_mixed_one_is_due_as_a_whole(patch: pytest.MonkeyPatch) -> None:
    """Deliver an envelope of mixed due times at once, past others that are due in between."""
    plan = delivery.plan

    def until_now(*args: Any) -> Any:
        return plan(*args)._replace(until_ms=args[3])

    patch.setattr(looker, "plan", until_now)


def _all_of_a_mixed_one_is_due(patch: pytest.MonkeyPatch) -> None:
    plan = delivery.plan
    patch.setattr(looker, "plan", lambda *args: plan(*args)._replace(until_ms=1 << 60))


def _one_more_is_passed(patch: pytest.MonkeyPatch) -> None:
    """Pass over one record more of those that are due at one time."""
    passed_by = looker.Looker._passed_by
    patch.setattr(
        looker.Looker, "_passed_by",
        lambda self, *where: (passed := passed_by(self, *where)) + bool(passed),
    )  # fmt: skip


MISTAKES: list[Callable[[pytest.MonkeyPatch], None]] = [
    _due_before_its_time, _due_twice, _in_any_order, _order_of_arrival_is_lost,
    _sequences_are_not_judged, _what_is_left_is_lost, _what_is_sooner_is_not_filed,
    _what_failed_is_forgotten, _what_came_meanwhile_is_passed_over, _one_more_is_passed,
    _all_of_a_mixed_one_is_due, _a_mixed_one_is_due_as_a_whole,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)
    see(run, range(100), KeyError)
