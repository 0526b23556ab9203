"""A Kafka of three nodes that are killed, stopped, rolled and moved under two workers at work.

    KAFKA_FAULTS=40 KAFKA_FAULTS_SEED=7 pytest -m long tests/faults/brokers/test_brokers.py

Nothing that was acknowledged may be lost, doubled, moved or out of order, no committed offset goes
back, no aborted record is seen, and no client stands still for longer than 15 s.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.shares.members import FLAGS as AT_ONCE
from tests.faults.brokers.clients import everything, working
from tests.faults.servers import OnKafka
from tests.kafka_cluster import LAG_MS, READY_S, SESSION_MS, KafkaCluster
from tests.workers import Workers

FAULTS = int(os.environ.get("KAFKA_FAULTS", "10"))
SEED = int(os.environ.get("KAFKA_FAULTS_SEED", "41"))
SHARDS = 6
STALL_S = 15
CALM_S = 3
FLAGS = (
    *AT_ONCE, "--group-initial-rebalance-delay-ms", "200", "--publish-ms", "2000",
    "--group-share-session-timeout-ms", "5000", "--group-share-min-session-timeout-ms", "1000",
    "--group-share-heartbeat-interval-ms", "500", "--group-share-min-heartbeat-interval-ms", "100",
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    running = KafkaCluster(tmp_path / "kafka")
    try:
        yield running.wait_ready()
    finally:
        running.stop()


def faults(
    cluster: KafkaCluster, topic: str, rng: random.Random
) -> list[tuple[str, Callable[[], object]]]:
    """Return one fault of each kind, in a random order."""

    def leader() -> int:
        return cluster.leader(topic, rng.randrange(SHARDS))

    def any_node() -> int:
        return rng.choice(list(cluster.nodes))

    for_long = (LAG_MS + SESSION_MS) / 1000
    every: list[tuple[str, Callable[[], object]]] = [
        ("a leader killed", lambda: cluster.kill_and_start(leader(), rng.uniform(0, for_long))),
        ("a leader stands still", lambda: cluster.pause(leader(), for_long)),
        ("a leader hangs", lambda: cluster.pause(leader(), 2 * STALL_S)),
        ("a node stands still", lambda: cluster.pause(any_node(), LAG_MS / 1000 + 1)),
        ("all rolled", cluster.roll),
    ]
    rng.shuffle(every)
    moved = ("leaders moved", lambda: cluster.move_leaders(topic))
    return [one for fault in every for one in (moved, fault)]  # back again after each


def test_brokers_fail_under_load(cluster: KafkaCluster, tmp_path: Path) -> None:
    print(f"KAFKA_FAULTS={FAULTS} KAFKA_FAULTS_SEED={SEED}")  # noqa: T201
    rng = random.Random(SEED)
    workers = Workers(cluster, tmp_path / "workers", *FLAGS, count=2, shards=SHARDS)
    with workers.running(READY_S):
        cluster.wait_in_sync()
        clients = everything(OnKafka(workers), tmp_path, rng)
        left: list[tuple[str, Callable[[], object]]] = []
        with working(clients) as stalls:
            for _ in range(FAULTS):
                stalls.of("calm")
                time.sleep(CALM_S)
                left = left or faults(cluster, f"{workers.prefix}-data", rng)
                kind, fault = left.pop()
                stalls.of(kind)
                began = time.monotonic()
                fault()
                time.sleep(CALM_S)
                print(f"{kind}: {time.monotonic() - began:.0f} s", stalls.longest[kind])  # noqa: T201
                failed = {one.name: one.error for one in clients if one.error is not None}
                assert not failed
            stalls.of("")
        said = {one.name: one.problems() for one in clients}
        for worker in workers.workers:
            print(sorted({event["event"] for event in worker.events}))  # noqa: T201
    assert not any(said.values()), said
    assert max(max(found.values()) for found in stalls.longest.values()) < STALL_S, stalls.longest
