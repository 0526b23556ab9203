"""The fold's part for those who take part in transactions: a shard's partitions and groups.

A BEGIN, or an ENLIST in the coordinator's own shard, opens a transaction in a partition: an
`OpenTransaction` row. A transactional batch needs one of its producer and epoch. A MARKER closes
it; where the transaction has records, it takes an offset in the partition, as a control batch. For
a transaction without records nothing is written, and no offset is taken (Kafka takes one).

A transaction's number tells a late command of an earlier transaction from one of this. A shard's
memory of a producer, `TransactionalProducer`, keeps a late BEGIN from opening what has ended.
"""

from kproxy.common.errors import Code
from kproxy.protocol.batch import CONTROL_BATCH_BYTES, BatchHeader, read_header
from kproxy.virtual import producers
from kproxy.virtual.changes import Keys
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.transactions import Begin, Marker, TransactionCommit
from kproxy.virtual.folds.groups import GroupFold
from kproxy.virtual.folds.open_firsts import OpenFirsts
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.transactions import (
    ABORTED,
    NO_NUMBER,
    OPEN_FIRSTS,
    OPEN_GROUPS,
    OPEN_TRANSACTIONS,
    TRANSACTIONAL_PRODUCERS,
    TRANSACTIONAL_PRODUCERS_DUE,
    Aborted,
    OpenGroup,
    OpenTransaction,
    TransactionalProducer,
)
from kproxy.virtual.schema import encode_count
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_NO_RECORD = -1


