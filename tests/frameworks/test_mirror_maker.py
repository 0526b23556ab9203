"""MirrorMaker 2: from a real Kafka into queues, from queues into it, and from kproxy to kproxy."""

import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from tests.clients.calls import admin, consumer, create, producer
from tests.frameworks.connect import JavaProgram
from tests.harness import eventually, served
from tests.real_kafka import Kafka
from tests.workers import Site

FLAGS = ("--group-initial-rebalance-delay-ms", "0")
RECORDS = 20  # for each topic
GROUP = "mirrored-group"
TOGETHER_S = 240  # until 200 topics are mirrored


def mirror(source: str, target: str, directory: Path, prefix: str) -> JavaProgram:
    """Return MirrorMaker from one address to another, for topics of a prefix."""
    factors = {
        f"{kind}.replication.factor": 1
        for kind in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic",
                     "config.storage", "offset.storage", "status.storage")
    } | {"replication.factor": 1}  # fmt: skip
    soon = {
        "refresh.topics.interval.seconds": 5, "refresh.groups.interval.seconds": 5,
        "emit.checkpoints.interval.seconds": 1, "sync.group.offsets.interval.seconds": 1,
        "target.offset.flush.interval.ms": 1000, "offset.lag.max": 0,
    }  # fmt: skip
    return JavaProgram(
        "org.apache.kafka.connect.mirror.MirrorMaker", directory,
        factors | soon | {
            "clusters": "source, target", "source.bootstrap.servers": source,
            "target.bootstrap.servers": target, "source->target.enabled": "true",
            "target->source.enabled": "false", "topics": f"{prefix}-.*",
            "groups": f"{GROUP}-{prefix}",
            "sync.group.offsets.enabled": "true", "tasks.max": 2,
            "emit.heartbeats.enabled": "false", "source->target.emit.heartbeats.enabled": "false",
        },
    )  # fmt: skip


def fill(address: str, topics: list[str]) -> None:
    """Write records with keys, headers and times, and for each topic what a group has read."""
    create(address, *topics, retention_ms=172_800_000)
    client = producer(address, linger_ms=20)
    began_ms = int(time.time() * 1000) - 3_600_000  # a real Kafka soon deletes older ones
    for number in range(RECORDS):
        for topic in topics:
            client.produce(
                topic, f"{topic} {number}", key=str(number), timestamp=began_ms + number,
                headers=[("number", str(number))],
            )  # fmt: skip
        client.poll(0)
    assert client.flush(60) == 0


def commit(address: str, group: str, topics: list[str]) -> None:
    """Commit as a consumer that has read each topic to its end.

    An older offset MirrorMaker translates only if it ran when the record was written.
    """
    parts = [TopicPartition(topic, 0, RECORDS) for topic in topics]
    with closing(consumer(address, group)) as member:
        assert not [one for one in member.commit(offsets=parts, asynchronous=False) if one.error]


def contents(address: str, topics: list[str]) -> dict[str, list[object]]:
    """Return all records of each topic, once all are there."""
    found: dict[str, list[object]] = defaultdict(list)
    until = time.monotonic() + TOGETHER_S
    with closing(consumer(address, "reader", enable_auto_commit=False)) as reader:
        reader.assign([TopicPartition(topic, 0, 0) for topic in topics])
        while sum(map(len, found.values())) < RECORDS * len(topics):
            assert time.monotonic() < until, {t: len(found[t]) for t in topics}
            messages = reader.consume(1000, 1)
            for one in messages:
                assert one.error() is None
                topic = one.topic()
                assert topic
                found[topic].append((one.key(), one.value(), one.headers(), one.timestamp()[1]))
    return found


def translated(address: str, group: str) -> dict[str, int]:
    """Return the offsets that the group has committed at the target."""
    client = admin(address)
    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {one.topic: one.offset for one in asked[group].result().topic_partitions}


def mirrored(source: str, target: str, directory: Path, prefix: str, count: int) -> None:
    """Mirror so many topics, and compare them and what a group has read."""
    topics = [f"{prefix}-{number}" for number in range(count)]
    fill(source, topics)
    group = f"{GROUP}-{prefix}"
    program = mirror(source, target, directory, prefix)
    try:
        names = {topic: f"source.{topic}" for topic in topics}
        client = admin(target)

        def there() -> bool:
            assert program.process.poll() is None, program.last_words()
            return set(names.values()) <= set(client.list_topics(timeout=20).topics)

        eventually(there, TOGETHER_S, 0.5)
        copied = contents(target, list(names.values()))
        original = contents(source, topics)
        assert {topic: copied[name] for topic, name in names.items()} == original
        commit(source, group, topics)
        eventually(lambda: translated(target, group).keys() >= set(names.values()), TOGETHER_S, 0.5)
        assert all(0 < offset <= RECORDS for offset in translated(target, group).values())
    finally:
        program.stop()


def name_of(site: Site) -> str:
    return "embedded" if hasattr(site, "process") else "workers"


def test_from_kafka_into_queues(site: Site, kafka: Kafka, tmp_path: Path) -> None:
    mirrored(kafka.address, site.address, tmp_path, f"in-{name_of(site)}", 10)


@pytest.mark.long
def test_200_topics_from_kafka_into_queues(site: Site, kafka: Kafka, tmp_path: Path) -> None:
    mirrored(kafka.address, site.address, tmp_path, f"many-in-{name_of(site)}", 200)


@pytest.mark.long
def test_200_queues_into_kafka(site: Site, kafka: Kafka, tmp_path: Path) -> None:
    mirrored(site.address, kafka.address, tmp_path, f"out-{name_of(site)}", 200)


@pytest.mark.long
def test_from_kproxy_to_kproxy(site: Site, tmp_path: Path) -> None:
    with served(tmp_path / "data", *FLAGS) as other:
        mirrored(site.address, other.address, tmp_path / "there", f"pair-{name_of(site)}", 200)
        mirrored(other.address, site.address, tmp_path / "back", f"back-{name_of(site)}", 20)
