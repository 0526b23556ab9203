"""The partitions topic of workers on a real Kafka: its last records say what holds."""

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from kproxy.metadata.cluster_map import (
    ClusterMap,
    cluster_record,
    gone_records,
    node_record,
    shard_record,
)
from kproxy.metadata.cluster_map import Owner as ShardOwner
from kproxy.protocol.responses import Broker
from tests.harness import eventually
from tests.real_kafka import Kafka
from tests.workers import Workers

SHARDS = 4


def records(kafka: Kafka, topic: str) -> list[tuple[bytes, bytes | None]]:
    reader = Consumer({
        "bootstrap.servers": kafka.address, "group.id": "map", "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    reader.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := reader.poll(10)) is not None and not message.error():
        found.append((message.key(), message.value()))
    reader.close()
    return found


def maps(kafka: Kafka, topic: str) -> tuple[ClusterMap, ClusterMap]:
    """Return the map of a follower of the topic, and of a reader after compaction."""
    followed, compacted = ClusterMap(SHARDS), ClusterMap(SHARDS)
    last: dict[bytes, Any] = {}
    for key, value in records(kafka, topic):
        followed.apply(key, value)
        last.pop(key, None)
        last[key] = value
    for key, value in last.items():
        compacted.apply(key, value)
    return followed, compacted


def alike(kafka: Kafka, topic: str) -> bool:
    followed, compacted = maps(kafka, topic)
    return (followed.cluster_id, followed.nodes, followed.owners) == (
        compacted.cluster_id,
        compacted.nodes,
        compacted.owners,
    )


def test_compaction_keeps_the_records_that_hold(kafka: Kafka, tmp_path: Path) -> None:
    """FAULT: of workers that started together, the last to name the cluster won after a week."""
    workers = Workers(kafka, tmp_path, count=3, shards=SHARDS)
    topic = f"{workers.prefix}-partitions"
    with workers.running():
        eventually(lambda: alike(kafka, topic))
        before = maps(kafka, topic)[0]
        assert before.cluster_id == json.loads((tmp_path / "worker-0" / "meta.json").read_text())[
            "cluster_id"
        ]  # fmt: skip
        producer = Producer({"bootstrap.servers": kafka.address})
        rivals = [
            cluster_record("rival", SHARDS, 2),
            *[node_record(Broker(node, "rival", 1)) for node in before.nodes],
            *[shard_record(shard, ShardOwner(77, -1)) for shard in range(SHARDS)],
            *gone_records(2),
        ]
        for key, value in rivals:
            producer.produce(topic, key=key, value=value)
        producer.flush()
        eventually(lambda: alike(kafka, topic), 20)
        after = maps(kafka, topic)[0]
        assert (after.cluster_id, after.nodes) == (before.cluster_id, before.nodes)
        assert after.owners == before.owners


def test_an_address_under_two_ids_is_given_one(kafka: Kafka, tmp_path: Path) -> None:
    """As an earlier release left it after compaction: node 1 has the address of who became 2."""
    workers = Workers(kafka, tmp_path, count=2, shards=SHARDS)
    topic = f"{workers.prefix}-partitions"
    with workers.running():
        nodes = maps(kafka, topic)[0].nodes
        for worker in workers.workers:
            assert worker.stop() == 0
        producer = Producer({"bootstrap.servers": kafka.address})
        for key, value in (*gone_records(1), node_record(nodes[2]._replace(node_id=1))):
            producer.produce(topic, key=key, value=value)
        producer.flush()
        second = workers.ports.index(nodes[2].port)
        for index in (second, 1 - second):
            workers.again(index).wait_ready()
        workers.wait_balanced()
        found = maps(kafka, topic)[0].nodes
        assert {node: broker.port for node, broker in found.items()} == {
            2: nodes[2].port,
            3: nodes[1].port,
        }
