"""Produce (0), versions 3 to 13. ApiVersions names versions 0 to 2 too; they are refused.

The handler refuses what needs no fold. It appends the rest before it returns, with one ticket per
shard, so appends keep the arrival order of their connection. If a request names a partition twice,
the last records count, as in Kafka; a malformed earlier one makes the partition's answer an error,
as in Kafka. A transactional batch whose partition does not take part in its transaction waits for
the coordinator (`handlers.enlisting`).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import cast

from anyio import Event

from kproxy.delays.splitting import Split
from kproxy.errors import Code, KafkaError
from kproxy.handlers import delaying, enlisting
from kproxy.handlers.inspection import Inspected, inspect, is_split_at_once, split_at_once
from kproxy.handlers.produce_guard import Guard
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
from kproxy.protocol.varint import Malformed
from kproxy.security.permits import EVERYTHING, Permits
from kproxy.security.quotas import NO_LIMIT, Mutations
from kproxy.shard.appends import TICKET_MAX, Appends
from kproxy.shard.shard import Shard
from kproxy.virtual import producers, transaction_rows
from kproxy.virtual.envelope import Envelope, Kind
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.route_rows import route_in
from kproxy.virtual.rows import Queue
from kproxy.virtual.transaction_rows import Participant
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.worker import Request, Worker

BATCHES_AT_ONCE = TICKET_MAX  # taken in one turn of the loop
_NOT_ANSWERED = Produced(-1, Code.KAFKA_STORAGE_ERROR)
Refusals = dict[PartitionKey, Code]
_LAGS = (
    "too much of this entrance is not passed on yet: try again, or raise its kproxy.route.lag.max"
)
_THROTTLE_MS_MAX = 1000
_NAMED = 8
_PART_BYTES = 1000  # about what a batch takes beside its bytes, till it is answered


class NotReady(Exception):
    """Something is to be done before a batch is taken: `handle` does it.

    Its queue's settings ask for a look at its records, or its partition does not take part yet in
    the transaction that it is for.
    """


def is_long(request: ProduceRequest) -> bool:
    """Whether to take a request in slices (`handle`): it then overlaps with no other."""
    topics = request.topics
    if len(topics) == 1:
        return len(topics[0].partitions) > BATCHES_AT_ONCE
    if len(topics) > BATCHES_AT_ONCE:
        return True
    return sum(len(topic.partitions) for topic in topics) > BATCHES_AT_ONCE


class ProduceCall:
    """One Produce request on its way: what was refused at once, and what waits for the log."""

    def __init__(
        self,
        worker: Worker,
        version: int,
        request: ProduceRequest,
        inspected: Inspected | None = None,
        refusals: Refusals | None = None,
        permits: Permits = EVERYTHING,
        mutations: Mutations = NO_LIMIT,
    ) -> None:
        """`inspected`: what was found inside of batches, None where nobody has looked yet.

        `refusals`: partitions that cannot take part in a transaction, None where nobody has asked.
        """
        self._inspected = inspected
        self._refusals = refusals
        self._mutations = mutations
        self._worker = worker
        self._version = version
        self._check_ms = worker.config.retention_check_ms
        self._now_ms = worker.now_ms()
        self._acks = request.acks
        self._by_id = version >= PRODUCE_TOPIC_IDS
        self._topics: list[tuple[str | bytes, list[Produced]]] = []
        self._waiting: list[tuple[list[Produced], int, int]] = []  # answers, slot, index
        self._appends = Appends()
        self._throttle_ms = 0
        self._transactional_id = request.transactional_id
        self._transactional: set[int] = set()  # which of those that wait are transactional
        self._guard = None if permits.all else Guard(worker, permits, request)

    def send(self) -> None:
        """Put what was taken in line."""
        self._appends.send()

    def take(self, topic: Topic, start: int = 0) -> None:
        """Take a topic's partitions from `start` on, as many as are taken in one turn."""
        name, partitions = topic
        if not start:
            self._topics.append((name, []))
        answers = self._topics[-1][1]
        some = partitions[start : start + BATCHES_AT_ONCE]
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
            queue, absent = self._by_name(name)
        for index, records in some:
            if queue is None or not 0 <= index < queue.partitions:
                missing = absent if queue is None else Code.UNKNOWN_TOPIC_OR_PARTITION
                answers.append(Produced(index, missing))
            else:
                self._take_batch(queue, index, records, answers)

    def _by_name(self, name: str) -> tuple[Queue | None, Code]:
        catalogue = self._worker.catalogue
        queue = catalogue.find(name)
        if queue is not None or not self._worker.config.auto_create:
            return queue, Code.UNKNOWN_TOPIC_OR_PARTITION
        if self._guard is not None and not self._guard.may_create(name):
            return None, Code.UNKNOWN_TOPIC_OR_PARTITION
        if not self._mutations.take(self._worker.config.partitions_default):
            return None, Code.UNKNOWN_TOPIC_OR_PARTITION
        try:
            return catalogue.create(name)[0], Code.NONE
        except KafkaError as error:
            return None, error.code

    def _take_batch(
        self, queue: Queue, index: int, records: Records | None, answers: list[Produced]
    ) -> None:
        split, delayed = None, False
        try:
            settings = settings_of(queue.configs)
            if settings.inspects:
                if self._inspected is None and is_split_at_once(settings, records):
                    split = split_at_once(self._worker, settings, records, self._version)
                else:
                    found = self._looked_into(queue, index, records)
                    split = found if isinstance(found, Split) else None
                    records = found.batch if isinstance(found, Split) else found
            looked = settings.inspects  # and packed, perhaps as its client could not
            version = max(self._version, ZSTD_FROM) if looked else self._version
            header = check(records, self._worker.max_batch_bytes(settings), version)
            assert records is not None
            batch = self._stamped(settings, header, records)
            if settings.delay is not None:
                delayed = delaying.waits(settings, header, split)
        except BadBatch as error:
            answers.append(_refused(index, error))
            return
        try:
            shard = self._worker.shard(queue.name, index)
        except KafkaError as error:
            self._note_refused((queue.queue_id, index), header)
            answers.append(Produced(index, error.code))
            return
        restamped = batch is not records
        key, state = (queue.queue_id, index), shard.state
        refused = self._worker.refused_batches
        if (shard.refused_some or refused.refused or refused.shards) and self._comes_too_early(
            shard, key, header
        ):
            answers.append(Produced(index, Code.NOT_LEADER_OR_FOLLOWER))
            return
        if settings.route_lag_max is not None and self._lags(shard, key, settings.route_lag_max):
            self._note_refused(key, header)
            answers.append(Produced(index, Code.NOT_ENOUGH_REPLICAS, message=_LAGS))
            return
        transactional = header.attributes & TRANSACTIONAL
        if transactional and header.producer_id >= 0:
            fault = self._transaction_fault(shard, key, header)
            if fault:
                answers.append(Produced(index, fault))
                return
            self._transactional.add(len(self._waiting))
        elif header.producer_id >= 0 and (row := state.partition(key)) is not None:
            sent = producers.repeated(producers.find(state, key, row, header.producer_id), header)
            if sent is not None:  # it is applied, and so durable: nothing to append
                answers.append(Produced(index, 0, sent.base_offset, sent.time_ms, row.log_start))
                return
        if isinstance(batch, memoryview) and 2 * len(batch) < len(cast(bytes, batch.obj)):
            batch = bytes(batch)  # it is not to hold all of the frame that it came in
        look_ms = settings.look_at_ms(header.max_timestamp, self._now_ms, self._check_ms)
        if delayed:
            try:
                envelope = delaying.later(
                    self._worker, shard, key, settings, batch, header, split, self._now_ms, look_ms
                )
            except BadBatch as error:
                answers.append(_refused(index, error))
                return
        else:
            envelope = Envelope(Kind.APPEND, queue.queue_id, index, number=look_ms, body=batch)
            if not restamped:
                envelope.header = header
        self._waiting.append((answers, len(answers), index))
        answers.append(_NOT_ANSWERED)
        self._appends.add(shard, envelope)
        counters = self._worker.counters
        counters.produced_bytes += len(batch)
        counters.produced_records += header.last_offset_delta + 1
        if settings.compacted:
            shard.note_uncompacted(key)

    def _note_refused(self, key: PartitionKey, header: BatchHeader) -> None:
        """A batch is to be sent again: none that its producer has sent behind it comes before."""
        self._worker.refused_batches.note(key, header, self._worker.clock.monotonic())

    def _comes_too_early(self, shard: Shard, key: PartitionKey, header: BatchHeader) -> bool:
        """Whether one before it was refused, and the partition does not know that it lacks one."""
        now, refused = self._worker.clock.monotonic(), self._worker.refused_batches
        if shard.refused_some:
            shard.refused_some = False
            refused.note_shard(shard.shard, now)
        if not (
            refused.holds_back(key, header, now) or refused.may_overtake(shard.shard, header, now)
        ):
            return False
        row = shard.state.partition(key)
        return row is None or producers.find(shard.state, key, row, header.producer_id) is None

    def _lags(self, shard: Shard, key: PartitionKey, lag_max: int) -> bool:
        """Whether an entrance has too much that is not passed on; from half of it, it throttles.

        What waits for a transaction's end is not counted: it could not come to its end.
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

    def _looked_into(self, queue: Queue, index: int, records: Records | None) -> Records | Split:
        """Raises BadBatch; NotReady."""
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
        """Raises NotReady: whether the partition takes part is for the coordinator to say."""
        assert self._transactional_id is not None
        if _takes_part(shard, key, header, self._transactional_id, self._version):
            return Code.NONE
        if self._refusals is None:
            raise NotReady
        return self._refusals.get(key, Code.NONE)

    def _stamped(self, settings: QueueSettings, header: BatchHeader, records: Records) -> Records:
        if header.attributes & TRANSACTIONAL and not self._transactional_id:
            if self._transactional_id is None:
                code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                raise BadBatch(code, "the request names no transactional id")
            raise BadBatch(Code.INVALID_REQUEST, "the transactional id is empty")
        now_ms, ahead_ms = self._now_ms, settings.timestamp_after_max_ms
        if settings.log_append_time:
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
        """The response body, or None where acks=0 asks for none.

        Raises KafkaError where acks=0 hides a failure: Kafka then closes the connection.
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

    @property
    def wait_s(self) -> float:
        """For how long its client is to make no more queues."""
        return self._mutations.wait_s

    def throttle(self, wait_ms: int) -> None:
        """Tell the client to wait."""
        self._throttle_ms = max(self._throttle_ms, wait_ms)

    def queues(self) -> list[str | bytes]:
        """The first few queues that it names, by name or id."""
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
            answers[slot] = Produced(
                index, code, outcome.number, outcome.time_ms, outcome.log_start, outcome.message
            )


