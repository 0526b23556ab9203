"""The state that every release is asked to keep: queues and groups, made and read by a client."""

from typing import Any

from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.harness import eventually

_PRODUCERS = 6  # more than a partition's row has room for


def fill(address: str) -> None:
    """Make queues, records, settings and groups; some of each are gone again."""
    admin = AdminClient({"bootstrap.servers": address})
    made = [
        NewTopic("orders", 1, 1),
        NewTopic("wide", 8, 1),
        NewTopic("trimmed", 1, 1),
        NewTopic("again", 2, 1),
        NewTopic("gone", 4, 1),
        NewTopic("kept", 1, 1, config={"retention.ms": "-1", "kproxy.commit.rewind": "deny"}),
    ]
    _all(admin.create_topics(made))
    for name in ("orders", "trimmed", "again", "gone", "kept"):
        _produce(address, name, 0, 20)
    for index in range(8):
        _produce(address, "wide", index, 5)
    for number in range(_PRODUCERS):
        _produce(address, "orders", 0, 2, f"more-{number}")
    _commit(address, "reader", {("orders", 0): 12, ("wide", 3): 4, ("again", 0): 7})
    _commit(address, "other", {("gone", 0): 3})
    _join(address, "members", "orders")
    _all(admin.delete_topics(["gone", "again"]))
    _all(admin.create_topics([NewTopic("again", 1, 1)]))
    _produce(address, "again", 0, 3, "second life")
    _all(admin.delete_records([TopicPartition("trimmed", 0, 15)]))
    resource = ConfigResource(ResourceType.TOPIC, "wide")
    resource.add_incremental_config(
        ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    )
    _all(admin.incremental_alter_configs([resource]))
    _commit(address, "reader", {("again", 0): 2})


def more(address: str) -> None:
    """Add what comes after the last checkpoint."""
    _produce(address, "orders", 0, 4, "late")
    _commit(address, "reader", {("orders", 0): 30})


def read(address: str) -> dict[str, Any]:
    """Return all of it, as a client sees it."""
    admin = AdminClient({"bootstrap.servers": address})
    queues: dict[str, Any] = {}
    for name, topic in sorted(admin.list_topics(timeout=30).topics.items()):
        ids = [str(t.topic_id) for t in _describe(admin, name)]
        queues[name] = {
            "id": ids[0],
            "configs": _configs(admin, name),
            "partitions": [_records(address, name, i) for i in sorted(topic.partitions)],
        }
    groups = {}
    for group in ("reader", "other", "members"):
        future = admin.list_consumer_group_offsets([_all_of(group)])[group]
        groups[group] = {
            f"{p.topic}-{p.partition}": p.offset for p in future.result().topic_partitions
        }
    return {"queues": queues, "groups": groups}


def _all_of(group: str) -> Any:
    from confluent_kafka import ConsumerGroupTopicPartitions

    return ConsumerGroupTopicPartitions(group)


def _describe(admin: AdminClient, name: str) -> list[Any]:
    from confluent_kafka import TopicCollection

    return [f.result() for f in admin.describe_topics(TopicCollection([name])).values()]


def _all(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(30)


def _configs(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    (found,) = [f.result() for f in admin.describe_configs([resource]).values()]
    return {n: e.value for n, e in sorted(found.items()) if not e.is_default}


def _produce(address: str, name: str, index: int, count: int, word: str = "record") -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number in range(count):
        producer.produce(name, f"{word} {number}", partition=index)
        if number % 7 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0


def _commit(address: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False}
    )
    wanted = [TopicPartition(name, index, at) for (name, index), at in offsets.items()]

    def committed() -> bool:
        done = consumer.commit(offsets=wanted, asynchronous=False)
        return all(p.error is None for p in done)

    eventually(committed)
    consumer.close()


def _join(address: str, group: str, name: str) -> None:
    """Run a member that reads, commits and leaves: the group has had members."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([name])
    messages: list[Any] = []
    eventually(lambda: messages.extend(consumer.consume(10, 0.5)) or len(messages) >= 10, 30)
    consumer.commit(offsets=[TopicPartition(name, 0, 10)], asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": address})

    def empty() -> bool:
        (future,) = admin.describe_consumer_groups([group]).values()
        return bool(future.result().state == ConsumerGroupState.EMPTY)

    eventually(empty)


def _records(address: str, name: str, index: int) -> dict[str, Any]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "nobody"})
    low, high = consumer.get_watermark_offsets(TopicPartition(name, index), timeout=30)
    consumer.assign([TopicPartition(name, index, low)])
    records: list[Any] = []
    if high > low:
        eventually(
            lambda: (
                records.extend(m for m in consumer.consume(high - low, 0.5) if not m.error())
                or len(records) >= high - low
            ),
            30,
        )
    consumer.close()
    return {
        "start": low,
        "end": high,
        "records": [[m.offset(), m.value().decode()] for m in records],
    }