class ParticipantFold:
    """The application of transactions to a shard's partitions and groups."""

    def __init__(self, state: State, groups: GroupFold) -> None:
        self._state = state
        self._groups = groups
        self._firsts = OpenFirsts()

    # -- beginning

    def begin(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Begin a transaction here. INVALID_TXN_STATE: it comes too late."""
        return Outcome(self.take_part(Begin.decode(envelope)))

    def take_part(self, asked: Begin) -> Code:
        """Open a transaction in partitions and groups that are there."""
        state = self._state
        producer_id, epoch, version = asked.producer_id, asked.epoch, asked.version
        number, tag = asked.number, asked.tag
        known = self._producer(producer_id)
        if known is not None and (number <= known.closed or epoch < known.least_epoch):
            return Code.INVALID_TXN_STATE
        opened = OpenTransaction(version, _NO_RECORD, epoch, number, tag)
        for key in asked.partitions:
            if state.partition(key) is None:
                continue
            open_before = self.open_of(key, producer_id)
            if open_before is None or open_before.number < number:
                state.put_row(OPEN_TRANSACTIONS, opened, key, producer_id)
            elif open_before.number == number and open_before.version < version:
                raised = open_before._replace(version=version)
                state.put_row(OPEN_TRANSACTIONS, raised, key, producer_id)
        for group in asked.groups:
            before = state.row(OPEN_GROUPS, group, producer_id)
            if before is None or before.number < number:
                waiting = 0 if before is None else before.pending  # none, if all was told in order
                after = OpenGroup(version, epoch, number, waiting, tag)
                state.put_row(OPEN_GROUPS, after, group, producer_id)
            elif before.number == number and before.version < version:
                state.put_row(OPEN_GROUPS, before._replace(version=version), group, producer_id)
        return Code.NONE

    def _producer(self, producer_id: int) -> TransactionalProducer | None:
        return self._state.row(TRANSACTIONAL_PRODUCERS, producer_id)

    # -- records

    def open_of(self, key: PartitionKey, producer_id: int) -> OpenTransaction | None:
        return self._state.row(OPEN_TRANSACTIONS, key, producer_id)

    def fault(
        self, key: PartitionKey, row: Partition, known: bytes | None, header: BatchHeader
    ) -> Code:
        """Return what keeps a batch that is no repetition from the transaction it is for."""
        if not header.is_transactional:
            if row.first_open < 0:
                return Code.NONE
            opened = self.open_of(key, header.producer_id)
            has_records = opened is not None and opened.first_offset >= 0
            return Code.INVALID_TXN_STATE if has_records else Code.NONE
        opened = self.open_of(key, header.producer_id)
        if opened is None or opened.epoch != header.producer_epoch:
            return Code.INVALID_TXN_STATE
        if known is None and opened.version >= 2 and header.base_sequence:
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        return Code.NONE

    def note_records(
        self, key: PartitionKey, row: Partition, header: BatchHeader, base_offset: int
    ) -> None:
        """Note that a transactional batch was taken; `row` is still to be put."""
        producer_id = header.producer_id
        opened = self.open_of(key, producer_id)
        assert opened is not None
        if opened.first_offset < 0:
            state = self._state
            opened = opened._replace(first_offset=base_offset)
            state.put_row(OPEN_TRANSACTIONS, opened, key, producer_id)
            state.put(OPEN_FIRSTS.key(key, base_offset), encode_count(producer_id))
            if row.first_open < 0:
                row.first_open = base_offset
            else:
                self._firsts.begun(key, base_offset)

    # -- the end

    def end(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """End a transaction. The outcome's number: pending offsets left for another MARKER."""
        marker = Marker.decode(envelope)
        header = read_header(marker.batch)
        place = LogLocation(location.segment, location.position, CONTROL_BATCH_BYTES)
        without: list[int] = []
        firsts = self._state.keys_of(RowKind.OPEN_FIRST)
        for number, key in enumerate(marker.partitions):
            if not self._end_in_partition(log_offset, key, marker, header, place, firsts):
                without.append(number)
        if without and self._state.shared:  # a rebuild does not judge it again
            bits = bytearray((len(marker.partitions) + 7) // 8)
            for number in without:
                bits[number >> 3] |= 1 << (number & 7)
            self._state.put(rows.no_effect_key(log_offset), bytes(bits))
        left = sum(self._end_in_group(log_offset, group, marker) for group in marker.groups)
        if not left:
            self._note_ended(marker, header)
        return Outcome(Code.NONE, left)

    def _note_ended(self, marker: Marker, header: BatchHeader) -> None:
        state, producer_id = self._state, marker.producer_id
        before = self._producer(producer_id)
        if before is None:
            state.file(TRANSACTIONAL_PRODUCERS_DUE.key(marker.time_ms, producer_id))
            before = TransactionalProducer(0, -1, 0)
        after = TransactionalProducer(
            max(before.least_epoch, header.producer_epoch),
            max(before.closed, marker.number),
            max(before.used_ms, marker.time_ms),
        )
        if after != before:
            state.put_row(TRANSACTIONAL_PRODUCERS, after, producer_id)

    def _end_in_partition(
        self, log_offset: int, key: PartitionKey, marker: Marker, header: BatchHeader,
        place: LogLocation, firsts: Keys,
    ) -> bool:  # fmt: skip
        """End it in a partition; return whether the marker took an offset. `firsts`: OPEN_FIRST
        keys."""
        state, producer_id = self._state, marker.producer_id
        opened = self.open_of(key, producer_id)
        if opened is None or opened.number != marker.number:
            return False
        state.put(OPEN_TRANSACTIONS.key(key, producer_id), None)
        row = state.partition(key)
        if row is None or opened.first_offset < 0:
            return False
        state.put(OPEN_FIRSTS.key(key, opened.first_offset), None)
        self._firsts.ended(key, opened.first_offset)
        offset = row.next_offset
        state.add_batch(key, row, header, place, log_offset, 0)
        if opened.first_offset == row.first_open:
            row.first_open = self._firsts.following(key, opened.first_offset, firsts)
        if not marker.commit:
            row.any_aborted = True
            aborted = Aborted(producer_id, opened.first_offset, row.last_stable)
            state.put_row(ABORTED, aborted, key, offset)
        producers.fence(state, key, row, producer_id, header.producer_epoch, marker.time_ms)
        return True

    def forget_marker(self, key: PartitionKey, offset: int) -> None:
        """Forget what an abort marker ended: compaction has removed it, and nothing is left."""
        aborted_key = ABORTED.key(key, offset)
        if self._state.get(aborted_key) is not None:
            self._state.put(aborted_key, None)

    # -- groups

    def commit(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Let offsets wait for the end of their transaction; codes as of `GroupFold.commit`."""
        asked = TransactionCommit.decode(envelope)
        state, group = self._state, asked.group
        opened = state.row(OPEN_GROUPS, group, asked.producer_id)
        if opened is None or opened.epoch != asked.epoch:
            return Outcome(Code.INVALID_TXN_STATE)
        if asked.number not in (NO_NUMBER, opened.number):
            return Outcome(Code.INVALID_TXN_STATE)  # it was for an earlier one
        fault = self._groups.commit_fault(group, asked.member, asked.generation)
        if fault:
            return Outcome(fault)
        codes, added = [], 0
        for offset in asked.offsets:
            code = self._groups.pending_fault(group, offset)
            codes.append(code)
            if code:
                continue
            added += self._groups.wait_for_end(log_offset, asked, offset)
        if added:
            opened = opened._replace(pending=opened.pending + added)
            state.put_row(OPEN_GROUPS, opened, group, asked.producer_id)
            state.count_pending(added)
        self._groups.note_commit(log_offset, group, asked.time_ms)
        return Outcome(Code.NONE, codes=tuple(codes))

    def _end_in_group(self, log_offset: int, group: str, marker: Marker) -> int:
        """End it in a group; return how many pending offsets are left there."""
        state, producer_id = self._state, marker.producer_id
        opened = state.row(OPEN_GROUPS, group, producer_id)
        if opened is None or opened.number != marker.number:
            return 0
        settled = self._groups.settle(
            log_offset, group, producer_id, commit=marker.commit, time_ms=marker.time_ms
        )
        left = opened.pending - settled
        if settled:
            state.count_pending(-settled)
        if left <= 0 or not settled:
            state.put(OPEN_GROUPS.key(group, producer_id), None)
            return 0
        state.put_row(OPEN_GROUPS, opened._replace(pending=left), group, producer_id)
        return left

    def forget_producer(self, producer_id: int, used_ms: int) -> Outcome:
        """Forget a producer that was not used for long, if it was not used since."""
        known = self._producer(producer_id)
        if known is None or known.used_ms != used_ms:
            return Outcome(Code.INVALID_TXN_STATE)
        self._state.put(TRANSACTIONAL_PRODUCERS.key(producer_id), None)
        return Outcome(Code.NONE)
