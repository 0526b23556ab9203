"""Mistakes that the simulation of share groups must see, and in how many seeds at most."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.shares import poll
from kproxy.shares.acknowledging import Acknowledging
from kproxy.shares.sessions import ShareSessions
from kproxy.shares.share_partition import SharePartition
from kproxy.shares.share_partitions import PartitionChange, SharePartitions
from kproxy.shares.window import RELEASE, RENEW, BeyondEnd, InvalidState, Pending, Window
from kproxy.virtual.folds import shares as share_fold
from kproxy.virtual.folds.shares import ShareFold
from kproxy.virtual.folds.shares import _Window as FoldWindow
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.queues import Term
from kproxy.virtual.rows.shares import COUNT_SHIFT, TERMINAL

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]


# -- the fold


def a_deposed_owner_is_heard(patch: Patch) -> None:
    change = ShareFold.change

    def heard(self: ShareFold, log_offset: int, envelope: Any, location: Any) -> Any:
        data = self._state.get(rows.TERM_KEY)
        if data is None:
            return change(self, log_offset, envelope, location)
        term = rows.decode_term(data)
        self._state.put(rows.TERM_KEY, Term(term.claim, envelope.writer).encode())
        try:
            return change(self, log_offset, envelope, location)
        finally:
            self._state.put(rows.TERM_KEY, data)

    patch.setattr(ShareFold, "change", heard)


def what_is_done_may_become_available(patch: Patch) -> None:
    def all_of_it(states: bytearray, begin: int, end: int) -> Any:
        yield begin, end

    patch.setattr(share_fold, "_open_runs", all_of_it)


def a_trim_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(FoldWindow, "pass_to", lambda self, log_start: None)


def what_was_done_is_owed_again(patch: Patch) -> None:
    become = FoldWindow.become

    def owed(self: FoldWindow, first: int, records: int, byte: int) -> Any:
        ended = become(self, first, records, byte)
        return [(first, records)] if TERMINAL[byte] else ended

    patch.setattr(FoldWindow, "become", owed)


# -- what an owner remembers


def a_takeover_is_not_noticed(patch: Patch) -> None:
    """Let the owner before go on with the state that it had."""

    def current(self: SharePartition) -> bool:
        return bool(self.shard.serving)

    patch.setattr(SharePartition, "is_current", property(current))


def locks_are_forgotten_early(patch: Patch) -> None:
    expire = Window.expire
    patch.setattr(Window, "expire", lambda self, now, limit: expire(self, now + 0.7, limit))


def locks_never_run_out(patch: Patch) -> None:
    patch.setattr(Window, "expire", lambda self, now, limit: Pending([], []))
    patch.setattr(Window, "due", property(lambda self: inf))


def what_is_pending_may_be_given(patch: Patch) -> None:
    def decide(self: Window, first: int, last: int, *more: Any) -> None:
        decided(self, first, last, *more)
        if more[0] == RELEASE:
            for at, end, byte in list(self._runs_in(first, last + 1)):
                self._put(at, end, byte >> COUNT_SHIFT << COUNT_SHIFT)

    decided = Window._decide
    patch.setattr(Window, "_decide", decide)


def anybody_may_acknowledge(patch: Patch) -> None:
    check = Window.check

    def any_member(self: Window, member: str, first: int, last: int) -> None:
        held = next(self._leases.holders(first, last), member)
        check(self, held, first, last)

    patch.setattr(Window, "check", any_member)


def a_refused_acknowledgement_is_as_good_as_taken(patch: Patch) -> None:
    patch.setattr(Window, "take_back", lambda self, pending, until: self.settle(pending, (), until))


def what_was_aborted_is_not_archived(patch: Patch) -> None:
    archive = Window._archive_gap

    def but_not(self: Window, first: int, end: int, taken: Any, cause: Any) -> None:
        if first >= self.end:
            self._grow(end)
            self._put(first, end, 5)  # pending, and never logged
        else:
            archive(self, first, end, taken, cause)

    patch.setattr(Window, "_archive_gap", but_not)


def records_are_given_for_ever(patch: Patch) -> None:
    acquire = Window.acquire

    def for_ever(self: Window, member: str, stretches: Any, limits: Any, *more: Any) -> Any:
        limits = limits._replace(deliveries_max=25)
        return acquire(self, member, stretches, limits, *more)

    patch.setattr(Window, "acquire", for_ever)


def the_window_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(Window, "has_room", lambda self, window_max: True)


def what_is_archived_is_forgotten_if_the_log_takes_nothing(patch: Patch) -> None:
    take_back = Window.take_back

    def as_it_was(self: Window, pending: Pending, until: float) -> None:
        if pending.held:
            take_back(self, pending, until)
        else:
            self.settle(pending, (), until)

    patch.setattr(Window, "take_back", as_it_was)


def a_renewed_lock_is_as_short_as_before(patch: Patch) -> None:
    say = Window._say

    def but_renew(self: Window, first: int, last: int, kind: int, *more: Any) -> None:
        if kind != RENEW:
            say(self, first, last, kind, *more)

    patch.setattr(Window, "_say", but_renew)


# -- requests


def an_acknowledgement_is_answered_before_it_is_durable(patch: Patch) -> None:
    def log(self: Acknowledging) -> None:
        changes, self._changes = self._changes, []
        self._shares.log(self._session.group, changes)

    patch.setattr(Acknowledging, "_log", log)


def a_list_is_half_applied(patch: Patch) -> None:
    async def said(self: Acknowledging, share: Any, said: Any, pace: Any) -> Pending:
        pending = Pending([], [])
        for first, last, types in said:
            try:
                share.window.check(self._session.member, first, last)
            except (InvalidState, BeyondEnd) as error:
                if pending.runs:
                    self._shares.log(
                        self._session.group, [PartitionChange(share, pending.runs, pending)]
                    )
                raise KafkaError(Code.INVALID_REQUEST) from error
            some = share.window.acknowledge(first, last, types, 9, [])
            pending.runs.extend(some.runs)
            pending.held.extend(some.held)
        return pending

    patch.setattr(Acknowledging, "_said", said)


def a_redelivery_is_given_before_it_is_logged(patch: Patch) -> None:
    async def given(self: poll.SharePoll, seen: Any) -> Any:
        return seen.found

    patch.setattr(poll.SharePoll, "_given", given)


def a_session_ends_with_a_connection_it_has_left(patch: Patch) -> None:
    def disconnected(self: ShareSessions, connection: int) -> None:
        for session in list(self._sessions.values()):
            if session.connection // 1_000_000 == connection // 1_000_000:
                self.end(session)

    patch.setattr(ShareSessions, "disconnected", disconnected)


def what_runs_out_is_not_logged(patch: Patch) -> None:
    def settled(self: SharePartitions, by_group: Any) -> None:
        for changes in by_group.values():
            for change in changes:
                change.share.settle(change.pending, (), self.now())
        by_group.clear()

    patch.setattr(SharePartitions, "_log_all", settled)


MISTAKES: list[tuple[Mistake, range]] = [
    (a_deposed_owner_is_heard, range(60)),
    (what_is_done_may_become_available, range(60)),
    (a_trim_is_not_looked_at, range(30)),
    (what_was_done_is_owed_again, range(60)),
    (a_takeover_is_not_noticed, range(30)),
    (locks_are_forgotten_early, range(20)),
    (locks_never_run_out, range(30)),
    (what_is_pending_may_be_given, range(30)),
    (anybody_may_acknowledge, range(60)),
    (a_refused_acknowledgement_is_as_good_as_taken, range(60)),
    (what_was_aborted_is_not_archived, range(20)),
    (records_are_given_for_ever, range(20)),
    (the_window_is_not_looked_at, range(60)),
    (a_renewed_lock_is_as_short_as_before, range(60)),
    (an_acknowledgement_is_answered_before_it_is_durable, range(20)),
    (a_list_is_half_applied, range(60)),
    (a_redelivery_is_given_before_it_is_logged, range(60)),
    (a_session_ends_with_a_connection_it_has_left, range(60)),
    (what_runs_out_is_not_logged, range(60)),
]
RARE: list[tuple[Mistake, range]] = [
    (what_is_archived_is_forgotten_if_the_log_takes_nothing, range(250)),
]
"""`tests/shares/test_window.py` sees them at once."""
