"""The fold's decisions for transactional ids: Kafka 4.3.1's, by state, epoch and version."""

from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.commands.transactions import (
    ASKS_ONLY,
    SETS_CLOCK,
    End,
    EndCause,
    Enlist,
    ExpireTransaction,
    InitProducer,
)
from kproxy.virtual.folds import transactions as transaction_fold
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import (
    NO_NUMBER,
    Participant,
    Transaction,
    TransactionState,
)
from tests.virtual.folds.transactional import ID, Shards, opened

NONE, FENCED, INVALID = Code.NONE, Code.PRODUCER_FENCED, Code.INVALID_TXN_STATE
CONCURRENT, MAPPING = Code.CONCURRENT_TRANSACTIONS, Code.INVALID_PRODUCER_ID_MAPPING
EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARED = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
COMPLETED = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
PID, EPOCH, LAST, NUMBER = 500, 10, 9, 4


def shards_in(state: TransactionState, epoch: int = EPOCH, last: int = LAST) -> Shards:
    """Return shards with a transactional id that has come this far."""
    shards = Shards()
    row = Transaction(PID, -1, epoch, last, 60_000, state, 2, 1, 1, NUMBER)
    if state.is_ending:
        row = row._replace(ending_producer_id=PID, ending_epoch=last, marker_epoch=epoch)
    shards.put_row(row)
    return shards


# -- InitProducerId


def test_a_new_id_gets_a_producer_id_and_bumps_epochs() -> None:
    shards = Shards()
    first = shards.init()
    assert (first.code, first.epoch) == (NONE, 0)
    assert [shards.init()[:2] for _ in range(2)] == [(NONE, first.number)] * 2
    assert shards.row().epoch == 2
    other = shards.init(name="other")
    assert other.number != first.number
    assert shards.init((first.number, 2), name="nobody")[:2] == (NONE, len(shards.all[0].log) - 1)


def test_ids_are_unique_over_shards() -> None:
    given = {Shards(3).init(name=f"id{i}").number % 3 for i in range(20)}
    assert given == {0, 1, 2}


@pytest.mark.parametrize(
    ("state", "expected", "code", "epoch"),
    [
        (state, expected, code, epoch)
        for state in (EMPTY, *COMPLETED.values())
        for expected, code, epoch in (
            ((-1, -1), NONE, EPOCH + 1),
            ((PID, EPOCH), NONE, EPOCH + 1),
            ((PID, LAST), NONE, EPOCH),
            ((PID, LAST - 1), FENCED, EPOCH),
            ((PID, EPOCH + 1), FENCED, EPOCH),
            ((PID + 1, EPOCH), FENCED, EPOCH),
            ((PID, -5), FENCED, EPOCH),
        )
    ],
)
def test_init_by_what_is_expected(
    state: TransactionState, expected: tuple[int, int], code: Code, epoch: int
) -> None:
    shards = shards_in(state)
    outcome = shards.init(expected)
    assert outcome.code == code
    if code == NONE:
        assert (outcome.number, outcome.epoch) == (PID, epoch)
        assert shards.row().state == EMPTY
    row = shards.row()
    assert (row.producer_id, row.epoch) == (PID, epoch)
    if expected == (-1, -1):
        assert row.last_epoch == -1
        assert shards.init((PID, EPOCH)).code == FENCED
    elif code == NONE:
        assert shards.init(expected)[:2] == (NONE, PID)
        assert shards.row().epoch == epoch


@pytest.mark.parametrize("expected", [(-1, -1), (PID, EPOCH), (PID, LAST), (PID, 3)])
@pytest.mark.parametrize("commit", [True, False])
def test_init_waits_for_what_is_ending(commit: bool, expected: tuple[int, int]) -> None:
    shards = shards_in(PREPARED[commit])
    before = shards.row()
    assert shards.init(expected).code == CONCURRENT
    assert shards.row() == before


@pytest.mark.parametrize("version", [1, 2])
def test_init_fences_what_is_open(version: int) -> None:
    shards = Shards()
    pid, epoch, number = shards.open(shards.keys[0], version=version)
    shards.append(shards.keys[0], pid, epoch, 0)
    assert shards.init().code == CONCURRENT
    row = shards.row()
    assert (row.state, row.epoch, row.marker_epoch) == (PREPARED[False], epoch + 1, epoch + 1)
    assert (row.ending_producer_id, row.ending_epoch, row.number) == (pid, epoch, number)
    assert shards.init().code == CONCURRENT
    assert shards.row() == row
    shards.finish()
    assert (shards.row().state, shards.row().epoch) == (COMPLETED[False], epoch + 1)
    assert shards.init()[:2] == (NONE, pid)
    assert shards.row().epoch == epoch + 2
    for code in (shards.end(pid, epoch).code, shards.init((pid, epoch)).code):
        assert code == FENCED


