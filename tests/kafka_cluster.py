"""A real Kafka of three nodes, each a controller and a broker, and the faults that befall it."""

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ResourceType

from tests.clients.calls import alter
from tests.harness import KAFKA_LIBS, eventually, free_port, stand_still
from tests.jvm import SHORT_LIVED_JAVA, archive_of
from tests.real_kafka import Kafka, Member, RunningKafka

NODES = 3
LAG_MS = 4000
"""A replica that fetches nothing for so long is out of sync."""
SESSION_MS = 6000
"""A broker without a heartbeat for so long leads nothing any more. Kafka's own: 9000."""
READY_S = 300
"""The most seconds of whatever the cluster takes its time for."""
_SETTINGS = f"""
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
broker.session.timeout.ms={SESSION_MS}
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms={LAG_MS}
auto.leader.rebalance.enable=false
num.replica.fetchers=1
replication.quota.window.size.seconds=20
initial.broker.registration.timeout.ms=300000
"""
_HEAP = ("-Xmx256m", *SHORT_LIVED_JAVA)


class KafkaCluster(RunningKafka):
    """Three nodes with replication factor 3, of which two have to be in sync."""

    def __init__(self, directory: Path, more: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _make_archive(directory)
        first = free_port(NODES)
        controllers = {node: first + node - 1 for node in range(1, NODES + 1)}
        cluster = uuid.uuid4().hex[:22]
        self.nodes: dict[int, Kafka] = {}
        places = {node: directory / f"node-{node}" for node in controllers}
        for node, place in places.items():
            place.mkdir()
            formatted = places[1] if self.nodes else None
            member = Member(node, controllers, cluster, formatted)
            self.nodes[node] = Kafka(place, *_HEAP, more=_SETTINGS + more, member=member)
        super().__init__(self.nodes[1].port)
        self._admin: AdminClient | None = None

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def wait_ready(self) -> "KafkaCluster":
        for node in self.nodes.values():
            _again(node.wait_ready)
        eventually(lambda: len(self._metadata().brokers) == NODES, READY_S, 0.2)
        return self

    def stop(self) -> None:
        self._admin = None
        for node in self.nodes.values():
            with suppress(ProcessLookupError):
                node.process.send_signal(signal.SIGCONT)
            node.stop()

    # -- what there is

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(
                {"bootstrap.servers": self.address, "log_level": 0, "socket.timeout.ms": 5000}
            )
        return self._admin

    def _metadata(self) -> Any:
        while True:
            with suppress(KafkaException):
                return self.admin.list_topics(timeout=10)

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition; -1: none."""
        return int(self._metadata().topics[topic].partitions[partition].leader)

    def in_sync(self, topic: str, partition: int) -> list[int]:
        return list(self._metadata().topics[topic].partitions[partition].isrs)

    def wait_in_sync(self, seconds: float = READY_S) -> None:
        """Wait until each partition of each topic has a leader, and all its replicas in sync."""

        def whole() -> bool:
            found = self._metadata()
            parts = [part for topic in found.topics.values() for part in topic.partitions.values()]
            return len(found.brokers) == NODES and all(
                part.leader in found.brokers and len(part.isrs) == len(part.replicas)
                for part in parts
            )

        eventually(whole, seconds, 0.2)

    # -- faults: each returns once the fault is over and the cluster whole again

    def kill_and_start(self, node: int, down_s: float) -> None:
        """kill -9 a node, and start it again."""
        self.nodes[node].kill()
        time.sleep(down_s)
        self.start(node)

    def start(self, node: int) -> None:
        """Start a node that has ended, and wait until it and all others have all there is."""
        self.nodes[node].start()
        _again(self.nodes[node].wait_ready)
        self.wait_in_sync()

    def pause(self, node: int, seconds: float) -> None:
        """Stop a node's process for so long, with its connections open."""
        process = self.nodes[node].process
        stand_still(process)
        try:
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)
        self.wait_in_sync()

    def roll(self) -> None:
        """Stop and start the nodes one after another, as an upgrade does."""
        for node in self.nodes:
            self.nodes[node].process.terminate()
            self.nodes[node].process.wait(60)
            self.start(node)

    def move_leaders(self, topic: str) -> int:
        """Give partitions back to the replicas that are to lead them; return how many moved."""
        before = self._leaders(topic)
        self._elect(ElectionType.PREFERRED, None)
        eventually(lambda: self._all_preferred(topic), READY_S, 0.1)
        after = self._leaders(topic)
        return sum(before[partition] != after[partition] for partition in before)

    def _leaders(self, topic: str) -> dict[int, int]:
        parts = self._metadata().topics[topic].partitions
        return {number: part.leader for number, part in parts.items()}

    def _all_preferred(self, topic: str) -> bool:
        parts = self._metadata().topics[topic].partitions
        return all(part.leader == part.replicas[0] for part in parts.values())

    def _elect(self, kind: ElectionType, parts: list[TopicPartition] | None) -> None:
        self.admin.elect_leaders(kind, parts).result(30)

    # -- an unclean election

    @contextmanager
    def followers_held_up(self, topic: str, partition: int) -> Iterator[int]:
        """Let only the leader of a partition have what comes, and acknowledge it; yields the node.

        The others are killed one after another, and throttled from their starts to the end of the
        block: Kafka throttles none that is in sync. They get one small fetch at first, and are in
        sync by it where little was written meanwhile.
        """
        leader = int(eventually(lambda: max(0, self.leader(topic, partition)), READY_S, 0.1))
        others = sorted(self.nodes.keys() - {leader})
        rates = {"follower.replication.throttled.rate": "1"}
        throttled = ",".join(f"{partition}:{node}" for node in others)
        _again(
            lambda: alter(
                self.address, topic, min_insync_replicas=1,
                follower_replication_throttled_replicas=throttled,
            )
        )  # fmt: skip
        for node in others:
            self._alter_broker(node, rates)
        try:
            while held := set(self.in_sync(topic, partition)) - {leader}:  # again: nothing came
                for node in sorted(held):
                    self._restart_behind(node, topic, partition)
                eventually(lambda: len(self._metadata().brokers) == NODES, READY_S, 0.1)
            yield leader
        finally:
            _again(
                lambda: alter(
                    self.address, topic, min_insync_replicas=2,
                    follower_replication_throttled_replicas=None,
                )
            )  # fmt: skip

    def _restart_behind(self, node: int, topic: str, partition: int) -> None:
        """Start a node again, once it is out of sync."""
        self.nodes[node].kill()
        eventually(lambda: node not in self.in_sync(topic, partition), READY_S)
        self.nodes[node].start()
        _again(self.nodes[node].wait_ready)

    def _alter_broker(self, node: int, settings: dict[str, Any]) -> None:
        named = {name.replace(".", "_"): value for name, value in settings.items()}
        if self.nodes[node].process.poll() is None:
            _again(lambda: alter(self.address, str(node), ResourceType.BROKER, **named))

    def elect_unclean(self, topic: str, partition: int) -> int:
        """Let a replica lead that lacks what was acknowledged; return which."""
        part = TopicPartition(topic, partition)
        eventually(lambda: self.leader(topic, partition) == -1, READY_S, 0.1)
        _again(lambda: self._elect(ElectionType.UNCLEAN, [part]))
        return int(eventually(lambda: max(0, self.leader(topic, partition)), READY_S, 0.1))


def _make_archive(directory: Path) -> None:
    """Make the archive of Kafka's classes, where nobody has: a node alone does."""
    if not archive_of(KAFKA_LIBS).exists():
        alone = directory / "alone"
        alone.mkdir()
        Kafka(alone).stop()


def _again(call: Callable[[], Any], seconds: float = READY_S) -> Any:
    """Call until the cluster takes it."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (KafkaException, TimeoutError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
