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

import json
from collections.abc import Callable
from dataclasses import replace

from kproxy.common.errors import Code
from kproxy.protocol.batch import TRANSACTIONAL, BatchHeader, read_header
from kproxy.virtual import producers
from kproxy.virtual.commands.envelope import COPIED, Envelope, Kind
from kproxy.virtual.commands.producers import ForgetProducers
from kproxy.virtual.commands.queues import (
    AssignPartitions,
    ConfigureQueue,
    CreateQueue,
    DeleteQueue,
    DropTombstone,
    GrowQueue,
    QueueReady,
)
from kproxy.virtual.commands.records import Compact, Replace, Trim
from kproxy.virtual.commands.routes import DefineRoute
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.folds.access import SecurityFold
from kproxy.virtual.folds.delays import DelayFold
from kproxy.virtual.folds.group_settings import GroupConfigFold
from kproxy.virtual.folds.groups import GroupFold
from kproxy.virtual.folds.participants import ParticipantFold
from kproxy.virtual.folds.routes import (
    FROM,
    FROM_SETTINGS,
    FROM_START,
    RouteFold,
    crowded,
    definitions_between,
    to_tell,
    told_of,
)
from kproxy.virtual.folds.shares import ShareFold
from kproxy.virtual.folds.transactions import TransactionFold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.producers import BatchMetadata
from kproxy.virtual.rows.queues import Batch, Partition, Queue, Term
from kproxy.virtual.rows.routes import EPOCHS_MAX
from kproxy.virtual.state import State
from kproxy.virtual.types import LogOffset, PartitionKey, QueueId, ShardId


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
        state.put(rows.batch_key(*key, last_offset), None)


_NO_QUEUE = Outcome(Code.UNKNOWN_TOPIC_ID)


_Verdict = Code | BatchMetadata | None


