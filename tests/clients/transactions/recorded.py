"""Transactions of librdkafka that are recorded as they happen (`tests/histories`)."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.clients.calls import WAIT_S
from tests.histories.operations import COMMITTED, Recorder


class Transaction:
    """A transaction over queues of one partition.

    Its sends are said before it begins, for who records may be killed. An error is raised, and
    nothing is recorded then: its outcome is unknown.
    """

    def __init__(
        self, recorder: Recorder, producer: Producer, sends: Iterable[tuple[str, bytes]],
        process: str | None = None,
    ) -> None:  # fmt: skip
        self._planned = [["send", queue, 0, None, value] for queue, value in sends]
        self._recorded = recorder.invoke("txn", self._planned, process)
        self._producer = producer
        self._steps: list[list[Any]] = []
        self._failed: list[KafkaError] = []
        producer.begin_transaction()

    def send(self, queue: str, value: bytes) -> None:
        step = ["send", queue, 0, None, value]
        self._steps.append(step)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failed.append(error)
            elif (message.offset() or 0) >= 0:
                step[3] = message.offset()

        self._producer.produce(queue, value, partition=0, on_delivery=delivered)

    def poll(self, consumer: Consumer, count: int, seconds: float) -> list[Message]:
        messages = [one for one in consumer.consume(count, seconds) if not one.error()]
        self._steps.append(["poll", records(messages)])
        return messages

    def commit_offsets(self, consumer: Consumer, group: str, positions: Mapping[str, int]) -> None:
        commits = [["commit", group, queue, 0, offset] for queue, offset in positions.items()]
        self._recorded.event("invoke", [*self._planned, *commits])  # before a kill may come
        parts = [TopicPartition(queue, 0, offset) for queue, offset in positions.items()]
        metadata = consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(parts, metadata, WAIT_S)
        self._steps += commits

    def assigned(self, parts: Iterable[TopicPartition]) -> None:
        """Note that the consumer was given these within a poll."""
        self._steps.append(["assign", places(parts)])

    def flush(self) -> None:
        """Wait until each record is written."""
        assert self._producer.flush(WAIT_S) == 0
        assert not self._failed, self._failed[0]

    def last(self) -> dict[str, int]:
        """Return the last offset written in each queue."""
        return {step[1]: step[3] for step in self._steps if step[0] == "send"}

    def commit(self) -> None:
        self._end(self._producer.commit_transaction, self._recorded.ok)

    def abort(self) -> None:
        self._end(self._producer.abort_transaction, self._recorded.fail)

    def _end(self, end: Callable[[float], object], record: Callable[..., None]) -> None:
        self.flush()
        asked = time.monotonic_ns()
        end(WAIT_S)
        record(self._steps, asked=asked)


def records(messages: Iterable[Message]) -> list[list[Any]]:
    """Return the records of a poll as a history has them."""
    return [[one.topic(), one.partition(), one.offset(), one.value()] for one in messages]


def poll(recorder: Recorder, consumer: Consumer, count: int, seconds: float) -> list[Message]:
    """Return the records of one poll; none is not recorded."""
    began = time.monotonic_ns()
    messages = [one for one in consumer.consume(count, seconds) if not one.error()]
    if messages:
        recorder.invoke("poll", COMMITTED, at=began).ok(records(messages))
    return messages


def places(parts: Iterable[TopicPartition]) -> list[list[Any]]:
    """Return partitions at which a consumer begins anew, wherever that is."""
    return [[part.topic, part.partition, None] for part in parts]
