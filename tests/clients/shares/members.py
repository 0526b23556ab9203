"""Members of share groups with librdkafka, and what tests with real clients need around them."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import ResourceType

from tests.clients.calls import WAIT_S, alter, producer

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
FLAGS = (
    "--group-share-assignment-interval-ms", "0", "--group-share-min-record-lock-duration-ms", "100",
)  # fmt: skip
"""The flags of workers by which a test does not wait long."""

Given = tuple[int, bytes, int]
"""Offset, value and delivery count of a record."""


def configure(address: str, group: str, **settings: object) -> None:
    """Configure a group, with `_` for `.` in settings' names; it begins at the first records."""
    alter(address, group, ResourceType.GROUP, **{"share_auto_offset_reset": "earliest"} | settings)


def member(
    address: str, group: str, *queues: str, explicit: bool = True, **settings: Any
) -> ShareConsumer:
    """Return a share consumer that has subscribed."""
    mode = "explicit" if explicit else "implicit"
    consumer = ShareConsumer(
        {"bootstrap.servers": address, "group.id": group, "share.acknowledgement.mode": mode,
         "log_level": 0, "reconnect.backoff.max.ms": 200, **settings}
    )  # fmt: skip
    consumer.subscribe(list(queues))
    return consumer


def produce(address: str, queue: str, values: Iterable[bytes], partitions: int = 1) -> None:
    """Produce a record for each value, in a batch of its own."""
    client = producer(address)
    for number, value in enumerate(values):
        client.produce(queue, value, partition=number % partitions)
        assert client.flush(WAIT_S) == 0


def poll(consumer: ShareConsumer, seconds: float = 0.5) -> list[Message]:
    """Return the records of one poll. An error that is not about the connection fails."""
    found = []
    for message in consumer.poll(seconds):
        error = message.error()
        if error is None:
            found.append(message)
        else:
            assert error.retriable(), error
    return found


def take(consumer: ShareConsumer, count: int, seconds: float = WAIT_S) -> list[Message]:
    """Take so many records of one fetch.

    In explicit mode a member acknowledges all of them before it polls again.
    """
    until = time.monotonic() + seconds
    while True:
        found = poll(consumer)
        if found:
            assert len(found) == count, [(one.offset(), one.value()) for one in found]
            return found
        assert time.monotonic() < until, f"nothing within {seconds} s"


def given(messages: Iterable[Message]) -> list[Given]:
    return [(m.offset() or 0, m.value() or b"", m.delivery_count() or 0) for m in messages]


def say(consumer: ShareConsumer, messages: Iterable[Message], kind: AcknowledgeType) -> None:
    """Acknowledge records, which the worker must answer with success."""
    for message in messages:
        consumer.acknowledge(message, kind)
    for part, error in consumer.commit_sync(WAIT_S).items():
        assert error is None, (part, error)


def drain(
    consumer: ShareConsumer, done: Callable[[list[Message]], bool], seconds: float = WAIT_S
) -> list[Message]:
    """Accept all that comes until it is enough."""
    found: list[Message] = []
    until = time.monotonic() + seconds
    while not done(found):
        assert time.monotonic() < until, given(found)
        some = poll(consumer)
        if some:
            say(consumer, some, ACCEPT)
        found += some
    return found


def rest(address: str, group: str, queue: str, mark: bytes = b"the end") -> list[Given]:
    """Accept and return the records left in a queue's partition for a new member of its group.

    A record is put behind them: a record that is not given before that is not given at all.
    """
    produce(address, queue, [mark])
    consumer = member(address, group, queue)
    try:
        found = drain(consumer, lambda some: any(m.value() == mark for m in some))
    finally:
        consumer.close()
    return [one for one in given(found) if one[1] != mark]
