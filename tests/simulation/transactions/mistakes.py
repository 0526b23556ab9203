"""Mistakes that the simulation of transactions must see, and in how many seeds at most."""

from collections.abc import Callable
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.virtual import producers
from kproxy.virtual.commands.transactions import Complete
from kproxy.virtual.folds.groups import GroupFold
from kproxy.virtual.folds.open_firsts import OpenFirsts
from kproxy.virtual.folds.participants import ParticipantFold
from kproxy.virtual.folds.transactions import TransactionFold
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import NO_NUMBER
from kproxy.virtual.state import State
from tests.simulation.transactions.world import Mistakes

Mistake = Callable[[pytest.MonkeyPatch], Mistakes]


def of_the_fold(plant: Callable[[pytest.MonkeyPatch], None]) -> Mistake:
    def planted(patch: pytest.MonkeyPatch) -> Mistakes:
        plant(patch)
        return Mistakes()

    planted.__name__ = plant.__name__
    return planted


# -- what workers do


def complete_before_all_markers_are_durable(patch: pytest.MonkeyPatch) -> Mistakes:
    return Mistakes(completes_early=True)


def written_beside_the_enlist(patch: pytest.MonkeyPatch) -> Mistakes:
    return Mistakes(enlists_beside=True)


def groups_are_told_of_the_end_once(patch: pytest.MonkeyPatch) -> Mistakes:
    return Mistakes(tells_groups_once=True)


# -- what is decided


@of_the_fold
def a_marker_ends_whatever_is_open(patch: pytest.MonkeyPatch) -> None:
    end = ParticipantFold._end_in_partition

    def ends(self: ParticipantFold, log_offset: int, key: Any, marker: Any, *more: Any) -> bool:
        opened = self.open_of(key, marker.producer_id)
        if opened is not None:
            marker = marker._replace(number=opened.number)
        return end(self, log_offset, key, marker, *more)

    patch.setattr(ParticipantFold, "_end_in_partition", ends)


@of_the_fold
def a_marker_settles_whatever_a_group_has(patch: pytest.MonkeyPatch) -> None:
    end = ParticipantFold._end_in_group

    def ends(self: ParticipantFold, log_offset: int, group: str, marker: Any) -> int:
        for number in range(10_000):
            if (left := end(self, log_offset, group, marker._replace(number=number))) or (
                not self._state.pending_offsets
            ):
                return left
        return 0

    patch.setattr(ParticipantFold, "_end_in_group", ends)


@of_the_fold
def an_end_ends_whatever_is_open(patch: pytest.MonkeyPatch) -> None:
    fault = TransactionFold._end_fault
    patch.setattr(
        TransactionFold, "_end_fault",
        lambda self, asked, row: fault(self, asked._replace(number=row.number), row),
    )  # fmt: skip


@of_the_fold
def an_end_taken_while_none_was_open_ends_any(patch: pytest.MonkeyPatch) -> None:
    fault = TransactionFold._end_fault

    def lenient(self: TransactionFold, asked: Any, row: Any) -> Code | None:
        if asked.number == NO_NUMBER:
            asked = asked._replace(number=row.number)
        return fault(self, asked, row)

    patch.setattr(TransactionFold, "_end_fault", lenient)


@of_the_fold
def a_complete_of_whatever_is_ending(patch: pytest.MonkeyPatch) -> None:
    complete = TransactionFold.complete

    def completes(self: TransactionFold, log_offset: int, envelope: Any, location: Any) -> Any:
        name, _, time_ms = Complete.decode(envelope)
        row = self._row(name)
        if row is not None:
            envelope = Complete(name, row.number, time_ms).envelope()
        return complete(self, log_offset, envelope, location)

    patch.setattr(TransactionFold, "complete", completes)


