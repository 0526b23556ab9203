"""Calls of librdkafka's clients that tests have in common. Settings have `_` for `.` in names."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.harness import eventually
from tests.wire import Wire

WAIT_S = 30  # for one call of a client, and until markers are seen


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def producer(address: str, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": address, "log_level": 0} | _dotted(settings))


def consumer(address: str, group: str, *queues: str, **settings: Any) -> Consumer:
    """Return a consumer that begins at the first records; it subscribes to queues, if any."""
    fixed = {"bootstrap.servers": address, "log_level": 0, "group.id": group}
    made = Consumer({"auto.offset.reset": "earliest"} | fixed | _dotted(settings))
    if queues:
        made.subscribe([*queues])
    return made


def create(address: str, *queues: str, partitions: int = 1, **settings: object) -> None:
    """Create queues, and wait until each server has heard of them."""
    config = {name: str(value) for name, value in _dotted(settings).items()}
    client = admin(address)  # it has to live until it has answered
    topics = [NewTopic(name, partitions, 1, config=config) for name in queues]
    for future in client.create_topics(topics, request_timeout=WAIT_S).values():
        future.result(WAIT_S)
    for server in address.split(","):
        host, _, port = server.rpartition(":")
        with Wire(host, int(port)) as wire:
            eventually(lambda wire=wire: _known(wire, queues), WAIT_S)


def _known(wire: Wire, queues: tuple[str, ...]) -> bool:
    return not any(topic.error_code for topic in wire.metadata(*queues, create=False).topics)


def alter(
    address: str, name: str, kind: ResourceType = ResourceType.TOPIC, **settings: object
) -> None:
    """Set settings of a queue or group; delete those that are None."""
    entries = [
        ConfigEntry(
            key, None if value is None else str(value),
            incremental_operation=(
                AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            ),
        )
        for key, value in _dotted(settings).items()
    ]  # fmt: skip
    resource = ConfigResource(kind, name, incremental_configs=entries)
    client = admin(address)
    client.incremental_alter_configs([resource])[resource].result(WAIT_S)


def bounds(address: str, queue: str, partition: int = 0) -> tuple[int, int]:
    """Return the first offset of a partition, and its end."""
    reader = consumer(address, "bounds")
    try:
        low, high = reader.get_watermark_offsets(TopicPartition(queue, partition), WAIT_S)
        return int(low), int(high)
    finally:
        reader.close()
