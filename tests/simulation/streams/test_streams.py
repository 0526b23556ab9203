"""Seeded: no active task has two owners, every task has one when it is quiet, and epochs grow."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kproxy.groups.assigning import reconciliation
from kproxy.groups.assigning.sticky_assignor import _Sticky
from kproxy.groups.model.streams_group import StreamsGroup
from kproxy.groups.model.streams_member import StreamsMember, TaskHolders
from kproxy.groups.model.topology import STANDBY
from tests.simulation.seeds import named, see, seeds, tried
from tests.simulation.streams.world import simulated

Patch = pytest.MonkeyPatch


@seeds(4, long=200)
def test_tasks_have_one_owner(seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            assert simulated(seed, shuffled=seed % 2 == 1).counted["told"] > 10


def test_enough_happens() -> None:
    counted: Counter[str] = Counter()
    for seed in range(3):
        counted += simulated(seed).counted
    for name in (
        "takeovers", "rebuilds", "starts", "kills", "leaves", "lost", "UNKNOWN_MEMBER_ID",
    ):  # fmt: skip
        assert counted[name] > 2, counted


def test_a_seed_is_the_same_each_time() -> None:
    one, other = (simulated(2) for _ in range(2))
    assert one.shard.kv.rows == other.shard.kv.rows


# -- mistakes


def tasks_are_given_before_they_are_given_up(patch: Patch) -> None:
    def others(self: TaskHolders, member: StreamsMember) -> Any:
        yield
        return frozenset()

    patch.setattr(TaskHolders, "others", others)


def whoever_is_told_has_given_up(patch: Patch) -> None:
    patch.setattr(reconciliation, "_still_owned", lambda owned, parts: False)


def a_new_coordinator_forgets_what_is_to_be_given_up(patch: Patch) -> None:
    from_row = StreamsMember.from_row.__func__  # type: ignore[attr-defined]

    def forgets(cls: Any, member_id: str, row: Any) -> Any:
        member = yield from from_row(cls, member_id, row)
        member.revoking = frozenset()
        return member

    patch.setattr(StreamsMember, "from_row", classmethod(forgets))


def a_new_coordinator_begins_at_the_first_epoch(patch: Patch) -> None:
    begin = StreamsGroup.begin_restoring

    def at_first(self: StreamsGroup, head: Any) -> None:
        begin(self, head)
        self.epoch = self.target_epoch = 1

    patch.setattr(StreamsGroup, "begin_restoring", at_first)


def a_task_is_left_out(patch: Patch) -> None:
    give = _Sticky._note

    def note(self: Any, member: str, task: Any, role: int, count: int) -> None:
        if task != (1, 3):
            give(self, member, task, role, count)

    patch.setattr(_Sticky, "_note", note)


def a_standby_lies_beside_its_task(patch: Patch) -> None:
    others = TaskHolders.others

    def active_alone(self: TaskHolders, member: StreamsMember) -> Any:
        found = yield from others(self, member)
        return frozenset(task for task in found if task[0][0] != STANDBY)

    patch.setattr(TaskHolders, "others", active_alone)


def a_member_is_never_taken_out(patch: Patch) -> None:
    patch.setattr(StreamsGroup, "_expire", lambda self, member_id, now: None)


MISTAKES: list[tuple[Callable[[Patch], None], int]] = [
    (tasks_are_given_before_they_are_given_up, 6),
    (whoever_is_told_has_given_up, 6),
    (a_new_coordinator_forgets_what_is_to_be_given_up, 20),
    (a_new_coordinator_begins_at_the_first_epoch, 6),
    (a_task_is_left_out, 3),
    (a_standby_lies_beside_its_task, 10),
    (a_member_is_never_taken_out, 6),
]


@pytest.mark.parametrize(("mistake", "count"), MISTAKES)
def test_mistakes_are_seen(
    monkeypatch: Patch, mistake: Callable[[Patch], None], count: int
) -> None:
    mistake(monkeypatch)
    see(simulated, tried(mistake.__name__, count), KeyError, ValueError)