@of_the_fold
def sequences_go_on_over_a_bump(patch: pytest.MonkeyPatch) -> None:
    def fence(state: State, key: Any, row: Any, producer_id: int, epoch: int, time_ms: int) -> None:
        known = producers.find(state, key, row, producer_id)
        if known is not None:
            bumped = known[:8] + epoch.to_bytes(2, "big", signed=True) + known[10:]
            row.producers = tuple(bumped if one is known else one for one in row.producers)

    patch.setattr(producers, "fence", fence)


@of_the_fold
def a_plain_commit_supersedes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupFold, "_is_superseded", lambda *asked: False)


@of_the_fold
def a_late_begin_opens_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParticipantFold, "_producer", lambda self, producer_id: None)


@of_the_fold
def an_aborted_transaction_leaves_no_row(patch: pytest.MonkeyPatch) -> None:
    put = State.put

    def but_not_that(self: State, key: bytes, value: bytes | None) -> None:
        if not RowKind.ABORTED.of(key):
            put(self, key, value)

    patch.setattr(State, "put", but_not_that)


@of_the_fold
def the_last_stable_offset_forgets_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenFirsts, "following", lambda *asked: -1)


@of_the_fold
def the_last_stable_offset_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenFirsts, "following", lambda self, key, start, changed: start)


@of_the_fold
def what_has_ended_holds_back_readers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenFirsts, "ended", lambda *asked: None)


@of_the_fold
def a_producer_id_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionFold, "_new_producer_id", lambda self, log_offset: log_offset // 8)


@of_the_fold
def nobody_is_fenced(patch: pytest.MonkeyPatch) -> None:
    bumped = TransactionFold._fenced

    def same(self: TransactionFold, log_offset: int, row: Any, time_ms: int) -> Any:
        after = bumped(self, log_offset, row, time_ms)
        return after._replace(
            producer_id=row.producer_id, epoch=row.epoch, last_epoch=row.last_epoch,
            marker_epoch=row.epoch,
        )  # fmt: skip

    patch.setattr(TransactionFold, "_fenced", same)


@of_the_fold
def a_repeated_batch_is_appended_again(patch: pytest.MonkeyPatch) -> None:
    judge = producers.judge

    def forgetful(*asked: Any) -> Any:
        verdict = judge(*asked)
        return None if verdict is not None and not isinstance(verdict, Code) else verdict

    patch.setattr(producers, "judge", forgetful)


@of_the_fold
def deleted_offsets_come_back_with_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupFold, "_forget_pending", lambda *asked: None)


@of_the_fold
def what_waits_is_not_counted_down(patch: pytest.MonkeyPatch) -> None:
    count = State.count_pending
    patch.setattr(State, "count_pending", lambda self, change: count(self, max(0, change)))


def _rare(mistake: Mistake, seeds: int) -> Any:
    return pytest.param(mistake, seeds, marks=pytest.mark.long)


MISTAKES = [
    (complete_before_all_markers_are_durable, 10),
    (written_beside_the_enlist, 10),
    (groups_are_told_of_the_end_once, 20),
    (a_marker_ends_whatever_is_open, 20),
    (a_marker_settles_whatever_a_group_has, 10),
    (an_end_ends_whatever_is_open, 100),
    (an_end_taken_while_none_was_open_ends_any, 200),
    (a_complete_of_whatever_is_ending, 10),
    (sequences_go_on_over_a_bump, 40),
    (a_plain_commit_supersedes_nothing, 80),
    (a_late_begin_opens_again, 15),
    (an_aborted_transaction_leaves_no_row, 10),
    (the_last_stable_offset_forgets_others, 15),
    (the_last_stable_offset_stays, 10),
    (what_has_ended_holds_back_readers, 30),
    (a_producer_id_is_given_twice, 10),
    (nobody_is_fenced, 10),
    (a_repeated_batch_is_appended_again, 20),
    _rare(deleted_offsets_come_back_with_the_end, 500),
    (what_waits_is_not_counted_down, 10),
]
"""The mistakes to see, and in how many seeds at most: three times those that it took, or more."""
