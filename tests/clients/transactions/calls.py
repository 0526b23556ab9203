"""Writing in transactions, and reading what is committed: for tests with real clients."""

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from tests.clients.calls import WAIT_S, admin, consumer
from tests.harness import eventually

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
_LEVELS = {
    COMMITTED: IsolationLevel.READ_COMMITTED, UNCOMMITTED: IsolationLevel.READ_UNCOMMITTED,
}  # fmt: skip


def transactional(address: str, identity: str, **settings: Any) -> Producer:
    """Return a librdkafka producer that has its id and epoch."""
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": identity, "linger.ms": 5,
         "log_level": 0, "retry.backoff.ms": 20, "reconnect.backoff.max.ms": 200, **settings}
    )  # fmt: skip
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, values: Iterable[tuple[str, bytes]]) -> dict[str, int]:
    """Write records into queues in a transaction that stays open, and wait for each.

    Return the offset of the last one in each queue.
    """
    failed: list[Any] = []
    last: dict[str, int] = {}

    def delivered(error: Any, message: Message) -> None:
        if error:
            failed.append(error)
        else:
            last[message.topic() or ""] = message.offset() or 0

    for queue, value in values:
        producer.produce(queue, value, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    assert not failed, failed[0]
    return last


def commit(producer: Producer, values: Iterable[tuple[str, bytes]]) -> dict[str, int]:
    """Commit a transaction of these records; return the offset of the last one in each queue."""
    producer.begin_transaction()
    last = write(producer, values)
    producer.commit_transaction(WAIT_S)
    return last


def abort(producer: Producer, values: Iterable[tuple[str, bytes]]) -> None:
    """Abort a transaction of these records, all of them written."""
    producer.begin_transaction()
    write(producer, values)
    producer.abort_transaction(WAIT_S)


_LATER = {
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,
}  # fmt: skip
"""The errors of a server that is gone, or that stands still."""


def ends(address: str, queues: Iterable[str], isolation: str = COMMITTED) -> dict[str, int]:
    """Return the reader's end of each queue's partition 0."""
    client = admin(address)  # it has to live until it has answered
    parts = [TopicPartition(queue, 0) for queue in queues]

    def answered() -> dict[str, int] | None:
        """Return nothing where a server stands still: librdkafka gives -1001, or no answer."""
        asked = client.list_offsets(
            {part: OffsetSpec.latest() for part in parts}, isolation_level=_LEVELS[isolation],
            request_timeout=10,
        )  # fmt: skip
        try:
            found = {part.topic: future.result(WAIT_S).offset for part, future in asked.items()}
        except TimeoutError:
            return None
        except KafkaException as error:
            if error.args[0].code() not in _LATER:
                raise
            return None
        return None if OFFSET_INVALID in found.values() else found

    found: dict[str, int] = eventually(answered, 4 * WAIT_S)
    return found


def settle(address: str, queues: Iterable[str], seconds: float = WAIT_S) -> None:
    """Wait until no transaction is open: a real Kafka writes markers after it has answered."""
    names = list(queues)
    eventually(lambda: ends(address, names) == ends(address, names, UNCOMMITTED), seconds)


def messages(
    address: str, parts: Iterable[TopicPartition], isolation: str = COMMITTED, seconds: float = 60
) -> dict[tuple[str, int], list[Message]]:
    """Return the records of some partitions from an offset on, up to the reader's end."""
    reader = consumer(
        address, "readers", enable_auto_commit=False, auto_offset_reset="error",
        enable_partition_eof=True, isolation_level=isolation,
    )  # fmt: skip
    asked = list(parts)
    found: dict[tuple[str, int], list[Message]] = {(p.topic, p.partition): [] for p in asked}
    left, until = set(found), time.monotonic() + seconds
    try:
        reader.assign(asked)
        while left:
            assert time.monotonic() < until, f"no end of {len(left)} queues: {sorted(left)[:3]}"
            for message in reader.consume(1000, 0.2):
                part, error = (message.topic() or "", message.partition() or 0), message.error()
                if error is None:
                    found[part].append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(part)
        return found
    finally:
        reader.close()


def read(
    address: str, queues: Iterable[str], isolation: str = COMMITTED
) -> dict[str, list[tuple[int, bytes]]]:
    """Return offset and value of each record of the queues' partition 0, up to the end."""
    found = messages(address, [TopicPartition(queue, 0, 0) for queue in queues], isolation)
    return {
        queue: [(one.offset() or 0, one.value() or b"") for one in some]
        for (queue, _), some in found.items()
    }


def values(address: str, queue: str, isolation: str = COMMITTED) -> list[bytes]:
    """Return the values that a reader of one queue sees."""
    return [value for _, value in read(address, [queue], isolation)[queue]]


def committed_offsets(
    address: str, group: str, queues: Iterable[str], *, stable: bool = True
) -> dict[str, int]:
    """Return the offsets that a group has committed, by queue. An error of one is raised."""
    client = admin(address)
    parts = [TopicPartition(queue, 0) for queue in queues]
    asked = client.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, parts)], require_stable=stable
    )
    found = {}
    for one in asked[group].result(WAIT_S).topic_partitions:
        if one.error:
            raise KafkaException(one.error)
        if one.offset >= 0:
            found[one.topic] = one.offset
    return found