class Fold:
    """The application of envelopes of one shard's log to its state."""

    def __init__(self, state: State, shard: ShardId, shards: int, *, shared: bool = False) -> None:
        """Set up; `shared`: others learn of this shard by what is published; note what it needs."""
        self.state = state
        self._shared = shared
        self._shard = shard
        self._shards = shards
        groups = GroupFold(state, alone=shards == 1)
        self._participants = participants = ParticipantFold(state, groups, shared=shared)
        transactions = TransactionFold(state, shard, shards, participants)
        shares = ShareFold(state, groups, shared=shared)
        self._routes = routes = RouteFold(state, shard, shards, shared=shared)
        self._delays = delays = DelayFold(state, participants, shared=shared)
        self._by_kind: dict[int, Callable[[int, Envelope, LogLocation], Outcome]] = {
            Kind.APPEND: self._append,
            Kind.CREATE: self._create,
            Kind.GROW: self._grow,
            Kind.DELETE: self._delete,
            Kind.TRIM: self._trim,
            Kind.FORGET_PRODUCERS: self._forget_producers,
            Kind.COMMIT: groups.commit,
            Kind.DELETE_OFFSETS: groups.delete_offsets,
            Kind.GROUP: groups.change,
            Kind.EXPIRE: groups.expire,
            Kind.DELETE_GROUP: groups.delete,
            Kind.CONFIGURE: self._configure,
            Kind.DROP_TOMBSTONE: self._drop_tombstone,
            Kind.PRODUCER_ID: self._producer_id,
            Kind.COPY: self._copy,
            Kind.REPLACE: self._copy,
            Kind.COMPACT: self._compact,
            Kind.FOREIGN: self._foreign,
            Kind.CLAIM: self._claim,
            Kind.ASSIGN_PARTITIONS: self._assign_partitions,
            Kind.QUEUE_READY: self._queue_ready,
            Kind.INIT_PRODUCER: transactions.init,
            Kind.ENLIST: transactions.enlist,
            Kind.BEGIN: participants.begin,
            Kind.END: transactions.end,
            Kind.MARKER: participants.end,
            Kind.COMPLETE: transactions.complete,
            Kind.TRANSACTION_COMMIT: participants.commit,
            Kind.EXPIRE_TRANSACTION: transactions.expire,
            Kind.RESTORED: transactions.restored,
            Kind.SHARE_SET: shares.set,
            Kind.SHARE: shares.change,
            Kind.SHARE_QUEUES: shares.note_queues,
            Kind.SHARE_LOOK: shares.look,
            Kind.CONFIGURE_GROUP: GroupConfigFold(state).configure,
            Kind.FORWARD: shares.forward,
            Kind.SETTLE_FORWARD: shares.settle,
            Kind.AIM_FORWARD: shares.aim,
            Kind.ROUTE: self._route,
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
        return step(log_offset, envelope, location)

    # -- records

    def _append(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
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
                if self._shared:
                    self.state.put(rows.no_effect_key(log_offset), b"")
                if isinstance(verdict, Code):
                    return Outcome(verdict, log_start=row.log_start)
                return Outcome(Code.NONE, verdict.base_offset, verdict.time_ms, row.log_start)
        base_offset = row.next_offset
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
        batch = rows.encode_batch(
            *location, header.last_offset_delta, log_offset, row.size, header.max_timestamp,
            row.max_time_ms, False,
        )  # fmt: skip
        if row.first_open >= 0:
            batch = rows.with_transaction(batch, header)
        self.state.put(rows.batch_key(*key, last_offset), batch)
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
            if self._shared:  # a rebuild does not judge it again
                self.state.put(rows.no_effect_key(log_offset), b"")
            return _NO_QUEUE
        moved = copied_batch(batch, header, copied_location(location), generation)
        self.state.count_dead(batch)
        self.state.count_live(moved)
        self.state.put(rows.batch_key(*key, last_offset), moved.encode())
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
            self._sweep_later(log_offset, *key)
        return Outcome(Code.NONE, row.log_start)

    def _sweep_later(self, log_offset: int, queue_id: QueueId, partition: int) -> None:
        """Leave a note for the sweeper: partition -1 is a whole queue that is gone."""
        note = json.dumps([queue_id.hex(), partition]).encode()
        key = rows.sweep_key(log_offset) if partition == -1 else rows.trimmed_key(log_offset)
        self.state.file(key, note)

    # -- the life of a queue

    def _mine(self, name: str, partitions: range) -> list[int]:
        """Return which of these partitions of a queue live in this shard."""
        if self._shards == 1:
            return list(partitions)
        home, shards = shard_of(name, self._shards), self._shards
        return [i for i in partitions if (home + i) % shards == self._shard]

    def _route(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Define a route; the outcome's queue is the source.

        POLICY_VIOLATION: it has too many routes. THROTTLING_QUOTA_EXCEEDED: ask again, once more of
        its records are passed on.
        """
        asked = DefineRoute.decode(envelope)
        if asked.waits and self._crowds(log_offset, asked.definer, asked.source, asked.spec):
            return Outcome(Code.THROTTLING_QUOTA_EXCEEDED)
        code = self._define(log_offset, asked)
        return Outcome(code, queue=self.state.queue(asked.source))

    def _crowds(self, log_offset: int, definer: QueueId, source: str, spec: str) -> bool:
        """Return whether partitions here have no room for another epoch of a route."""
        queue = self.state.queue(source)
        if queue is None:
            return False
        mine = self._mine(source, range(queue.wanted))
        return self._routes.crowds(queue.queue_id, mine, {definer: spec.encode()}, log_offset)

    def _define(self, log_offset: int, asked: DefineRoute) -> Code:
        code = self._routes.define(asked)
        source = self.state.queue(asked.source)
        if code == Code.NONE and source is not None:
            self._tell_routes(log_offset, source, asked.waits)
        return code or Code.NONE

    def _tell_routes(self, log_offset: int, queue: Queue, waits: bool = False) -> None:
        """Have all partitions of a queue know the routes from it."""
        mine = self._mine(queue.name, range(queue.wanted))
        routes = self._routes.routes_from(queue.name)
        self._routes.tell(queue.queue_id, mine, routes, log_offset)
        if len(mine) < queue.wanted:
            self._assign_later(log_offset, queue, queue.wanted, waits=waits)

    def _reroute(
        self, log_offset: int, before: Queue | None, after: Queue | None, waits: bool = False
    ) -> Code:
        """Define where records go by a queue's changed settings; those of a deleted one nowhere."""
        queue = after or before
        assert queue is not None
        elsewhere: dict[str, list[object]] = {}
        code = Code.NONE
        from_start = queue.configs.get(FROM_START) == "true"
        for source, spec in definitions_between(before, after).items():
            if source == queue.name and after is None:
                self._routes.forget(source, queue.queue_id)
            elif source == queue.name or self._shards == 1:
                asked = DefineRoute(queue.queue_id, source, spec, from_start, log_offset, waits)
                code = self._define(log_offset, asked) or code
            else:
                elsewhere[source] = [spec, from_start]
        if elsewhere:
            self._assign_later(log_offset, queue, queue.wanted if after else 0, elsewhere, waits)
        return code

    def _put_queue(self, log_offset: int, queue: Queue) -> Outcome:
        """Note a new or changed queue; other shards that hold parts of it are to be told."""
        if queue.wanted > queue.partitions:
            self._assign_later(log_offset, queue, queue.wanted)
        self.state.put_queue(queue)
        self._announce_later(log_offset, queue.name)
        return Outcome(Code.NONE, queue.partitions, queue=queue)

    def _announce_later(self, log_offset: int, name: str) -> None:
        if self._shared:
            self.state.put(rows.announce_key(name), log_offset.to_bytes(8, "big"))

    def _assign_later(
        self, log_offset: int, queue: Queue, partitions: int,
        define: dict[str, list[object]] | None = None, waits: bool = False,
    ) -> None:  # fmt: skip
        """Leave a note of what other shards are to be told: partitions, and routes.

        `define`: routes of this queue, by the names of their sources. `waits`: as in CONFIGURE.
        """
        work: dict[str, object] = {
            "name": queue.name,
            "as_of": log_offset,
            "partitions": partitions,
            "over": queue.wanted,
        }
        key = rows.pending_assignment_key(queue.queue_id)
        if partitions and (routes := self._routes.routes_from(queue.name)):
            work["routes"] = to_tell(routes)
        noted = self.state.get(key)
        before = {} if noted is None else json.loads(noted)
        untold = before.get("define", {})
        if waits or before.get("waits"):
            work["waits"] = True
        if define or untold:
            work["define"] = untold | (define or {})
        self.state.put(key, json.dumps(work).encode())

    def _create(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = CreateQueue.decode(envelope)
        queue_id, name, wanted = asked.queue_id, asked.name, asked.partitions
        existing = self.state.queue(name)
        if existing is not None:
            return Outcome(Code.TOPIC_ALREADY_EXISTS, queue=existing)
        mine = self._mine(name, range(wanted))
        queue = Queue(
            name=name,
            queue_id=queue_id,
            partitions=wanted if len(mine) == wanted else 0,
            wanted=wanted,
            created_at=LogOffset(log_offset),
            changed_at=LogOffset(log_offset),
            configs=asked.configs,
            unasked=asked.unasked,
        )
        refused = self._routes.refusal(None, queue)
        if refused is not None:
            return refused
        self.state.add_partitions(queue_id, mine)
        outcome = self._put_queue(log_offset, queue)
        if asked.configs:
            self._reroute(log_offset, None, queue)
        if self._routes.any_defined and self._routes.routes_from(name):
            self._tell_routes(log_offset, queue)
        return outcome

    def _grow(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = GrowQueue.decode(envelope)
        queue_id, wanted = asked.queue_id, asked.partitions
        queue = self.state.queue_by_id(queue_id)
        if queue is None:
            return _NO_QUEUE
        if wanted <= queue.wanted:
            return Outcome(
                Code.INVALID_PARTITIONS,
                message=f"the queue has {queue.wanted} partitions already",
                queue=queue,
            )
        added = self._mine(queue.name, range(queue.wanted, wanted))
        whole = queue.partitions == queue.wanted and len(added) == wanted - queue.wanted
        grown = replace(
            queue,
            partitions=wanted if whole else queue.partitions,
            wanted=wanted,
            changed_at=LogOffset(log_offset),
        )
        refused = self._routes.refusal(queue, grown)
        if refused is not None:
            return refused
        self.state.add_partitions(queue.queue_id, added)
        outcome = self._put_queue(log_offset, grown)
        if self._routes.any_defined:
            self._tell_routes(log_offset, grown)
        return outcome

    def _configure(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = ConfigureQueue.decode(envelope)
        queue = self.state.queue_by_id(asked.queue_id)
        if queue is None:
            return _NO_QUEUE
        kept = {} if asked.replace_all else dict(queue.configs)
        for name in asked.dropped:
            kept.pop(name, None)
        changed = replace(
            queue, configs=kept | asked.given, changed_at=LogOffset(log_offset), unasked=False
        )
        refused = self._routes.refusal(queue, changed)
        if refused is None and asked.waits:
            refused = self._crowding(log_offset, queue, changed)
        if refused is not None:
            return refused
        for index in self._mine(queue.name, range(queue.wanted)):
            self.state.file(rows.retention_due_key(0, queue.queue_id, index))
            self.state.touched.add((queue.queue_id, index))  # its readers obey settings, too
        outcome = self._put_queue(log_offset, changed)
        self._reroute(log_offset, queue, changed, asked.waits)
        return outcome

    def _crowding(self, log_offset: int, before: Queue, after: Queue) -> Outcome | None:
        """Return why a queue's route is not changed once more; of sources whose home is here."""
        for source, spec in definitions_between(before, after).items():
            if self._crowds(log_offset, after.queue_id, source, spec):
                message = (
                    f"{EPOCHS_MAX} changes of this route wait for records of {source} to be passed"
                    " on: try again once its LAG is less"
                )
                return Outcome(Code.INVALID_CONFIG, message=message, queue=before)
        return None

    def _queue_ready(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = QueueReady.decode(envelope)
        queue_id, as_of, refused = asked.queue_id, asked.as_of, asked.refused
        work = self.state.get(rows.pending_assignment_key(queue_id))
        if work is None or json.loads(work)["as_of"] != as_of:
            return Outcome(Code.NONE)
        self.state.put(rows.pending_assignment_key(queue_id), None)
        queue = self.state.queue_by_id(queue_id)
        if queue is None:
            return Outcome(Code.NONE)
        if refused:
            return self._without_route(log_offset, queue, as_of)
        usable = replace(queue, partitions=queue.wanted, changed_at=LogOffset(log_offset))
        return self._put_queue(log_offset, usable)

    def _without_route(self, log_offset: int, queue: Queue, as_of: int) -> Outcome:
        """Undo a queue's refused route: a new queue goes again, others go without."""
        if queue.created_at == as_of:
            self._drop_queue(log_offset, queue)
        else:
            left = {n: value for n, value in queue.configs.items() if n not in FROM_SETTINGS}
            changed = replace(queue, configs=left, changed_at=LogOffset(log_offset))
            self._put_queue(log_offset, changed)
            self._reroute(log_offset, queue, changed)
        return crowded(queue.configs.get(FROM, ""), queue)

    def _delete(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        queue = self.state.queue_by_id(DeleteQueue.decode(envelope).queue_id)
        if queue is None:
            return _NO_QUEUE
        self._drop_queue(log_offset, queue)
        return Outcome(Code.NONE, queue=queue)

    def _drop_queue(self, log_offset: int, queue: Queue) -> None:
        self.state.drop_queue(queue)
        self._announce_later(log_offset, queue.name)
        mine = self._mine(queue.name, range(queue.wanted))
        for index in mine:
            self.state.drop_partition((queue.queue_id, index))
        self._delays.drop(queue.queue_id, mine)
        self._sweep_later(log_offset, queue.queue_id, -1)
        if len(mine) < queue.wanted:
            self._assign_later(log_offset, queue, 0)
        self._reroute(log_offset, queue, None)

    def _assign_partitions(
        self, log_offset: int, envelope: Envelope, location: LogLocation
    ) -> Outcome:
        asked = AssignPartitions.decode(envelope)
        queue_id, name, partitions = asked.queue_id, asked.name, asked.partitions
        key = rows.assignment_key(queue_id)
        data = self.state.get(key)
        known_as_of, known = (-1, 0) if data is None else rows.decode_assignment(data)
        if asked.as_of <= known_as_of:
            return Outcome(Code.NONE)  # told before, or a late one
        if partitions:
            mine = self._mine(name, range(partitions))
            told = told_of(asked.routes)
            specs = {one.definer: one.spec for one in told}
            if asked.waits and self._routes.crowds(queue_id, mine, specs, asked.as_of, others=b""):
                return Outcome(Code.THROTTLING_QUOTA_EXCEEDED)  # asked again
            self.state.add_partitions(queue_id, self._mine(name, range(known, partitions)))
            self._routes.tell(queue_id, mine, told, asked.as_of)
        else:
            mine = self._mine(name, range(known))
            for index in mine:
                self.state.drop_partition((queue_id, index))
            self._delays.drop(queue_id, mine)
            self._sweep_later(log_offset, queue_id, -1)
            forget_ms = asked.time_ms + rows.TOMBSTONE_KEPT_MS
            self.state.file(rows.retention_due_key(forget_ms, queue_id, rows.TOMBSTONE_INDEX))
        self.state.put(key, rows.encode_assignment(asked.as_of, partitions))
        return Outcome(Code.NONE)

    def _drop_tombstone(
        self, log_offset: int, envelope: Envelope, location: LogLocation
    ) -> Outcome:
        """Drop a tombstone: no late command can bring the deleted queue back any more."""
        key = rows.assignment_key(DropTombstone.decode(envelope).queue_id)
        data = self.state.get(key)
        if data is not None and rows.decode_assignment(data)[1] == 0:
            self.state.put(key, None)
        return Outcome(Code.NONE)

    # -- the shard

    def _foreign(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        return Outcome(Code.INVALID_RECORD)

    def _claim(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        self.state.put(rows.TERM_KEY, Term(log_offset, Claim.decode(envelope).writer).encode())
        return Outcome(Code.NONE, log_offset)

    def _producer_id(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Return a producer id unique for ever: no two commands share shard and log offset."""
        return Outcome(Code.NONE, log_offset * self._shards + self._shard)