def _refused(index: int, error: BadBatch) -> Produced:
    return Produced(index, error.code, message=str(error), blamed=error.blamed)


def append(
    worker: Worker, version: int, request: ProduceRequest, permits: Permits = EVERYTHING,
    mutations: Mutations = NO_LIMIT,
) -> ProduceCall | None:  # fmt: skip
    """Append what a short Produce carries, all of it in this turn of the loop.

    None: nothing was appended, as somebody is to look into it first (`handle`).
    """
    call = ProduceCall(worker, version, request, permits=permits, mutations=mutations)
    try:
        for topic in request.topics:
            call.take(topic)
    except NotReady:
        return None
    call.send()
    return call


async def handle(worker: Worker, request: Request) -> bytes:
    """The response body of a Produce of many batches, or of such as are to be looked into.

    Empty where acks=0 asks for none. Raises Malformed where acks=0 hides a failure. One of a few,
    each named very often, is short.
    """
    budget, body = request.budget, request.body
    permits = request.permits
    guard = None if permits.all else Guard(worker, permits, body)
    inspected = await inspect(worker, request, body)
    mutations = worker.mutations(request)
    refusals = await _take_part(worker, request, body, guard, mutations)
    call = ProduceCall(worker, request.version, body, inspected, refusals, permits, mutations)
    taken = 0
    for topic in body.topics:
        for start in range(0, len(topic.partitions) or 1, BATCHES_AT_ONCE):
            call.take(topic, start)
            some = min(BATCHES_AT_ONCE, len(topic.partitions) - start)
            taken += some
            if taken >= BATCHES_AT_ONCE:
                call.send()
                taken = 0
                await budget.rest()
            await budget.step(_PART_BYTES * (some + 1))
    call.send()
    request.throttle(mutations.wait_s)
    done = Event()
    call.add_done_callback(done.set)
    await done.wait()
    try:
        return await worker.encoded(budget, call.body) or b""
    except KafkaError as error:
        raise Malformed(f"{error.code.name}: {error}") from error


