"""Entrances and filters, and what tests with real clients need around them."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.clients import calls
from tests.clients.calls import WAIT_S, admin, alter, consumer, create
from tests.clients.transactions.calls import ends, read
from tests.harness import eventually

Record = tuple[bytes | None, bytes, dict[str, str | bytes | None]]
"""Key, value and headers."""
KEYS = 20


def make(address: str, queue: str, settings: Mapping[str, object], partitions: int = 1) -> None:
    """Create a queue with these settings of `kproxy.route.`, with `_` for `.` in their names."""
    create(address, queue, partitions=partitions, **_routed(settings))


def _routed(settings: Mapping[str, object]) -> dict[str, object]:
    return {f"kproxy_route_{name}": value for name, value in settings.items()}


def entrance(
    address: str, queue: str, to: str, partitions: int = 1, unroutable: str = "", **more: object
) -> None:
    lost = unroutable or f"{queue}.lost"
    make(address, queue, {"to": to, "unroutable": lost, **more}, partitions)


def taking(address: str, queue: str, source: str, what: str = "", **more: object) -> None:
    """Create a queue that gets the records of another one that pass a filter."""
    make(address, queue, {"from": source, "filter": what, **more})


def change(address: str, queue: str, **settings: object) -> None:
    alter(address, queue, **_routed(settings))


def producer(address: str, **settings: Any) -> Producer:
    usual = {
        "linger_ms": 5, "retry_backoff_ms": 20, "reconnect_backoff_max_ms": 200,
        "enable_idempotence": True,
    }  # fmt: skip
    return calls.producer(address, **usual | settings)


def delete(address: str, queue: str) -> None:
    client = admin(address)
    client.delete_topics([queue])[queue].result(WAIT_S)


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


def members(address: str, group: str, *queues: str) -> Consumer:
    return consumer(address, group, *queues, topic_metadata_refresh_interval_ms=500)


def polled(consumers: Iterable[Consumer], count: int) -> list[Message]:
    found: list[Message] = []

    def some() -> bool:
        for each in consumers:
            found.extend(one for one in each.consume(1000, 0.1) if one.error() is None)
        return len(found) >= count

    eventually(some, 2 * WAIT_S, 0)
    return found
