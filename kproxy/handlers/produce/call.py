"""A Produce on its way: its batches are checked, put in line for their shards, and answered.

It refuses what needs no fold. It appends the rest in the turn in which it takes them, with one
ticket per shard, so appends keep the arrival order of their connection. If a request names a
partition twice, the last records count, as in Kafka; a malformed earlier one makes the partition's
answer an error, as in Kafka.
"""

from collections.abc import Callable
from typing import cast

from kproxy.common.errors import Code, KafkaError
from kproxy.delays.splitting import Split
from kproxy.handlers.common import enlisting
from kproxy.handlers.common.needs import ProduceNeeds
from kproxy.handlers.produce import delaying
from kproxy.handlers.produce.conditions import Conditional
from kproxy.handlers.produce.expired import note_expired
from kproxy.handlers.produce.guard import Guard, find_or_make
from kproxy.handlers.produce.inspection import (
    Found,
    Inspected,
    is_read_at_once,
    may_be_too_large,
    read_at_once,
)
from kproxy.handlers.produce.transactions import Refusals, takes_part
from kproxy.metadata.queue_settings import QueueSettings, settings_of
from kproxy.protocol.batch import (
    HEADER_BYTES,
    TRANSACTIONAL,
    ZSTD_FROM,
    BadBatch,
    BatchHeader,
    Records,
    check,
    read_header,
    stamped,
)
from kproxy.protocol.produce_request import ProduceRequest, Topic
from kproxy.protocol.responses import PRODUCE_TOPIC_IDS, Produced, produce_body
from kproxy.security.quotas import NO_LIMIT, Mutations
from kproxy.shard.appends import TICKET_MAX, Appends
from kproxy.shard.shard import Shard
from kproxy.virtual import producers
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.levels import PRODUCERS_FROM
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import INTERNAL_TOPICS
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.rows.routes import route_in
from kproxy.virtual.types import PartitionKey, QueueId

BATCHES_AT_ONCE = TICKET_MAX  # taken in one turn of the loop
_NOT_ANSWERED = Produced(-1, Code.KAFKA_STORAGE_ERROR)
_LAGS = (
    "too much of this entrance is not passed on yet: try again, or raise its kproxy.route.lag.max"
)
_NO_ID = "the request names no transactional id"
_THROTTLE_MS_MAX = 1000
_NAMED = 8


class NotReady(Exception):
    """A batch that needs something done before it is taken: `handle` does it.

    Its queue's settings ask for a look at its records, or its partition does not take part yet in
    the transaction that it is for.
    """


_Checked = tuple[Records, BatchHeader, bool, Split | Conditional | None, bool]
"""A batch that may be appended, its header, whether it is as it was sent, what its records say, and
whether any of it waits. A plain tuple: one is made for each batch.
"""


