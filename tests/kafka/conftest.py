"""A real Kafka 4.3.1, one node, for comparisons."""

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import KAFKA_LIBS, free_port, need, need_program


class Kafka:
    """A single-node KRaft Kafka in a directory of its own."""

    host = "127.0.0.1"

    def __init__(self, directory: Path) -> None:
        self.port, controller = free_port(), free_port()
        self._log = (directory / "kafka.out").open("w")
        properties = directory / "server.properties"
        properties.write_text(
            f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory / "logs"}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        )
        base = [
            need_program("java"), "-Xmx512m", "-XX:+UseSerialGC",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{KAFKA_LIBS}/*",
        ]  # fmt: skip
        cluster = uuid.uuid4().hex[:22]
        subprocess.run(
            [*base, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)],
            check=True, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self.process = subprocess.Popen(
            [*base, "kafka.Kafka", str(properties)], stdout=self._log, stderr=self._log
        )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def wait_ready(self) -> "Kafka":
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.list_topics(timeout=60)
        return self

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._log.close()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    need(KAFKA_LIBS.exists(), "Kafka's broker: make kafka-libs")
    running = Kafka(tmp_path_factory.mktemp("kafka"))
    try:
        yield running.wait_ready()
    finally:
        running.stop()