async def _take_part(
    worker: Worker, request: Request, body: ProduceRequest, guard: Guard | None,
    mutations: Mutations,
) -> Refusals:  # fmt: skip
    """Have partitions take part in the transactions of their batches; those that cannot."""
    refusals: Refusals = {}
    name = body.transactional_id
    if not name:
        return refusals
    enlists = request.version >= enlisting.ENLISTS_FROM
    wanted: dict[tuple[int, int], list[Participant]] = {}
    for topic, partitions in body.topics:
        if guard is not None and guard.fault(topic):
            continue
        queue = _queue_of(worker, topic, guard, mutations)
        for index, records in partitions if queue is not None else ():
            assert queue is not None
            await request.budget.step()
            one = _absent(worker, request.version, name, queue, index, records)
            if one is not None:
                wanted.setdefault(one[0], []).append(one[1])
    for producer, participants in wanted.items():
        code = await enlisting.take_part(worker, name, *producer, participants, enlists=enlists)
        if code:
            code = enlisting.code_of_produce(code, request.version)
            refusals |= {one.key: code for one in participants if one.key is not None}
    return refusals


def _queue_of(
    worker: Worker, topic: str | bytes, guard: Guard | None, mutations: Mutations
) -> Queue | None:
    if isinstance(topic, bytes):
        return worker.catalogue.find_id(QueueId(topic))
    queue = worker.catalogue.find(topic)
    if queue is None and worker.config.auto_create:
        if guard is not None and not guard.may_create(topic):
            return None
        if not mutations.take(worker.config.partitions_default):
            return None
        with suppress(KafkaError):
            return worker.catalogue.create(topic)[0]
    return queue