def test_self_fenced_producer_gets_the_epoch_after() -> None:
    shards = Shards()
    pid, epoch, _ = shards.open(shards.keys[0])
    assert shards.init((pid, epoch)).code == CONCURRENT
    shards.finish()
    for _ in range(2):
        outcome = shards.init((pid, epoch))
        assert (outcome.code, outcome.number, outcome.epoch) == (NONE, pid, epoch + 1)


def test_another_producer_id_fences_nobody() -> None:
    shards = shards_in(ONGOING)
    assert shards.init((PID + 1, EPOCH)).code == FENCED
    assert shards.row().state == ONGOING


def test_epochs_run_out() -> None:
    shards = shards_in(EMPTY, 32_765, -1)
    assert shards.init((PID, 32_765))[:2] == (NONE, PID)
    outcome = shards.init((PID, 32_766))
    other = outcome.number
    assert (outcome.code, outcome.epoch) == (NONE, 0)
    assert other != PID
    for _ in range(2):
        assert shards.init((PID, 32_766))[:2] == (NONE, other)
    assert shards.init((PID, 32_765)).code == FENCED
    outcome = shards.init((other, 0))
    assert (outcome.number, outcome.epoch) == (other, 1)
    assert shards.init((PID, 32_766)).code == FENCED


def test_epochs_run_out_where_nothing_is_expected() -> None:
    shards = shards_in(EMPTY, 32_766)
    outcome = shards.init()
    assert (outcome.code, outcome.epoch) == (NONE, 0)
    assert outcome.number != PID
    assert shards.init((PID, 32_766)).code == FENCED


@pytest.mark.parametrize(
    ("epoch", "marker", "after", "rotated"),
    [(32_764, 32_765, 32_766, False), (32_765, 32_766, 0, True), (32_766, 32_767, 1, True)],
)
def test_fencing_when_epochs_run_out(epoch: int, marker: int, after: int, rotated: bool) -> None:
    shards = shards_in(ONGOING, epoch)
    assert shards.init().code == CONCURRENT
    row = shards.row()
    assert (row.ending_producer_id, row.ending_epoch, row.marker_epoch) == (PID, epoch, marker)
    shards.finish()
    outcome = shards.init()
    assert (outcome.code, outcome.epoch) == (NONE, after)
    assert (outcome.number != PID) == rotated
    assert shards.init((PID, epoch)).code == FENCED


# -- AddPartitionsToTxn, AddOffsetsToTxn, and what enlists by itself


@pytest.mark.parametrize("version", [ASKS_ONLY, 1, 2])
@pytest.mark.parametrize("state", [EMPTY, ONGOING, *COMPLETED.values()])
@pytest.mark.parametrize(
    ("pid", "epoch", "code"),
    [
        (PID, EPOCH - 1, FENCED),
        (PID, EPOCH + 1, FENCED),
        (PID, -1, FENCED),
        (PID + 1, EPOCH, MAPPING),
        (-1, -1, MAPPING),
    ],
)
def test_producers_that_may_not_take_part(
    state: TransactionState, pid: int, epoch: int, code: Code, version: int
) -> None:
    shards = shards_in(state)
    before = shards.row()
    part = Participant(0, shards.keys[0])
    assert shards.enlist(pid, epoch, part, version=version).code == code
    assert shards.enlist(PID, EPOCH, part, name="unknown").code == MAPPING
    assert shards.row() == before
    assert not shards.of(RowKind.PARTICIPANT, RowKind.OPEN_TRANSACTION)


