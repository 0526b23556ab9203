"""Mistakes that a coordinator or the fold could make, each planted at one place."""

from collections.abc import Callable
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.groups.assigning import reconciliation
from kproxy.groups.assigning.subscriptions import SubscriptionResolver
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.assigned_group import AssignedGroup
from kproxy.groups.model.classic_group import ClassicGroup
from kproxy.groups.model.consumer_group import ConsumerGroup
from kproxy.groups.model.counters import AssignmentCounts
from kproxy.groups.requests import assigned_heartbeat, classic_protocol
from kproxy.groups.requests.classic_rebalance import ClassicRebalance
from kproxy.groups.upkeep import group_log
from kproxy.virtual.commands.groups import ChangeGroup
from kproxy.virtual.folds import groups as group_fold
from kproxy.virtual.folds.groups import GroupFold

Mistake = Callable[[pytest.MonkeyPatch], None]


class _AnyVersion(int):
    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def a_group_is_changed_whatever_it_is_by_now(patch: pytest.MonkeyPatch) -> None:
    class Blind:
        @staticmethod
        def decode(envelope: Any) -> ChangeGroup:
            asked = ChangeGroup.decode(envelope)
            return asked._replace(after=_AnyVersion(asked.after))

    patch.setattr(group_fold, "ChangeGroup", Blind)


def a_commit_of_any_epoch_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupFold, "_member_fault", lambda *asked: Code.NONE)


def what_others_have_is_given(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: Any, member: Any) -> Any:
        yield
        return frozenset()

    patch.setattr(AssignmentCounts, "others", nothing)


def nobody_is_waited_for_to_give_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciliation, "_still_owned", lambda owned, parts: False)


def a_member_is_told_before_the_log(patch: pytest.MonkeyPatch) -> None:
    async def unlogged(coordinator: Coordinator, group: Any) -> None:
        pass

    patch.setattr(assigned_heartbeat, "log", unlogged)


def a_generation_is_given_out_before_the_log(patch: pytest.MonkeyPatch) -> None:
    log = classic_protocol._log_assignment

    async def settled(coordinator: Coordinator, group: ClassicGroup) -> None:
        group.settle()
        await log(coordinator, group)

    patch.setattr(classic_protocol, "_log_assignment", settled)


def a_new_coordinator_counts_generations_anew(patch: pytest.MonkeyPatch) -> None:
    begin = ClassicGroup.begin_restoring

    def forgetful(self: Any, head: Any) -> None:
        begin(self, head)
        self.generation = 0

    patch.setattr(ClassicGroup, "begin_restoring", forgetful)


def nobody_that_a_former_coordinator_had_is_gone(patch: pytest.MonkeyPatch) -> None:
    restore = ConsumerGroup.restore

    def unwatched(self: Any, member_id: str, row: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(AssignedGroup, "_watch", lambda *args: None)
            yield from restore(self, member_id, row)

    patch.setattr(ConsumerGroup, "restore", unwatched)


def a_group_goes_on_though_its_log_failed(patch: pytest.MonkeyPatch) -> None:
    init = group_log.GroupLog.__init__

    def stubborn(self: Any, shard: Any, has: Any, head: Any, forget: Any, *more: Any) -> None:
        init(self, shard, has, head, forget, lambda group, code: None, *more[1:])

    patch.setattr(group_log.GroupLog, "__init__", stubborn)


def a_member_that_left_keeps_its_row(patch: pytest.MonkeyPatch) -> None:
    remove = AssignedGroup.remove

    def kept(self: Any, member_id: str) -> None:
        remove(self, member_id)
        self.gone.discard(member_id)

    patch.setattr(AssignedGroup, "remove", kept)


def a_static_member_comes_back_to_nothing(patch: pytest.MonkeyPatch) -> None:
    leave = ConsumerGroup.leave_as_static

    def gone(self: Any, member: Any) -> None:
        leave(self, member)
        member.assigned = frozenset()

    patch.setattr(ConsumerGroup, "leave_as_static", gone)


def a_classic_static_member_is_a_new_one(patch: pytest.MonkeyPatch) -> None:
    replace = ClassicGroup.replace_static

    def anew(self: Any, member: Any, new_id: str) -> None:
        replace(self, member, new_id)
        member.assignment = b""

    patch.setattr(ClassicGroup, "replace_static", anew)


def a_late_classic_member_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicRebalance, "_expire", lambda self, member, now: now + 1000)


def new_partitions_are_nobodys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubscriptionResolver, "_is_due", lambda self, group: False)


MISTAKES: list[Mistake] = [
    a_group_is_changed_whatever_it_is_by_now, a_commit_of_any_epoch_is_taken,
    what_others_have_is_given, nobody_is_waited_for_to_give_up, a_member_is_told_before_the_log,
    a_generation_is_given_out_before_the_log, a_new_coordinator_counts_generations_anew,
    nobody_that_a_former_coordinator_had_is_gone, a_group_goes_on_though_its_log_failed,
    a_member_that_left_keeps_its_row, a_static_member_comes_back_to_nothing,
    a_classic_static_member_is_a_new_one, a_late_classic_member_is_waited_for,
    new_partitions_are_nobodys,
]  # fmt: skip
