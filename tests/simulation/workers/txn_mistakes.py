"""Mistakes around transactions that the simulation sees, and in how many seeds at most."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kproxy.common.errors import Code
from kproxy.handlers.common import enlisting
from kproxy.handlers.transactions import transactions
from kproxy.log.base import Ticket
from kproxy.shard.shard import Shard
from kproxy.transactions import coordinator, coordinators
from kproxy.transactions.coordinator import TransactionCoordinator
from kproxy.virtual import state
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.transactions import End, EndCause
from kproxy.virtual.folds.transactions import TransactionFold
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.kinds import PUBLISHED_BYTES
from tests.simulation.workers.mistakes import rare


def _settled(envelopes: Sequence[Envelope]) -> Ticket:
    ticket = Ticket(list(envelopes))
    ticket.set_outcomes([Outcome() for _ in envelopes])
    return ticket


# -- the end


def an_end_answered_before_it_is_told(patch: pytest.MonkeyPatch) -> None:
    async def ended(*_: Any) -> None:
        pass

    patch.setattr(transactions, "_ended", ended)


def complete_before_all_are_told(patch: pytest.MonkeyPatch) -> None:
    async def done(tickets: Any) -> bool:
        return True

    patch.setattr(coordinator, "_done", done)


def who_takes_a_shard_over_leaves_what_is_ending(patch: pytest.MonkeyPatch) -> None:
    scan_once = coordinators._Open.scan_once

    async def scan(self: Any) -> bool:
        self._drive = lambda name: None
        return await scan_once(self)

    patch.setattr(coordinators._Open, "scan_once", scan)


def only_shards_served_here_are_told_of_the_end(patch: pytest.MonkeyPatch) -> None:
    made = TransactionCoordinator.__init__

    def init(self: TransactionCoordinator, shard: Shard, logs: Any, *more: Any) -> None:
        def land(index: int, envelopes: Sequence[Envelope]) -> Ticket:
            here = logs.serving(index)
            return _settled(envelopes) if here is None else here.append(envelopes)

        made(self, shard, cast(Any, SimpleNamespace(ask=logs.ask, land=land)), *more)

    patch.setattr(TransactionCoordinator, "__init__", init)


def requests_on_connections_given_up_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionCoordinator, "is_late", lambda self, *asked: False)


def groups_are_not_told_of_the_end(patch: pytest.MonkeyPatch) -> None:
    async def end_groups(self: Any, *_: Any) -> list[Any]:
        return []

    patch.setattr(TransactionCoordinator, "_end_groups", end_groups)


def what_is_open_for_too_long_stays_open(patch: pytest.MonkeyPatch) -> None:
    end_late = TransactionFold._end_late

    def never(self: TransactionFold, log_offset: int, asked: End, row: Any) -> Outcome:
        if asked.cause == EndCause.TIMEOUT:
            return Outcome(Code.INVALID_TXN_STATE)
        return end_late(self, log_offset, asked, row)

    patch.setattr(TransactionFold, "_end_late", never)


# -- taking part


def a_refused_part_is_taken(patch: pytest.MonkeyPatch) -> None:
    asked = enlisting._asked

    async def taken(*more: Any) -> list[Outcome]:
        return [outcome._replace(code=Code.NONE) for outcome in await asked(*more)]

    patch.setattr(enlisting, "_asked", taken)


def other_shards_are_not_told_of_the_begin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "_begin_elsewhere", lambda *_: [])


def a_begin_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    begin = transactions._begin_elsewhere

    def sent(*more: Any) -> list[Ticket]:
        begin(*more)
        return []

    patch.setattr(transactions, "_begin_elsewhere", sent)


# -- copies


def _unpublished(patch: pytest.MonkeyPatch, kinds: bytes) -> None:
    patch.setattr(state, "PUBLISHED_BYTES", PUBLISHED_BYTES - set(kinds))


def transactional_ids_that_are_not_published(patch: pytest.MonkeyPatch) -> None:
    _unpublished(patch, b"TU")


def open_transactions_that_are_not_published(patch: pytest.MonkeyPatch) -> None:
    _unpublished(patch, b"flGO")


def aborts_that_are_not_published(patch: pytest.MonkeyPatch) -> None:
    _unpublished(patch, b"A")


TRANSACTION_MISTAKES = [
    (an_end_answered_before_it_is_told, 10),
    (complete_before_all_are_told, 30),
    (who_takes_a_shard_over_leaves_what_is_ending, 30),
    (only_shards_served_here_are_told_of_the_end, 10),
    rare(requests_on_connections_given_up_count, 40),
    (groups_are_not_told_of_the_end, 10),
    (what_is_open_for_too_long_stays_open, 10),
    (a_refused_part_is_taken, 10),
    (other_shards_are_not_told_of_the_begin, 10),
    rare(a_begin_is_not_waited_for, 30),
    (transactional_ids_that_are_not_published, 10),
    (open_transactions_that_are_not_published, 30),
    (aborts_that_are_not_published, 10),
]
"""The mistakes to see, and in how many seeds at most: three times those that it took, or more."""