@pytest.mark.parametrize("version", [ASKS_ONLY, 1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_nobody_takes_part_in_what_is_ending(commit: bool, version: int) -> None:
    shards = shards_in(PREPARED[commit])
    before = shards.row()
    part = Participant(0, shards.keys[0])
    assert shards.enlist(PID, EPOCH, part, version=version).code == CONCURRENT
    assert shards.enlist(PID, LAST, part, version=version).code == FENCED
    assert shards.row() == before


def test_taking_part_opens_once_and_is_said_any_number_of_times() -> None:
    shards = Shards()
    key, other = shards.make(partitions=2), shards.make()
    made = shards.init()
    pid, part = made.number, Participant(0, key)
    number = len(shards.all[0].log)
    for _ in range(3):
        assert shards.enlist(pid, 0, part, part)[:2] == (NONE, number)
    start_ms = shards.row().start_ms
    assert shards.row().participants == 1
    more = Participant(0, other), Participant(0, group="g"), Participant(7, group="g")
    assert shards.enlist(pid, 0, *more)[:2] == (NONE, number)
    row = shards.row()
    assert (row.state, row.participants, row.start_ms) == (ONGOING, 4, start_ms)
    assert row.due_ms == start_ms + row.timeout_ms
    assert set(shards.listed()) == {part, *more}
    assert len(shards.of(RowKind.OPEN_TRANSACTION)) == 2
    assert len(shards.of(RowKind.OPEN_GROUP)) == 1  # the other lives elsewhere


def test_a_transaction_without_anybody_is_open_and_ends() -> None:
    shards = Shards()
    pid = shards.init().number
    assert shards.enlist(pid, 0).code == NONE
    assert shards.row().state == ONGOING
    assert shards.end(pid, 0).code == NONE
    shards.finish()
    assert shards.row().state == COMPLETED[True]


def test_asking_only_whether_all_take_part() -> None:
    shards = Shards()
    pid, epoch, number = shards.open(shards.keys[0])
    mine, other = Participant(0, shards.keys[0]), Participant(0, group="g")
    before = dict(shards.all[0].kv.rows)
    assert shards.enlist(pid, epoch, mine, version=ASKS_ONLY)[:2] == (NONE, number)
    for asked in ((other,), (mine, other)):
        code = shards.enlist(pid, epoch, *asked, version=ASKS_ONLY).code
        assert code == Code.TRANSACTION_ABORTABLE
    assert shards.all[0].kv.rows == before
    shards.end(pid, epoch)
    shards.finish()
    code = shards.enlist(pid, epoch, mine, version=ASKS_ONLY).code
    assert code == Code.TRANSACTION_ABORTABLE


def test_one_participant_too_many_takes_no_part_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would tell it how it ended."""
    monkeypatch.setattr(transaction_fold, "PARTICIPANTS_MAX", 3)
    shards = Shards()
    keys = [shards.make() for _ in range(3)]
    pid, epoch, number = shards.open(keys[0])
    outcome = shards.enlist(
        pid, epoch, *(Participant(0, key) for key in keys), *(Participant(0, group=g) for g in "gh")
    )
    assert (outcome.code, outcome.number) == (INVALID, number)
    listed = shards.listed()
    assert len(listed) == shards.row().participants <= 3
    opened = len(shards.of(RowKind.OPEN_TRANSACTION, RowKind.OPEN_GROUP))
    assert opened == len(listed)
    shards.end(pid, epoch, commit=False)
    shards.finish()
    assert not shards.of(RowKind.OPEN_TRANSACTION, RowKind.OPEN_GROUP, RowKind.PARTICIPANT)


# -- EndTxn


def ends_alike(
    state: TransactionState, version: int, commit: bool, by: int, code: Code, pid: int = PID
) -> None:
    """End it; check that a needless or refused end changes nothing."""
    shards = shards_in(state)
    before = shards.row()
    outcome = shards.end(pid, EPOCH + by, commit=commit, version=version)
    assert outcome.code == code
    if code == NONE:
        assert (outcome.number, outcome.epoch) == (PID, EPOCH)
    assert shards.row() == before


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", list(TransactionState))
def test_ends_without_kip_890(state: TransactionState, commit: bool) -> None:
    for by in (-1, 1, -EPOCH - 1):
        ends_alike(state, 1, commit, by, FENCED)
    ends_alike(state, 1, commit, 0, MAPPING, PID + 1)
    if state == ONGOING:
        shards = shards_in(state)
        outcome = shards.end(PID, EPOCH, commit=commit)
        assert (outcome.code, outcome.number, outcome.epoch) == (NONE, PID, EPOCH)
        row = shards.row()
        assert (row.state, row.ending_epoch, row.marker_epoch) == (PREPARED[commit], EPOCH, EPOCH)
        shards.finish()
        assert (shards.row().state, shards.row().epoch) == (COMPLETED[commit], EPOCH)
    elif state.is_ending:
        ends_alike(state, 1, commit, 0, CONCURRENT)
    else:
        ends_alike(state, 1, commit, 0, NONE if state == COMPLETED[commit] else INVALID)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", list(TransactionState))
def test_ends_with_kip_890(state: TransactionState, commit: bool) -> None:
    for by in (-2, 1, -EPOCH - 1):
        ends_alike(state, 2, commit, by, FENCED)
    ends_alike(state, 2, commit, 0, MAPPING, PID + 1)
    if state.is_ending:
        ends_alike(state, 2, commit, 0, CONCURRENT)
        ends_alike(state, 2, commit, -1, CONCURRENT)
        return
    if state in (EMPTY, ONGOING):
        ends_alike(state, 2, commit, -1, FENCED)
    else:
        ends_alike(state, 2, commit, -1, NONE if state == COMPLETED[commit] else INVALID)
    if state != ONGOING and commit:
        ends_alike(state, 2, commit, 0, INVALID)
        return
    shards = shards_in(state)
    for _ in range(2):  # and said again, with the epoch it had
        outcome = shards.end(PID, EPOCH, commit=commit, version=2)
        assert (outcome.code, outcome.number, outcome.epoch) == (NONE, PID, EPOCH + 1)
        row = shards.row()
        if state == ONGOING and row.state.is_ending:
            ended = row.state, row.ending_epoch, row.marker_epoch
            assert ended == (PREPARED[commit], EPOCH, EPOCH + 1)
            shards.finish()
        row = shards.row()
        assert (row.state, row.epoch) == (COMPLETED[commit], EPOCH + 1)
        assert row.start_ms >= 0


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_does_not_repeat_that_of_who_fenced_it(commit: bool) -> None:
    """Kafka takes it for a repetition, and gives a zombie the epoch of who has fenced it."""
    shards = Shards()
    first = shards.init()
    shards.init()
    shards.enlist(first.number, 1)
    shards.end(first.number, 1, commit=commit)
    shards.finish()
    assert shards.end(first.number, 0, commit=commit, version=2).code == FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_at_the_last_epoch_gives_another_producer_id(commit: bool) -> None:
    shards = shards_in(ONGOING, 32_766)
    outcome = shards.end(PID, 32_766, commit=commit, version=2)
    other = outcome.number
    assert (outcome.code, outcome.epoch) == (NONE, 0)
    assert other != PID
    row = shards.row()
    assert (row.ending_producer_id, row.ending_epoch, row.marker_epoch) == (PID, 32_766, 32_767)
    assert shards.end(PID, 32_766, commit=commit, version=2).code == CONCURRENT
    shards.finish()
    outcome = shards.end(PID, 32_766, commit=commit, version=2)
    assert (outcome.code, outcome.number, outcome.epoch) == (NONE, other, 0)
    assert shards.end(PID, 32_766, commit=not commit, version=2).code == INVALID
    assert shards.end(PID, 32_766, commit=commit).code == MAPPING
    assert shards.enlist(PID, 32_766, version=2).code == MAPPING
    assert shards.enlist(other, 0, version=2).code == NONE


def test_an_abort_of_nothing_at_the_last_epoch_gives_another_producer_id() -> None:
    shards = shards_in(EMPTY, 32_766)
    for _ in range(2):
        outcome = shards.end(PID, 32_766, commit=False, version=2)
        assert (outcome.code, outcome.epoch) == (NONE, 0)
        assert outcome.number == shards.row().producer_id != PID


def test_an_unknown_id_ends_nothing() -> None:
    shards = Shards()
    for version in (1, 2):
        assert shards.end(0, 0, version=version, name="unknown").code == MAPPING


@pytest.mark.parametrize("number", [NUMBER - 1, NUMBER + 1, NO_NUMBER])
@pytest.mark.parametrize("version", [1, 2])
def test_an_end_that_was_taken_for_another_transaction_is_to_be_said_again(
    version: int, number: int
) -> None:
    """Also one that was taken when none was open: it was on its way for long."""
    shards = shards_in(ONGOING)
    assert shards.end(PID, EPOCH, version=version, number=number).code == CONCURRENT
    assert shards.row().state == ONGOING
    assert shards.end(PID, EPOCH, version=version, number=NUMBER).code == NONE


def test_versions_change_between_beginning_and_end() -> None:
    shards, key, pid, epoch = opened()
    shards.append(key, pid, epoch, 0)
    assert shards.end(pid, epoch, version=2).epoch == epoch + 1
    assert shards.finish().marker_epoch == epoch + 1
    shards.enlist(pid, epoch + 1, Participant(0, key), version=2)
    shards.append(key, pid, epoch + 1, 0)
    assert shards.end(pid, epoch + 1, version=1).epoch == epoch + 1
    assert shards.finish().marker_epoch == epoch + 1
    assert shards.row().epoch == epoch + 1


# -- timeouts


@pytest.mark.parametrize("version", [1, 2])
def test_a_timeout_aborts_and_fences(version: int) -> None:
    shards = Shards()
    key = shards.keys[0]
    pid, epoch, number = shards.open(key, version=version)
    shards.append(key, pid, epoch, 0)
    late: Any = {"commit": False, "cause": EndCause.TIMEOUT, "version": version}
    for other in (number - 1, number + 1, NO_NUMBER):
        assert shards.end(pid, epoch, number=other, **late).code == INVALID
    assert shards.row().state == ONGOING
    assert shards.end(pid, epoch, number=number, **late).code == NONE
    assert shards.finish().marker_epoch == epoch + 1
    assert shards.end(pid, epoch, number=number, **late).code == INVALID
    row = shards.row()
    assert (row.state, row.epoch) == (COMPLETED[False], epoch + 1)
    assert shards.append(key, pid, epoch, 1).code == Code.INVALID_PRODUCER_EPOCH
    assert shards.enlist(pid, epoch).code == FENCED
    assert shards.end(pid, epoch).code == FENCED
    assert shards.end(pid, epoch, version=2).code == INVALID
    outcome = shards.end(pid, epoch, commit=False, version=2)
    assert (outcome.code, outcome.number, outcome.epoch) == (NONE, pid, epoch + 1)
    outcome = shards.init((pid, epoch))
    assert (outcome.code, outcome.epoch) == (NONE, epoch + 1)
    assert shards.init().epoch == epoch + 2
    assert shards.end(-1, -1, number=number, name="unknown", **late).code == INVALID


def test_an_operator_aborts_a_transaction_by_its_number() -> None:
    shards = Shards()
    pid, epoch, number = shards.open(shards.keys[0])
    operator: Any = {"commit": False, "cause": EndCause.OPERATOR, "name": ""}
    for other in (number - 1, number + 1):
        assert shards.end(pid, epoch, number=other, **operator).code == INVALID
    outcome = shards.end(pid, epoch, number=number, **operator)
    assert (outcome.code, outcome.message) == (NONE, ID)
    assert shards.end(pid, epoch, number=number, **operator).code == INVALID  # it is ending
    assert shards.finish().marker_epoch == epoch + 1
    assert (shards.row().state, shards.row().epoch) == (COMPLETED[False], epoch + 1)
    assert shards.end(pid, epoch, number=number, **operator).code == INVALID
    assert not shards.of(RowKind.PARTICIPANT)


# -- COMPLETE


def test_completing_forgets_lots_and_is_said_any_number_of_times() -> None:
    shards = Shards()
    pid, epoch, number = shards.open()
    parts = [Participant(9, group=str(i)) for i in range(1100)]
    for start in range(0, 1100, 400):
        assert shards.enlist(pid, epoch, *parts[start : start + 400]).number == number
    assert shards.complete(number).code == INVALID  # it is open still
    shards.end(pid, epoch)
    assert shards.complete(number - 1).code == INVALID
    assert shards.complete(number + 1).code == INVALID
    for left in (600, 100):
        assert shards.complete(number)[:2] == (NONE, left)
        assert len(shards.listed()) == left == shards.row().participants
        assert shards.row().state == PREPARED[True]
        assert shards.init().code == CONCURRENT
    assert shards.complete(number)[:2] == (NONE, 0)
    assert not shards.of(RowKind.PARTICIPANT)
    assert shards.row().state == COMPLETED[True]
    assert shards.complete(number).code == INVALID
    assert shards.complete(number, "unknown").code == INVALID


def test_a_late_complete_does_not_complete_the_next() -> None:
    shards = Shards()
    pid, epoch, number = shards.open(shards.keys[0])
    shards.end(pid, epoch)
    shards.finish()
    shards.enlist(pid, epoch, Participant(0, shards.keys[0]))
    shards.end(pid, epoch)
    assert shards.complete(number).code == INVALID
    assert shards.row().state == PREPARED[True]
    assert len(shards.listed()) == 1


# -- what is forgotten


def due(shards: Shards) -> list[tuple[bytes, bytes]]:
    return shards.of(RowKind.TRANSACTION_DUE, RowKind.TRANSACTION_IDLE)


def test_an_id_is_filed_once_where_it_is_due() -> None:
    shards = Shards()
    pid, epoch, number = shards.open(shards.keys[0])
    steps: list[Any] = [
        lambda: None, lambda: shards.end(pid, epoch), lambda: shards.complete(number),
        lambda: shards.init(), lambda: shards.enlist(pid, epoch + 1), lambda: shards.init(),
    ]  # fmt: skip
    kinds = []
    for step in steps:
        step()
        (found,) = due(shards)
        assert found[0] == transaction_rows.transaction_due_key(shards.row(), ID)
        kinds.append(found[0][:1])
    opened, idle = bytes(RowKind.TRANSACTION_DUE), bytes(RowKind.TRANSACTION_IDLE)
    assert kinds == [opened, opened, idle, idle, opened, opened]


@pytest.mark.parametrize("state", list(TransactionState))
def test_an_id_expires_where_it_is_idle_and_was_not_used_since(state: TransactionState) -> None:
    shards = shards_in(state)
    used_ms = shards.row().update_ms

    def expire(at_ms: int, name: str = ID) -> Code:
        return shards.apply(0, ExpireTransaction(name, -1, at_ms).envelope()).code

    assert expire(used_ms - 1) == expire(used_ms + 1) == expire(0, "unknown") == INVALID
    assert expire(used_ms) == (NONE if state.is_idle else INVALID)
    assert bool(due(shards)) == (not state.is_idle)
    if state.is_idle:
        assert shards.enlist(PID, EPOCH).code == MAPPING
        outcome = shards.init((PID, EPOCH))
        assert (outcome.code, outcome.epoch) == (NONE, 0)
        assert outcome.number != PID


# -- found by fresh eyes, on several workers


def test_commands_of_a_deposed_coordinator_change_nothing() -> None:
    """FAULT: one that had stood still fenced the producers of its successor."""
    shards = Shards(shared=True)
    key = shards.keys[0]
    old, new = 5, 6
    shards.apply(0, Claim(old).envelope())

    def sent(writer: int, command: Any) -> Outcome:
        envelope = command.envelope()
        envelope.writer = writer
        return shards.apply(0, envelope)

    made = sent(old, InitProducer(ID, 60_000, -1, -1, 1))
    assert not made.code
    shards.apply(0, Claim(new).envelope())
    before = dict(shards.all[0].kv.rows)
    taking = [Participant(0, key)]
    pid = made.number
    for command in (
        InitProducer(ID, 60_000, -1, -1, 2),
        Enlist(ID, pid, 0, 1, taking, 2),
        End(ID, pid, 0, 2, False, -1, 2),
        End(ID, pid, 0, 2, False, -1, 2, EndCause.TIMEOUT),
    ):
        assert sent(old, command).code == Code.NOT_COORDINATOR
    assert shards.all[0].kv.rows == before
    assert not sent(old, Enlist(ID, pid, 0, 2, taking, 2)).code, "by KIP-890 anybody asks"
    assert not sent(new, InitProducer("other", 60_000, -1, -1, 2)).code


def test_a_transaction_times_out_by_its_coordinators_clock() -> None:
    """FAULT: the clock of the worker that asked counted."""
    shards = Shards()
    made = shards.init()
    hour_ms = 3_600_000
    enlist = Enlist(ID, made.number, 0, 2, [Participant(0, shards.keys[0])], 1)
    number = shards.apply(0, enlist.envelope()).number
    told = enlist._replace(version=SETS_CLOCK, participants=(), time_ms=hour_ms)
    assert shards.apply(0, told.envelope()).number == number
    assert shards.row().start_ms == hour_ms
    assert shards.row().version == 2
    assert len(shards.of(RowKind.TRANSACTION_DUE)) == 1
    shards.end(made.number, 0, version=2)
    shards.finish()
    before = shards.row()
    shards.apply(0, told._replace(epoch=1).envelope())
    assert shards.row() == before, "nothing is open"