class ProduceCall:
    """One Produce request on its way: what was refused at once, and what waits for the log."""

    def __init__(
        self,
        worker: ProduceNeeds,
        version: int,
        request: ProduceRequest,
        inspected: Inspected | None = None,
        refusals: Refusals | None = None,
        guard: Guard | None = None,
        mutations: Mutations = NO_LIMIT,
        orphaned: bool = False,
    ) -> None:
        """Begin a request; `inspected`: what was found inside of batches, None if not looked at.

        `refusals`: partitions that cannot take part in a transaction, None where nobody has asked.
        `guard`: None where the client may do anything. `orphaned`: a batch is transactional, and
        the request names no transactional id: Kafka then refuses all of it.
        """
        self._orphaned = orphaned
        self._inspected = inspected
        self._refusals = refusals
        self._mutations = mutations
        self._worker = worker
        self._version = version
        self._check_ms = worker.config.retention_check_ms
        self._now_ms = worker.now_ms()
        self._came_ms = self._now_ms if worker.level.value >= PRODUCERS_FROM else 0
        self._acks = request.acks
        self._by_id = version >= PRODUCE_TOPIC_IDS
        self._topics: list[tuple[str | bytes, list[Produced]]] = []
        self._waiting: list[tuple[list[Produced], int, int]] = []  # answers, slot, index
        self._appends = Appends()
        self._throttle_ms = 0
        self._read = 0  # bytes of batches that were looked into at once
        self._transactional_id = request.transactional_id
        self._transactional: set[int] = set()  # which of those that wait are transactional
        self._guard = guard
        self._compacted: list[tuple[Shard, PartitionKey]] = []  # partitions that get something

    def send(self) -> None:
        """Put what was taken in line."""
        self._appends.send()
        if self._compacted:
            self._appends.add_done_callback(self._note_compacted)

    def _note_compacted(self) -> None:
        """Tell the compactors, now that it is there: a look before that would find nothing."""
        for shard, key in self._compacted:
            shard.note_uncompacted(key)
        self._compacted.clear()

    def take(self, topic: Topic, start: int = 0) -> None:
        """Take a topic's partitions from `start` on, as many as are taken in one turn."""
        name, partitions = topic
        if not start:
            self._topics.append((name, []))
        answers = self._topics[-1][1]
        some = partitions[start : start + BATCHES_AT_ONCE]
        if self._orphaned:
            code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            answers += [Produced(index, code, message=_NO_ID) for index, _ in some]
            return
        if self._guard is not None and (code := self._guard.fault(name)):
            answers += [Produced(index, code) for index, _ in some]
            return
        if self._acks not in (-1, 0, 1):
            answers += [Produced(index, Code.INVALID_REQUIRED_ACKS) for index, _ in some]
            return
        if not some:
            return  # it names no partition: nothing is made for it
        queue: Queue | None
        if isinstance(name, bytes):
            queue = self._worker.catalogue.find_id(QueueId(name))
            absent = Code.UNKNOWN_TOPIC_ID
        else:
            queue, absent = find_or_make(self._worker, name, self._guard, self._mutations)
        if (name if queue is None else queue.name) in INTERNAL_TOPICS:
            answers += [Produced(index, Code.INVALID_TOPIC_EXCEPTION) for index, _ in some]
            return
        for index, records in some:
            if queue is None or not 0 <= index < queue.partitions:
                missing = absent if queue is None else Code.UNKNOWN_TOPIC_OR_PARTITION
                answers.append(Produced(index, missing))
            else:
                self._take_batch(queue, index, records, answers)

    def _take_batch(
        self, queue: Queue, index: int, records: Records | None, answers: list[Produced]
    ) -> None:
        settings, key = settings_of(queue.configs), (queue.queue_id, index)
        try:
            batch, header, as_sent, said, delayed = self._checked(queue, index, settings, records)
        except BadBatch as error:
            answers.append(_refused(index, error))
            return
        try:
            shard = self._worker.shard(queue.name, index)
        except KafkaError as error:
            self._note_refused(key, header)
            answers.append(Produced(index, error.code))
            return
        answer = self._answered_at_once(shard, key, settings, header)
        if answer is not None:
            answers.append(answer)
            return
        if isinstance(batch, memoryview) and 2 * len(batch) < len(cast(bytes, batch.obj)):
            batch = bytes(batch)  # it is not to hold all of the frame that it came in
        look_ms = settings.look_at_ms(header.max_timestamp, self._now_ms, self._check_ms)
        if 0 <= header.max_timestamp < self._now_ms - settings.expires_after_ms and not delayed:
            note_expired(self._worker, shard, queue, key, header)
        if isinstance(said, Conditional):
            envelope = said._replace(batch=batch).envelope(key, look_ms, self._came_ms)
        elif delayed:
            try:
                envelope = delaying.later(
                    self._worker, shard, key, settings, batch, header, said, self._now_ms,
                    look_ms,
                )  # fmt: skip
            except BadBatch as error:
                answers.append(_refused(index, error))
                return
        else:
            envelope = Envelope(
                Kind.APPEND, queue.queue_id, index, number=look_ms, time_ms=self._came_ms,
                body=batch,
            )  # fmt: skip
            if as_sent:
                envelope.header = header
        if header.attributes & TRANSACTIONAL and header.producer_id >= 0:
            self._transactional.add(len(self._waiting))
        self._waiting.append((answers, len(answers), index))
        answers.append(_NOT_ANSWERED)
        self._appends.add(shard, envelope)
        counters = self._worker.counters
        counters.produced_bytes += len(batch)
        counters.produced_records += header.last_offset_delta + 1
        if settings.compacted:
            self._compacted.append((shard, key))

    def _checked(
        self, queue: Queue, index: int, settings: QueueSettings, records: Records | None
    ) -> _Checked:
        """Return a batch as its queue's settings have it. Raise BadBatch; NotReady."""
        said: Split | Conditional | None = None
        delayed, version = False, self._version
        bounded = settings.bounds_records
        if settings.inspects or (bounded and may_be_too_large(settings, records)):
            if self._inspected is None and is_read_at_once(settings, records, self._read):
                self._read += len(records or b"")
                said = read_at_once(self._worker, settings, records, version)
            else:
                found = self._looked_into(queue, index, records)
                if isinstance(found, Split | Conditional):
                    said, records = found, found.batch
                else:
                    records = found
            version = max(version, ZSTD_FROM)  # packed, perhaps as its client could not
        header = check(records, self._worker.batch_limits.of(settings), version)
        assert records is not None
        batch = self._stamped(settings, header, records)
        if settings.delay is not None:
            delayed = delaying.waits(settings, header, said)
        return batch, header, batch is records, said, delayed

    def _answered_at_once(
        self, shard: Shard, key: PartitionKey, settings: QueueSettings, header: BatchHeader
    ) -> Produced | None:
        """Return the answer for a batch that is refused, or was appended before. Raise NotReady."""
        refused, index = self._worker.refused_batches, key[1]
        if shard.refused_some or refused.refused or refused.shards:
            now = self._worker.clock.monotonic()
            if refused.comes_too_early(shard, key, header, now):
                return Produced(index, Code.NOT_LEADER_OR_FOLLOWER)
        if settings.route_lag_max is not None and self._lags(shard, key, settings.route_lag_max):
            self._note_refused(key, header)
            return Produced(index, Code.NOT_ENOUGH_REPLICAS, message=_LAGS)
        if header.producer_id < 0:
            return None
        if header.attributes & TRANSACTIONAL:
            fault = self._transaction_fault(shard, key, header)
            return Produced(index, fault) if fault else None
        if (row := shard.state.partition(key)) is None:
            return None
        known = producers.find(shard.state, key, row, header.producer_id)
        sent = producers.repeated(known, header)
        if sent is None:
            return None
        # It is applied, and so durable: nothing to append.
        return Produced(index, 0, sent.base_offset, sent.time_ms, row.log_start)

    def _note_refused(self, key: PartitionKey, header: BatchHeader) -> None:
        """Note a batch to be sent again: none that its producer sent behind it comes before."""
        self._worker.refused_batches.note(key, header, self._worker.clock.monotonic())

    def _lags(self, shard: Shard, key: PartitionKey, lag_max: int) -> bool:
        """Return whether an entrance has too much that is not passed on; throttle from half of it.

        Records that wait for a transaction's end are not counted: it could not come to its end.
        """
        row = shard.state.partition(key)
        route = route_in(shard.state.get, key, key[0])
        if row is None or route is None:
            return False
        lag = row.last_stable - max(route.landed, row.log_start)
        if 2 * lag > lag_max:
            share = min(1.0, 2 * lag / lag_max - 1)
            self._throttle_ms = max(self._throttle_ms, int(_THROTTLE_MS_MAX * share))
        return lag >= lag_max

    def _looked_into(self, queue: Queue, index: int, records: Records | None) -> Found | None:
        """Look into a batch. Raise BadBatch; NotReady."""
        if self._inspected is None:
            raise NotReady
        key = (queue.queue_id, index)
        if key not in self._inspected:  # its settings have changed since: it is sent again
            if records is not None and len(records) >= HEADER_BYTES:
                self._note_refused(key, read_header(records))
            raise BadBatch(Code.NOT_LEADER_OR_FOLLOWER, "the queue's settings have just changed")
        found = self._inspected[key]
        if isinstance(found, BadBatch):
            raise found
        return found

    def _transaction_fault(self, shard: Shard, key: PartitionKey, header: BatchHeader) -> Code:
        """Return why a partition takes no part. Raise NotReady: the coordinator is to say it."""
        assert self._transactional_id is not None
        if takes_part(shard, key, header, self._transactional_id, self._version):
            return Code.NONE
        if self._refusals is None:
            raise NotReady
        return self._refusals.get(key, Code.NONE)

    def _stamped(self, settings: QueueSettings, header: BatchHeader, records: Records) -> Records:
        if header.attributes & TRANSACTIONAL and not self._transactional_id:
            raise BadBatch(Code.INVALID_REQUEST, "the transactional id is empty")
        now_ms, ahead_ms = self._now_ms, settings.demands.after_max_ms
        if settings.demands.log_append_time:
            return stamped(records, now_ms)
        if header.max_timestamp - now_ms > ahead_ms:
            raise BadBatch(
                Code.INVALID_TIMESTAMP,
                f"a timestamp lies more than {ahead_ms} ms in the future"
                " (message.timestamp.after.max.ms)",
            )
        return stamped(records, None) if header.is_log_append_time else records

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back when all of it is durable or refused, and `body` can be had."""
        if self._waiting:
            self._appends.add_done_callback(callback)
        else:
            callback()

    def body(self) -> bytes | None:
        """Return the response body, or None if acks=0 asks for none.

        Raise KafkaError if acks=0 hides a failure: Kafka then closes the connection.
        """
        if self._waiting:
            self._settle(self._appends.results())
        if self._acks == 0:
            for _, answers in self._topics:
                for answer in answers:
                    if answer.code:
                        raise KafkaError(Code(answer.code), "a produce with acks=0 failed")
            return None
        return produce_body(self._version, self._topics, len(self._topics), self._throttle_ms)

    @property
    def silent(self) -> bool:
        """Whether it has no answer."""
        return self._acks == 0

    def throttle(self, wait_ms: int) -> None:
        """Tell the client to wait."""
        self._throttle_ms = max(self._throttle_ms, wait_ms)

    def queues(self) -> list[str | bytes]:
        """Return the first few queues that it names, by name or id."""
        return [name for name, _ in self._topics[:_NAMED]]

    @property
    def code(self) -> int:
        """The first error of `body`, or 0. Most requests name one partition."""
        topics = self._topics
        if len(topics) == 1 and len(answers := topics[0][1]) == 1:
            return answers[0].code
        return next((one.code for _, answers in topics for one in answers if one.code), 0)

    def _settle(self, outcomes: list[Outcome]) -> None:
        for number in self._transactional:
            if outcomes[number].code == Code.INVALID_TXN_STATE:
                code = enlisting.code_of_produce(Code.TRANSACTION_ABORTABLE, self._version)
                outcomes[number] = Outcome(code)
        unknown = Code.UNKNOWN_TOPIC_ID if self._by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
        for (answers, slot, index), outcome in zip(self._waiting, outcomes, strict=True):
            code = unknown if outcome.code == Code.UNKNOWN_TOPIC_ID else outcome.code
            if outcome.message is not None and code == Code.INVALID_RECORD:
                self._worker.counters.appends_refused += 1
            answers[slot] = Produced(
                index, code, outcome.number, outcome.time_ms, outcome.log_start, outcome.message
            )


def _refused(index: int, error: BadBatch) -> Produced:
    return Produced(index, error.code, message=str(error), blamed=error.blamed)
