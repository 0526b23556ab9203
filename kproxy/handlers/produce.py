"""Produce (key 0), versions 3 to 13 (0 to 2 are named to old clients, and refused).

Everything that can be refused without the fold is refused here; what remains is appended, all
partitions of the request to one ticket per shard, before this returns: so appends keep the arrival
order of their connection. Left out: transactions.
"""

from collections.abc import Callable, Iterable

from kproxy.appends import Appends
from kproxy.errors import Code, KafkaError
from kproxy.metadata import configs
from kproxy.protocol.answers import PRODUCE_TOPIC_IDS, Produced, produce_body
from kproxy.protocol.batch import BadBatch, BatchHeader, check, stamped
from kproxy.protocol.produced import ProduceRequest, Topic
from kproxy.virtual.envelope import Envelope, Kind
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.producers import judge
from kproxy.virtual.rows import Queue, Sent
from kproxy.virtual.types import QueueId
from kproxy.worker import Worker

_LOG_APPEND_TIME = "LogAppendTime"
_AFTER_MAX = "message.timestamp.after.max.ms"
_AFTER_MAX_DEFAULT = int(configs.SETTINGS[_AFTER_MAX].default)


class Appending:
    """One Produce request on its way: what was refused at once, and what waits for the log."""

    def __init__(self, worker: Worker, version: int, request: ProduceRequest) -> None:
        self._worker = worker
        self._version = version
        self._check_ms = worker.config.retention_check_ms
        self._now_ms = worker.now_ms()
        self._acks = request.acks
        self._by_id = version >= PRODUCE_TOPIC_IDS
        self._topics: list[tuple[str | bytes, list[Produced]]] = []
        self._waiting: list[tuple[list[Produced], int, int]] = []  # answers, slot, index
        self._appends = Appends()
        self._transactional = request.transactional_id is not None
        self.go_on(request.topics)

    def go_on(self, topics: Iterable[Topic]) -> None:
        """Append what is for these topics; a large request does so in parts."""
        if self._acks not in (-1, 0, 1):
            self._refuse_all(topics, Code.INVALID_REQUIRED_ACKS)
            return
        for topic, partitions in topics:
            self._take_topic(topic, partitions)
        self._appends.send()

    def _refuse_all(self, topics: Iterable[Topic], code: Code) -> None:
        for topic, partitions in topics:
            self._topics.append((topic, [Produced(index, code) for index, _ in partitions]))

    def _take_topic(self, topic: str | bytes, partitions: list[tuple[int, bytes | None]]) -> None:
        if not self._topics or self._topics[-1][0] != topic:
            self._topics.append((topic, []))
        answers = self._topics[-1][1]
        queue: Queue | None
        if isinstance(topic, bytes):
            queue = self._worker.catalogue.find_id(QueueId(topic))
            absent = Code.UNKNOWN_TOPIC_ID
        else:
            queue, absent = self._by_name(topic)
        for index, records in partitions:
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
        try:
            return catalogue.create(name)[0], Code.NONE
        except KafkaError as error:
            return None, error.code

    def _take_batch(
        self, queue: Queue, index: int, records: bytes | None, answers: list[Produced]
    ) -> None:
        try:
            header = check(records, self._worker.max_batch_bytes(queue), self._version)
            assert records is not None
            batch = self._stamped(queue, header, records)
        except BadBatch as error:
            answers.append(Produced(index, error.code, message=str(error)))
            return
        try:
            shard = self._worker.shard(queue.name, index)
        except KafkaError as error:
            answers.append(Produced(index, error.code))
            return
        key, state = (queue.queue_id, index), shard.state
        row = state.partition(key) if header.producer_id >= 0 else None
        if row is not None and isinstance(sent := judge(state, key, row, header), Sent):
            # A repetition of what is applied, and so durable: nothing to append.
            answers.append(Produced(index, 0, sent.base_offset, sent.time_ms, row.log_start))
            return
        self._waiting.append((answers, len(answers), index))
        answers.append(Produced(index, Code.KAFKA_STORAGE_ERROR))
        look_ms = configs.look_at_ms(
            queue.configs, header.max_timestamp, self._now_ms, self._check_ms
        )
        self._appends.add(
            shard, Envelope(Kind.APPEND, queue.queue_id, index, number=look_ms, body=batch)
        )

    def _stamped(self, queue: Queue, header: BatchHeader, records: bytes) -> bytes:
        if header.is_transactional or self._transactional:
            # What Kafka answers where the request names no transactional id of the producer's.
            raise BadBatch(
                Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported"
            )
        given, now_ms = queue.configs, self._now_ms
        if given and configs.effective("message.timestamp.type", given) == _LOG_APPEND_TIME:
            return stamped(records, now_ms)
        ahead_ms = int(given.get(_AFTER_MAX, _AFTER_MAX_DEFAULT)) if given else _AFTER_MAX_DEFAULT
        if header.max_timestamp - now_ms > ahead_ms:
            raise BadBatch(
                Code.INVALID_TIMESTAMP,
                f"a timestamp lies more than {ahead_ms} ms in the future ({_AFTER_MAX})",
            )
        return stamped(records, None) if header.is_log_append_time else records

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when all of it is durable or refused, and `body` can be had."""
        if self._waiting:
            self._appends.then(callback)
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
        return produce_body(self._version, self._topics, len(self._topics))

    def _settle(self, outcomes: list[Outcome]) -> None:
        unknown = Code.UNKNOWN_TOPIC_ID if self._by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
        for (answers, slot, index), outcome in zip(self._waiting, outcomes, strict=True):
            code = unknown if outcome.code == Code.UNKNOWN_TOPIC_ID else outcome.code
            answers[slot] = Produced(
                index, code, outcome.number, outcome.time_ms, outcome.log_start, outcome.message
            )
