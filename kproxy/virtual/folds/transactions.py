"""The fold's part for coordinators of transactions: who has which epoch, what is open, how it ends.

The decisions and codes are those of Kafka (`TransactionCoordinator`, `TransactionMetadata`; KIP-98,
KIP-360, KIP-890). Everything is decided here, in log order; a worker that drives a transaction on
only appends what the rows say, so two of them do no harm.
"""

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.restore import Restored
from kproxy.virtual.commands.transactions import (
    ASKS_ONLY,
    NAMED_MAX,
    SETS_CLOCK,
    Begin,
    Complete,
    End,
    EndCause,
    Enlist,
    ExpireTransaction,
    InitProducer,
)
from kproxy.virtual.folds.moved_start import MovedStart
from kproxy.virtual.folds.participants import ParticipantFold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import (
    EPOCH_LAST,
    PARTICIPANTS,
    RESTORED_KEY,
    TRANSACTION_NUMBERS,
    TRANSACTIONS,
    Participant,
    Transaction,
    TransactionState,
)
from kproxy.virtual.schema import decode_count, encode_count
from kproxy.virtual.state import State
from kproxy.virtual.types import ShardId

PARTICIPANTS_MAX = 100_000
"""Partitions and groups in one transaction."""
_ROWS_AT_ONCE = 500
_EMPTY, _ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
_COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
_PREPARE = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}


