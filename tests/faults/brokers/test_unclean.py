"""A replica that lacks acknowledged records leads a data partition, under two workers at work.

kproxy reports the offsets that Kafka has lost, and nothing else is wrong: each other record is at
the offset that it was acknowledged with, once and in order, and a consumer that follows sees it.
At an offset that is lost may be a record that the log took before its owner knew. The owner then
answered NOT_LEADER_OR_FOLLOWER, as a leader of Kafka's that resigns, and librdkafka sends a record
once more then, even where it is to retry nothing.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from kproxy.virtual.partitioner import shard_of
from tests.clients.calls import consumer, create, producer
from tests.harness import Working, eventually
from tests.kafka_cluster import READY_S, KafkaCluster
from tests.workers import Workers

ROUNDS = int(os.environ.get("KAFKA_UNCLEAN", "2"))
SHARDS = 3
QUEUES = [f"queue-{number}" for number in range(9)]
FETCH_BYTES = 2000
HELD_UP_S = 4
"""The seconds of work that no follower of the partition has."""


class Work(Working):
    """Numbered records to queues, none sent twice, and a consumer that follows them."""

    def __init__(self, address: str) -> None:
        self._address = address
        create(address, *QUEUES)
        self.sent: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        self.acknowledged: dict[str, dict[int, bytes]] = {queue: {} for queue in QUEUES}
        self.followed: dict[str, list[tuple[int, bytes]]] = {queue: [] for queue in QUEUES}
        self.errors: list[Any] = []
        super().__init__(self._produce, self._follow)

    def count(self, queue: str) -> int:
        return len(self.acknowledged[queue])

    def wait_for_more(self, seconds: float = READY_S) -> None:
        """Wait until each queue has taken some more."""
        before = {queue: self.count(queue) for queue in QUEUES}
        eventually(lambda: all(self.count(q) > before[q] + 5 for q in QUEUES), seconds)

    def _produce(self) -> None:
        client = producer(
            self._address, retries=0, linger_ms=0, batch_num_messages=1, message_timeout_ms=20_000,
            reconnect_backoff_max_ms=200, topic_metadata_refresh_interval_ms=2000,
        )  # fmt: skip

        def delivered(error: Any, message: Message) -> None:
            if error is None:
                self.acknowledged[message.topic()][message.offset()] = message.value()  # type: ignore[index]

        number = 0
        while not self._stop.wait(0.02):
            queue, value = QUEUES[number % len(QUEUES)], b"%09d" % number
            self.sent[queue].append(value)
            client.produce(queue, value, on_delivery=delivered)
            client.poll(0)
            number += 1
        client.flush(60)

    def _follow(self) -> None:
        with closing(follower(self._address)) as reader:
            idle_until = None
            while idle_until is None or time.monotonic() < idle_until:
                found = reader.consume(500, 0.2)
                for one in found:
                    if one.error() is None:
                        self.followed[one.topic()].append((one.offset(), one.value()))
                    elif not one.error().retriable():
                        self.errors.append(one.error())
                if self._stop.is_set() and (found or idle_until is None):
                    idle_until = time.monotonic() + 10


def follower(address: str) -> Consumer:
    reader = consumer(
        address, "follows", enable_auto_commit=False, auto_offset_reset="error",
        reconnect_backoff_max_ms=200, topic_metadata_refresh_interval_ms=2000,
    )  # fmt: skip
    reader.assign([TopicPartition(queue, 0, 0) for queue in QUEUES])
    return reader


def contents(address: str) -> dict[str, list[tuple[int, bytes]]]:
    """Return all records there are, with their offsets."""
    found: dict[str, list[tuple[int, bytes]]] = {queue: [] for queue in QUEUES}
    with closing(follower(address)) as reader:
        until = time.monotonic() + 15
        while time.monotonic() < until:
            for one in reader.consume(500, 0.2):
                assert one.error() is None, one.error()
                found[one.topic()].append((one.offset(), one.value()))
                until = time.monotonic() + 5
    return found


def reported(workers: Workers) -> dict[str, set[int]]:
    """Return the offsets that kproxy says are lost."""
    lost: dict[str, set[int]] = {queue: set() for queue in QUEUES}
    for worker in workers.workers:
        for event in worker.events:
            if event["event"] == "records_lost" and not event["delayed"]:
                lost[event["queue"]].update(range(event["first"], event["last"] + 1))
    return lost


def problems(
    work: Work, found: dict[str, list[tuple[int, bytes]]], lost: dict[str, set[int]]
) -> Iterator[str]:
    """Yield what is wrong beside what is reported as lost."""
    for queue in QUEUES:
        there, said, mine = dict(found[queue]), lost[queue], work.acknowledged[queue]
        values = [value for _, value in found[queue]]
        once = Counter(value for offset, value in found[queue] if offset not in said)
        if doubled := [value for value, times in once.items() if times > 1]:
            yield f"{queue}: doubled {doubled[:5]}"
        known = [value for offset, value in found[queue] if mine.get(offset) == value]
        if known != sorted(known):
            late = [two for one, two in pairwise(known) if two < one]
            yield f"{queue}: out of order {late[:5]}"
        if not set(values) <= set(work.sent[queue]):
            yield f"{queue}: never sent"
        for offset, value in mine.items():
            if offset in said and there.get(offset) == value:
                yield f"{queue}: {offset} is reported as lost, and is there"
            elif offset not in said and there.get(offset) != value:
                yield f"{queue}: {offset} was {value!r}, is {there.get(offset)!r}"
        offsets = [offset for offset, _ in work.followed[queue]]
        if offsets != sorted(set(offsets)):
            yield f"{queue}: its follower was given an offset twice"
        if unseen := there.keys() - set(offsets):
            yield f"{queue}: its follower was not given {sorted(unseen)[:5]}"


@pytest.mark.parametrize("publish_ms", ["600000", "1000"], ids=["rows before", "rows behind"])
def test_an_unclean_election(tmp_path: Path, publish_ms: str) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", more=f"replica.fetch.max.bytes={FETCH_BYTES}")
    try:
        cluster.wait_ready()
        workers = Workers(
            cluster, tmp_path / "workers", "--publish-ms", publish_ms, count=2, shards=SHARDS
        )
        with workers.running(READY_S):
            cluster.wait_in_sync()
            with Work(workers.address) as work:
                for number in range(ROUNDS):
                    work.wait_for_more()
                    lose(cluster, workers, work, number % SHARDS)
                    work.wait_for_more()
            found = contents(workers.address)
            lost = reported(workers)
            said = list(problems(work, found, lost))
            assert not said, (len(said), said[:10])
            assert not work.errors
            hit = {shard_of(queue, SHARDS) for queue in QUEUES if lost[queue]}
            assert hit == set(range(min(ROUNDS, SHARDS)))
            assert sum(len(lost[queue] & set(work.acknowledged[queue])) for queue in QUEUES) > 50
    finally:
        cluster.stop()


def lose(cluster: KafkaCluster, workers: Workers, work: Work, shard: int) -> None:
    """Let Kafka lose what one data partition has taken in the last seconds."""
    topic = f"{workers.prefix}-data"
    served = [len(of_shard(workers, shard))]
    with cluster.followers_held_up(topic, shard) as leader:
        work.wait_for_more()
        time.sleep(HELD_UP_S)
        cluster.nodes[leader].kill()
        assert cluster.elect_unclean(topic, shard) != leader
    cluster.start(leader)
    eventually(lambda: len(of_shard(workers, shard)) > served[0], READY_S)
    workers.wait_served(READY_S)


def of_shard(workers: Workers, shard: int) -> list[dict[str, Any]]:
    """Return how often a shard was served anew."""
    return [
        event for worker in workers.workers for event in worker.events
        if event["event"] == "shard_served" and event["shard"] == shard
    ]  # fmt: skip
