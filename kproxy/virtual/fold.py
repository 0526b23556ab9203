"""The fold, `state = apply(state, offset, envelope)`: the only place where durable state changes.

A shard's log holds envelopes: client batches and commands. The fold applies them one by one, in
log order. It decides here, and nowhere else, which queue offset a batch gets, whether it is a
duplicate, whether a commit rewinds, and whether a group's change still stands. `apply` returns an
`Outcome`, which answers the client.

The fold is deterministic. It reads the envelope, its log offset and the rows, and no clock, no
randomness, and no setting that is not in the log. The same code runs live, on recovery, and on
every other worker that folds the log; so what was answered and what is rebuilt cannot differ. A
time that a decision needs is in the envelope (`time_ms`), put there by the worker that appended
it.

Changes go through `State`, which gathers them until the shard writes them in one atomic step with
the log offset they stand for. A command that comes too late, after a deletion or another decision,
changes nothing and has an outcome that says why.

A release must fold every envelope that an earlier release wrote as that release did: a kind's
number and meaning never change.
"""

from collections.abc import Callable

from kproxy.common.errors import Code
from kproxy.protocol.batch import TRANSACTIONAL, BatchHeader, read_header
from kproxy.virtual import producers
from kproxy.virtual.commands.envelope import COPIED, NUMBERED, Envelope, Kind
from kproxy.virtual.commands.producers import ForgetProducers
from kproxy.virtual.commands.records import EXPECTED, IF_END, AppendIf, Compact, Replace, Trim
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.folds.access import SecurityFold
from kproxy.virtual.folds.delays import DelayFold
from kproxy.virtual.folds.group_settings import GroupConfigFold
from kproxy.virtual.folds.groups import GroupFold
from kproxy.virtual.folds.participants import ParticipantFold
from kproxy.virtual.folds.queues import QueueFold
from kproxy.virtual.folds.routes import RouteFold
from kproxy.virtual.folds.shares import ShareFold
from kproxy.virtual.folds.transactions import TransactionFold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.producers import BatchMetadata
from kproxy.virtual.rows.queues import Partition, Term
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, ShardId


def copied_header(envelope: Envelope) -> BatchHeader:
    """Return the header of the batch that a COPY carries."""
    return read_header(envelope.body, COPIED.size)


def copied_location(location: LogLocation) -> LogLocation:
    """Return where the batch itself lies in a COPY's body."""
    return LogLocation(
        location.segment, location.position + COPIED.size, location.length - COPIED.size
    )


def copied_batch(
    batch: Batch, header: BatchHeader, location: LogLocation, generation: int
) -> Batch:
    """Return the row of a batch that was written again."""
    return batch._replace(
        segment=location.segment, position=location.position, length=location.length,
        max_time_ms=header.max_timestamp, copied=generation + 1, number=0,
    )  # fmt: skip


def remove_batch(state: State, key: PartitionKey, last_offset: int, generation: int) -> None:
    """Take a batch away, if it is there in this generation."""
    batch = state.batch_at(key, last_offset)
    if batch is not None and batch.generation == generation:
        state.count_dead(batch)
        state.put(batch_rows.batch_key(*key, last_offset), None)


_NO_QUEUE = Outcome(Code.UNKNOWN_TOPIC_ID)
PASSED = Outcome(
    Code.REQUEST_TIMED_OUT, message="the cluster has taken a later record of this worker before"
)
"""The outcome of an envelope that the log has twice, or behind what its writer sent later.

Nobody waits for the one of a copy: the first one is answered.
"""

_Verdict = Code | BatchMetadata | None
_Step = Callable[[int, Envelope, LogLocation], Outcome]


def _of_queues(queues: QueueFold) -> dict[int, _Step]:
    return {
        Kind.CREATE: queues.create,
        Kind.GROW: queues.grow,
        Kind.DELETE: queues.delete,
        Kind.EXPIRE_QUEUE: queues.expire,
        Kind.CONFIGURE: queues.configure,
        Kind.DROP_TOMBSTONE: queues.drop_tombstone,
        Kind.ASSIGN_PARTITIONS: queues.assign_partitions,
        Kind.QUEUE_READY: queues.queue_ready,
        Kind.ROUTE: queues.route,
    }


def _of_groups(groups: GroupFold, settings: GroupConfigFold) -> dict[int, _Step]:
    return {
        Kind.COMMIT: groups.commit,
        Kind.DELETE_OFFSETS: groups.delete_offsets,
        Kind.GROUP: groups.change,
        Kind.EXPIRE: groups.expire,
        Kind.DELETE_GROUP: groups.delete,
        Kind.CONFIGURE_GROUP: settings.configure,
    }