class TransactionFold:
    """The application of a coordinator's commands to its shard's state."""

    def __init__(
        self, state: State, shard: ShardId, shards: int, participants: ParticipantFold
    ) -> None:
        self._state = state
        self._shard = shard
        self._shards = shards
        self._participants = participants
        self._forgetting = MovedStart(state)
        self._restored_at: int | None = None  # not looked at yet

    def _row(self, transactional_id: str) -> Transaction | None:
        return self._state.row(TRANSACTIONS, transactional_id)

    def _put(self, transactional_id: str, before: Transaction | None, after: Transaction) -> None:
        due = transaction_rows.transaction_due_key(after, transactional_id)
        if before is not None:
            due_before = transaction_rows.transaction_due_key(before, transactional_id)
            if due_before != due:
                self._state.put(due_before, None)
        self._state.file(due)
        self._state.put_row(TRANSACTIONS, after, transactional_id)

    def allocate(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        return Outcome(Code.NONE, self._new_producer_id(log_offset))

    def _new_producer_id(self, log_offset: int) -> int:
        """Return an id that is unique for ever: no two commands share shard and log offset."""
        return log_offset * self._shards + self._shard

    # -- after a restore

    def restored(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Abort all that is open after a restore. `_is_lost` says what becomes of producer ids."""
        time_ms = Restored.decode(envelope).time_ms
        self._restored_at = log_offset
        restored = encode_count(log_offset)
        self._state.put(RESTORED_KEY, restored)
        start, end = RowKind.TRANSACTION.range()
        while found := self._state.some(start, end, _ROWS_AT_ONCE):
            for key, data in found:
                row = TRANSACTIONS.decode(data)
                if row.state == _ONGOING:
                    name = TRANSACTIONS.parts(key)[0]
                    self._put(name, row, self._fenced(log_offset, row, time_ms))
            start = found[-1][0] + b"\0"
        return Outcome(Code.NONE, log_offset)

    def _is_lost(self, row: Transaction) -> bool:
        """Return whether more epochs of this id may have been given out than are known here."""
        if self._restored_at is None:
            data = self._state.get(RESTORED_KEY)
            self._restored_at = 0 if data is None else decode_count(data)
        return row.producer_id < self._restored_at * self._shards

    # -- the right to write

    def init(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Give a producer its id and epoch. The epoch is in the outcome. CONCURRENT_TRANSACTIONS:
        what was open is being aborted."""
        if not self._state.is_owners(envelope):
            return Outcome(Code.NOT_COORDINATOR)
        asked = InitProducer.decode(envelope)
        name, timeout_ms, time_ms = asked.transactional_id, asked.timeout_ms, asked.time_ms
        expected_id, expected_epoch = asked.expected_id, asked.expected_epoch
        row = self._row(name)
        if row is None:
            made = Transaction(
                self._new_producer_id(log_offset), timeout_ms=timeout_ms, update_ms=time_ms
            )
            self._put(name, None, made)
            return Outcome(Code.NONE, made.producer_id, epoch=made.epoch)
        expects = expected_id >= 0
        over_rotation = expected_id == row.previous_producer_id and expected_epoch >= EPOCH_LAST
        lost = self._is_lost(row)
        if expects and (lost or (expected_id != row.producer_id and not over_rotation)):
            return Outcome(Code.PRODUCER_FENCED)
        if row.state.is_ending:
            return Outcome(Code.CONCURRENT_TRANSACTIONS)
        if row.state == _ONGOING:
            self._put(name, row, self._fenced(log_offset, row, time_ms))
            return Outcome(Code.CONCURRENT_TRANSACTIONS)
        after = row._replace(
            timeout_ms=timeout_ms, state=_EMPTY, start_ms=-1, update_ms=time_ms, participants=0
        )
        if lost:
            new_id = self._new_producer_id(log_offset)
            after = after._replace(
                producer_id=new_id, previous_producer_id=-1, epoch=0, last_epoch=-1
            )
        elif row.epoch >= EPOCH_LAST and (not expects or expected_epoch == row.epoch):
            after = after._replace(
                producer_id=self._new_producer_id(log_offset),
                previous_producer_id=row.producer_id,
                epoch=0,
                last_epoch=row.epoch if expects else -1,
            )
        elif not expects or expected_epoch == row.epoch:
            after = after._replace(epoch=row.epoch + 1, last_epoch=row.epoch if expects else -1)
        elif expected_epoch != row.last_epoch:
            return Outcome(Code.PRODUCER_FENCED)
        self._put(name, row, after)
        return Outcome(Code.NONE, after.producer_id, epoch=after.epoch)

    def _fenced(self, log_offset: int, row: Transaction, time_ms: int) -> Transaction:
        """Abort what is open; a holder of its epoch can go on only by INIT_PRODUCER."""
        aborting = row._replace(
            state=TransactionState.PREPARE_ABORT, update_ms=time_ms,
            ending_producer_id=row.producer_id, ending_epoch=row.epoch,
        )  # fmt: skip
        return self._bumped(log_offset, aborting)

    # -- the participants

    def enlist(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Enlist participants. The outcome's number is the transaction's."""
        asked = Enlist.decode(envelope)
        if asked.version in (1, SETS_CLOCK) and not self._state.is_owners(envelope):
            return Outcome(Code.NOT_COORDINATOR)
        row = self._row(asked.transactional_id)
        if row is None or row.producer_id != asked.producer_id:
            return Outcome(Code.INVALID_PRODUCER_ID_MAPPING)
        if row.epoch != asked.epoch or self._is_lost(row):
            return Outcome(Code.PRODUCER_FENCED)
        if row.state.is_ending:
            return Outcome(Code.CONCURRENT_TRANSACTIONS)
        opened = row.state == _ONGOING
        number = row.number if opened else log_offset
        state, added = self._state, 0
        if asked.version == SETS_CLOCK:
            if opened:
                after = row._replace(start_ms=asked.time_ms, update_ms=asked.time_ms)
                self._put(asked.transactional_id, row, after)
            return Outcome(Code.NONE, number)
        if asked.version == ASKS_ONLY:
            keys = [transaction_rows.participant_key(number, one) for one in asked.participants]
            taken = opened and all(state.get(key) is not None for key in keys)
            return Outcome(Code.NONE if taken else Code.TRANSACTION_ABORTABLE, number)
        listed, code = [], Code.NONE
        for participant in dict.fromkeys(asked.participants):
            key = transaction_rows.participant_key(number, participant)
            if not opened or state.get(key) is None:
                if row.participants * opened + added >= PARTICIPANTS_MAX:
                    code = Code.INVALID_TXN_STATE
                    continue
                state.put(key, b"")
                added += 1
            listed.append(participant)
        self._enlisted(asked, row, number, added)
        self._begin_here(asked, number, listed)
        message = f"a transaction takes {PARTICIPANTS_MAX} partitions at most" if code else None
        return Outcome(code, number, message=message)

    def _enlisted(self, asked: Enlist, row: Transaction, number: int, added: int) -> None:
        opened = row.state == _ONGOING
        if not opened:
            key = TRANSACTION_NUMBERS.key(number)
            self._state.put(key, asked.transactional_id.encode())
        if added or not opened:
            after = row._replace(
                state=_ONGOING, version=asked.version,
                start_ms=row.start_ms if opened else asked.time_ms, update_ms=asked.time_ms,
                number=number, participants=row.participants * opened + added,
            )  # fmt: skip
            self._put(asked.transactional_id, row, after)

    def _begin_here(self, asked: Enlist, number: int, listed: list[Participant]) -> None:
        """Begin at once in this shard: an unlisted participant would not be told of the end."""
        mine = [one for one in listed if one.shard == self._shard]
        if mine:
            begin = Begin(
                asked.producer_id, asked.epoch, asked.version, number,
                transaction_rows.tag_of(asked.transactional_id),
                [one.key for one in mine if one.key is not None],
                [one.group for one in mine if one.key is None], asked.time_ms,
            )  # fmt: skip
            self._participants.take_part(begin)

    # -- the end

    def end(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """End a transaction. The outcome has the id and epoch that the producer goes on with.

        Its code is NONE where the end is decided, now or by an earlier request that this repeats.
        """
        asked = End.decode(envelope)
        if asked.cause == EndCause.OPERATOR:
            return self._end_by_number(log_offset, asked)
        if not self._state.is_owners(envelope):
            return Outcome(Code.NOT_COORDINATOR)
        row = self._row(asked.transactional_id)
        if asked.cause == EndCause.TIMEOUT:
            return self._end_late(log_offset, asked, row)
        if row is None:
            return Outcome(Code.INVALID_PRODUCER_ID_MAPPING)
        code = self._end_fault(asked, row)
        if asked.producer_id == row.producer_id and self._is_lost(row):
            code = Code.PRODUCER_FENCED
        if code is not None:
            return Outcome(code, row.producer_id, epoch=row.epoch)
        if row.state == _ONGOING:
            after = row._replace(
                state=_PREPARE[asked.commit], version=asked.version, update_ms=asked.time_ms,
                ending_producer_id=row.producer_id, ending_epoch=row.epoch, marker_epoch=row.epoch,
            )  # fmt: skip
        else:  # an abort of nothing, which bumps the epoch
            after = row._replace(
                state=_COMPLETE[False], version=asked.version, start_ms=asked.time_ms,
                update_ms=asked.time_ms, participants=0,
            )  # fmt: skip
        if asked.version >= 2:
            after = self._bumped(log_offset, after)
        self._put(asked.transactional_id, row, after)
        return Outcome(Code.NONE, after.producer_id, epoch=after.epoch)

    def _bumped(self, log_offset: int, row: Transaction) -> Transaction:
        bumped = row._replace(marker_epoch=row.epoch + 1, last_epoch=row.epoch)
        if row.epoch < EPOCH_LAST:
            return bumped._replace(epoch=row.epoch + 1)
        return bumped._replace(
            producer_id=self._new_producer_id(log_offset),
            previous_producer_id=row.producer_id,
            epoch=0,
        )

    def _end_late(self, log_offset: int, asked: End, row: Transaction | None) -> Outcome:
        """End one that was open for too long, if it still is the one that was looked at."""
        if row is None or row.state != _ONGOING or row.number != asked.number:
            return Outcome(Code.INVALID_TXN_STATE)
        self._put(asked.transactional_id, row, self._fenced(log_offset, row, asked.time_ms))
        return Outcome(Code.NONE, row.producer_id, epoch=row.epoch)

    def _end_by_number(self, log_offset: int, asked: End) -> Outcome:
        """End one by number; its id is the message. INVALID_TXN_STATE: nobody's, or ending."""
        data = self._state.get(TRANSACTION_NUMBERS.key(asked.number))
        if data is None:
            return Outcome(Code.INVALID_TXN_STATE)
        named = asked._replace(transactional_id=data.decode())
        outcome = self._end_late(log_offset, named, self._row(named.transactional_id))
        return outcome._replace(message=named.transactional_id)

    def _end_fault(self, asked: End, row: Transaction) -> Code | None:
        """Return what EndTxn answers to a request that changes nothing; None: it does."""
        bumps = asked.version >= 2
        over_rotation = (
            asked.producer_id == row.previous_producer_id
            and asked.epoch == EPOCH_LAST
            and row.epoch == 0
        )
        repeats = bumps and (
            over_rotation or (asked.producer_id == row.producer_id and asked.epoch + 1 == row.epoch)
        )
        if asked.producer_id != row.producer_id and not (bumps and over_rotation):
            return Code.INVALID_PRODUCER_ID_MAPPING
        if asked.epoch != row.epoch and not repeats:
            return Code.PRODUCER_FENCED
        if row.state == _ONGOING:
            if repeats:
                return Code.PRODUCER_FENCED
            # It was taken before this one was open, by a late worker: to be asked for again.
            return None if asked.number == row.number else Code.CONCURRENT_TRANSACTIONS
        if row.state.is_ending:
            return Code.CONCURRENT_TRANSACTIONS
        if not bumps:
            same = row.state == _COMPLETE[asked.commit]
            return Code.NONE if same else Code.INVALID_TXN_STATE
        if row.state == _EMPTY:
            if repeats:
                return Code.PRODUCER_FENCED
            return Code.INVALID_TXN_STATE if asked.commit else None
        if repeats:
            if asked.epoch != row.last_epoch:  # a holder of this one got it by INIT_PRODUCER
                return Code.PRODUCER_FENCED
            same = row.state == _COMPLETE[asked.commit]
            return Code.NONE if same else Code.INVALID_TXN_STATE
        return Code.INVALID_TXN_STATE if asked.commit else None

    def complete(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Complete it. The outcome's number: participants that are still to be forgotten."""
        asked = Complete.decode(envelope)
        name, number, time_ms = asked.transactional_id, asked.number, asked.time_ms
        row = self._row(name)
        if row is None or not row.state.is_ending or row.number != number:
            return Outcome(Code.INVALID_TXN_STATE, 0)
        state = self._state
        forgotten = self._forgetting.some(*PARTICIPANTS.range(number), NAMED_MAX)
        for key, _ in forgotten:
            state.put(key, None)
        left = max(0, row.participants - len(forgotten))
        after = row._replace(participants=left)
        if not left:
            state.put(TRANSACTION_NUMBERS.key(number), None)
            commit = row.state == TransactionState.PREPARE_COMMIT
            after = after._replace(state=_COMPLETE[commit], update_ms=time_ms)
        self._put(name, row, after)
        return Outcome(Code.NONE, left)

    # -- forgetting

    def expire(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = ExpireTransaction.decode(envelope)
        name, producer_id, used_ms = asked.transactional_id, asked.producer_id, asked.used_ms
        if not name:
            return self._participants.forget_producer(producer_id, used_ms)
        row = self._row(name)
        if row is None or not row.state.is_idle or row.update_ms != used_ms:
            return Outcome(Code.INVALID_TXN_STATE)
        self._state.put(transaction_rows.transaction_due_key(row, name), None)
        self._state.put(TRANSACTIONS.key(name), None)
        return Outcome(Code.NONE)