def _absent(
    worker: Worker,
    version: int,
    transactional_id: str,
    queue: Queue,
    index: int,
    records: Records | None,
) -> tuple[tuple[int, int], Participant] | None:
    """(producer id and epoch, partition) where it does not take part in its batch's transaction."""
    if not records or len(records) < HEADER_BYTES or not 0 <= index < queue.partitions:
        return None
    header = read_header(records)
    if not header.is_transactional or header.is_control or header.producer_id < 0:
        return None
    try:
        shard = worker.shard(queue.name, index)
    except KafkaError:
        return None
    key = (queue.queue_id, index)
    if _takes_part(shard, key, header, transactional_id, version):
        return None
    return (header.producer_id, header.producer_epoch), Participant(shard.shard, key)


def _takes_part(
    shard: Shard, key: PartitionKey, header: BatchHeader, transactional_id: str, version: int
) -> bool:
    """Whether a partition takes part in the transaction that a batch is for.

    A producer's id and epoch alone are not enough: they may be another's. With KIP-890 they are the
    transaction's own; without it an earlier one may have had them, whose marker is on its way.
    """
    opened = transaction_rows.open_in(shard.state.get, key, header.producer_id)
    return (
        opened is not None
        and opened.epoch == header.producer_epoch
        and opened.tag == transaction_rows.tag_of(transactional_id)
        and (opened.version >= 2 or version < enlisting.ENLISTS_FROM)
    )
