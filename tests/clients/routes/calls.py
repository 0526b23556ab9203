"""Entrances and filters, and what tests with real clients need around them."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.transactions.calls import WAIT_S, admin, ends, read
from tests.harness import eventually

Record = tuple[bytes | None, bytes, dict[str, str | bytes | None]]
"""Key, value and headers."""
KEYS = 20


def _settings(settings: Mapping[str, object]) -> dict[str, str]:
    return {
        f"kproxy.route.{name.replace('_', '.')}": str(value) for name, value in settings.items()
    }


def make(address: str, queue: str, settings: Mapping[str, object], partitions: int = 1) -> None:
    """Create a queue with these settings of `kproxy.route.`, with `_` for `.` in their names."""
    client = admin(address)  # it has to live until it has answered
    topic = NewTopic(queue, partitions, 1, config=_settings(settings))
    client.create_topics([topic])[queue].result(WAIT_S)


def entrance(
    address: str, queue: str, to: str, partitions: int = 1, unroutable: str = "", **more: object
) -> None:
    lost = unroutable or f"{queue}.lost"
    make(address, queue, {"to": to, "unroutable": lost, **more}, partitions)


def taking(address: str, queue: str, source: str, what: str = "", **more: object) -> None:
    """Create a queue that gets the records of another one that pass a filter."""
    make(address, queue, {"from": source, "filter": what, **more})


def change(address: str, queue: str, **settings: object) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in _settings(settings).items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, queue, incremental_configs=entries)
    client = admin(address)
    for future in client.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


def delete(address: str, queue: str) -> None:
    client = admin(address)
    client.delete_topics([queue])[queue].result(WAIT_S)


def producer(address: str, **settings: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": address, "log_level": 0, "linger.ms": 5, "retry.backoff.ms": 20,
         "reconnect.backoff.max.ms": 200, "enable.idempotence": True, **settings}
    )  # fmt: skip


def put(client: Producer, queue: str, records: Iterable[Record], partition: int = 0) -> None:
    """Send records in line to one partition. A refused one fails where it is waited for."""
    for key, value, headers in records:
        client.produce(queue, value, key, partition, headers=headers, on_delivery=_delivered)


def _delivered(error: Any, message: Any) -> None:
    assert not error, error


def flush(client: Producer) -> None:
    assert client.flush(WAIT_S) == 0


def send(address: str, queue: str, records: Iterable[Record], **settings: Any) -> None:
    """Write records into one partition, and wait until they are there."""
    client = producer(address, **settings)
    put(client, queue, records)
    flush(client)


def keyed(first: int, end: int, keys: int) -> list[Record]:
    """Return numbered records whose keys take turns."""
    return [(b"k%d" % (number % keys), b"%d" % number, {}) for number in range(first, end)]


def of_key(first: int, end: int, keys: int, key: int) -> list[bytes]:
    """Return the values that `keyed` gives one of the keys."""
    return [b"%d" % number for number in range(first, end) if number % keys == key]


def end_of(address: str, queue: str) -> int:
    """Return the number of records a queue has had; 0 where there is none of this name."""
    try:
        return ends(address, [queue])[queue]
    except KafkaException:
        return 0


def start_of(address: str, queue: str) -> int:
    """Return the first offset that a queue has, or its end."""
    client, part = admin(address), TopicPartition(queue, 0)
    asked = client.list_offsets({part: OffsetSpec.earliest()})
    found: int = asked[part].result(WAIT_S).offset
    return found


def arrived(address: str, counts: Mapping[str, int], seconds: float = WAIT_S) -> None:
    """Wait until each queue has had so many records."""
    for queue, count in counts.items():
        eventually(lambda queue=queue, count=count: end_of(address, queue) >= count, seconds)


def check(address: str, wanted: Mapping[str, list[bytes]]) -> None:
    """Wait until each queue has had as many records as it is to have; they are those."""
    arrived(address, {queue: len(values) for queue, values in wanted.items()})
    found = read(address, wanted)
    for queue, values in wanted.items():
        assert [value for _, value in found[queue]] == values, queue


def by_key(prefix: str, first: int, end: int) -> dict[str, list[bytes]]:
    return {f"{prefix}k{key}": of_key(first, end, KEYS, key) for key in range(KEYS)}


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def members(address: str, group: str, *queues: str) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest",
         "log_level": 0, "topic.metadata.refresh.interval.ms": 500}
    )  # fmt: skip
    consumer.subscribe(list(queues))
    return consumer


def polled(consumers: Iterable[Consumer], count: int) -> list[Message]:
    found: list[Message] = []

    def some() -> bool:
        for consumer in consumers:
            found.extend(one for one in consumer.consume(1000, 0.1) if one.error() is None)
        return len(found) >= count

    eventually(some, 2 * WAIT_S, 0)
    return found