def _of_transactions(
    transactions: TransactionFold, participants: ParticipantFold
) -> dict[int, _Step]:
    return {
        Kind.PRODUCER_ID: transactions.allocate,
        Kind.INIT_PRODUCER: transactions.init,
        Kind.ENLIST: transactions.enlist,
        Kind.BEGIN: participants.begin,
        Kind.END: transactions.end,
        Kind.MARKER: participants.end,
        Kind.COMPLETE: transactions.complete,
        Kind.TRANSACTION_COMMIT: participants.commit,
        Kind.EXPIRE_TRANSACTION: transactions.expire,
        Kind.RESTORED: transactions.restored,
    }


def _of_shares(shares: ShareFold) -> dict[int, _Step]:
    return {
        Kind.SHARE_SET: shares.set,
        Kind.SHARE: shares.change,
        Kind.FREE_LANES: shares.free,
        Kind.SHARE_QUEUES: shares.note_queues,
        Kind.SHARE_LOOK: shares.look,
        Kind.FORWARD: shares.forward,
        Kind.SETTLE_FORWARD: shares.settle,
        Kind.AIM_FORWARD: shares.aim,
    }


class Fold:
    """The application of envelopes of one shard's log to its state."""

    def __init__(self, state: State, shard: ShardId, shards: int, *, shared: bool = False) -> None:
        """Set up; `shared`: others learn of this shard by what is published; note what it needs."""
        self.state = state
        self._passed = state.writers.passed
        state.shared = shared
        groups = GroupFold(state, alone=shards == 1)
        self._participants = participants = ParticipantFold(state, groups)
        self._routes = routes = RouteFold(state, shard, shards)
        transactions = TransactionFold(state, shard, shards, participants)
        delays = DelayFold(state, participants)
        self._by_kind: dict[int, _Step] = {
            Kind.APPEND: self._append,
            Kind.APPEND_IF: self._append_if,
            Kind.TRIM: self._trim,
            Kind.FORGET_PRODUCERS: self._forget_producers,
            Kind.COPY: self._copy,
            Kind.REPLACE: self._copy,
            Kind.COMPACT: self._compact,
            Kind.FOREIGN: self._foreign,
            Kind.CLAIM: self._claim,
            **_of_queues(QueueFold(state, shard, shards, routes, delays)),
            **_of_groups(groups, GroupConfigFold(state)),
            **_of_transactions(transactions, participants),
            **_of_shares(ShareFold(state, groups)),
            Kind.CUT: routes.cut,
            Kind.SHIP: routes.ship,
            Kind.FORGET_LANDED: routes.forget_landed,
            Kind.LATER: delays.later,
            Kind.DUE: delays.due,
            Kind.SECURE: SecurityFold(state).change,
        }

    def apply(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Change the state by one envelope. Raise ValueError for a kind of a later kproxy."""
        try:
            step = self._by_kind[envelope.kind]
        except KeyError:
            raise ValueError(
                f"log offset {log_offset} holds kind {envelope.kind}, which this kproxy does not"
                " know: it was written by a later one"
            ) from None
        counter = envelope.counter
        if counter >= NUMBERED and self._passed(envelope.writer, counter, log_offset):
            self.state.void(log_offset)
            return PASSED
        return step(log_offset, envelope, location)

    # -- records

    def _append_if(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Append a batch where its partition ends as expected; a repetition is one all the same."""
        place = location._replace(length=location.length - EXPECTED.size)
        return self._append(log_offset, envelope, place, AppendIf.end_of(envelope))

    def _append(
        self, log_offset: int, envelope: Envelope, location: LogLocation, expected: int = -1
    ) -> Outcome:
        key = (envelope.queue_id, envelope.partition)
        row = self.state.partition(key)
        if row is None:
            return _NO_QUEUE
        header = envelope.header or read_header(envelope.body)
        known = None
        if header.producer_id >= 0:
            known = producers.find(self.state, key, row, header.producer_id)
            verdict = producers.judge(known, header, row, envelope.time_ms)
            if row.first_open >= 0 or header.attributes & TRANSACTIONAL:
                verdict = self._judged_in_transaction(key, row, known, header, verdict)
            if verdict is not None:
                self.state.void(log_offset)
                if isinstance(verdict, Code):
                    return Outcome(verdict, log_start=row.log_start)
                return Outcome(Code.NONE, verdict.base_offset, verdict.time_ms, row.log_start)
        base_offset = row.next_offset
        if 0 <= expected != base_offset:
            self.state.void(log_offset)
            what = f"the partition ends at {base_offset}, not at {expected} ({IF_END})"
            return Outcome(Code.INVALID_RECORD, log_start=row.log_start, message=what)
        if base_offset == row.log_start:
            self.state.file(rows.retention_due_key(envelope.number, *key))  # it has records again
        if header.producer_id >= 0:
            producers.remember(self.state, key, row, known, header, base_offset, envelope.time_ms)
            if header.attributes & TRANSACTIONAL:
                self._participants.note_records(key, row, header, base_offset)
        last_offset = base_offset + header.last_offset_delta
        row.next_offset = last_offset + 1
        row.size += location.length
        if header.max_timestamp > row.max_time_ms:
            row.max_time_ms = header.max_timestamp
            row.max_time_offset = last_offset
        batch = batch_rows.encode_batch(
            *location, header.last_offset_delta, log_offset, row.size, header.max_timestamp,
            row.max_time_ms, False,
        )  # fmt: skip
        if row.first_open >= 0:
            batch = batch_rows.with_transaction(batch, header)
        self.state.put(batch_rows.batch_key(*key, last_offset), batch)
        self.state.put_partition(key, row)
        self.state.count_live(location)
        time_ms = header.max_timestamp if header.is_log_append_time else -1
        return Outcome(Code.NONE, base_offset, time_ms, row.log_start)

    def _forget_producers(
        self, log_offset: int, envelope: Envelope, location: LogLocation
    ) -> Outcome:
        asked = ForgetProducers.decode(envelope)
        key, named = asked.key, asked.producers
        row = self.state.partition(key)
        if row is None:
            return _NO_QUEUE
        return Outcome(Code.NONE, producers.forget(self.state, key, row, named))

    def _judged_in_transaction(
        self,
        key: PartitionKey,
        row: Partition,
        known: bytes | None,
        header: BatchHeader,
        verdict: _Verdict,
    ) -> _Verdict:
        """Return a verdict as `producers.judge` has it. Kafka looks for an open transaction before
        it looks for a repetition and at the sequence: once it has ended, nothing repeats it."""
        if verdict == Code.INVALID_PRODUCER_EPOCH:
            return verdict
        return self._participants.fault(key, row, known, header) or verdict

    def _copy(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Move a live batch that was written again further on: the old place can be freed.

        Or compaction has made it smaller.
        """
        key = (envelope.queue_id, envelope.partition)
        header = copied_header(envelope)
        last_offset = envelope.number + header.last_offset_delta
        row = self.state.partition(key)
        if row is None or last_offset < row.log_start:
            return _NO_QUEUE
        batch = self.state.batch_at(key, last_offset)
        replaced, generation = Replace.generations(envelope)
        if batch is None or batch.generation != replaced:
            self.state.void(log_offset)
            return _NO_QUEUE
        moved = copied_batch(batch, header, copied_location(location), generation)
        self.state.count_dead(batch)
        self.state.count_live(moved)
        self.state.put(batch_rows.batch_key(*key, last_offset), moved.encode())
        self.state.put_partition(key, row)  # its publication has changed
        return Outcome(Code.NONE, envelope.number)

    def _compact(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Drop batches of which compaction leaves nothing; or end a pass of it."""
        queue_id, index, removed, progress = Compact.decode(envelope)
        key = (queue_id, index)
        row = self.state.partition(key)
        if row is None:
            return _NO_QUEUE
        for last_offset, generation in removed:
            remove_batch(self.state, key, last_offset, generation)
            if row.any_aborted:
                self._participants.forget_marker(key, last_offset)
        if progress is not None and progress.clean_end >= self.state.compaction(key).clean_end:
            self.state.put(rows.compaction_key(*key), progress.encode())
        if removed:
            self.state.put_partition(key, row)  # its publication has changed
        return Outcome(Code.NONE)

    def _trim(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = Trim.decode(envelope)
        key, log_start = (asked.queue_id, asked.partition), asked.log_start
        row = self.state.partition(key)
        if row is None:
            return _NO_QUEUE
        start = row.next_offset if log_start == -1 else log_start
        if not 0 <= start <= row.next_offset:
            return Outcome(Code.OFFSET_OUT_OF_RANGE)
        if asked.spares and row.any_routes:
            start = min(start, self._routes.passed_on(key, start))
        if start > row.log_start:
            row.log_start = start
            self.state.put_partition(key, row)
            self.state.sweep_later(log_offset, *key)
        return Outcome(Code.NONE, row.log_start)

    # -- the shard

    def _foreign(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        return Outcome(Code.INVALID_RECORD)

    def _claim(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        self.state.put(rows.TERM_KEY, Term(log_offset, Claim.decode(envelope).writer).encode())
        return Outcome(Code.NONE, log_offset)
