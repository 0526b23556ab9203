"""A real Kafka 4.3.1, one node: to compare with, and to hold the data of workers.

`tests/kafka_cluster.py` makes several of them one cluster.
"""

import os
import secrets
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import NamedTuple

from tests.harness import KAFKA_LIBS, free_port, need, need_program
from tests.jvm import SHORT_LIVED_JAVA, archived, missing_archive
from tests.running.cpu import note_start


class Member(NamedTuple):
    """A node's place in a cluster: which node, where the controllers are, and the cluster's id."""

    node: int
    controllers: dict[int, int]  # port by node
    cluster: str
    formatted: Path | None = None
    """The directory of another member, which has the cluster's first records."""


class RunningKafka:
    """The place of a Kafka that somebody else stops."""

    host = "127.0.0.1"

    def __init__(self, port: int, pid: int = 0) -> None:
        self.port, self.pid = port, pid

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Kafka(RunningKafka):
    """A KRaft Kafka in a directory of its own, alone or as one node of a cluster."""

    def __init__(
        self, directory: Path, *java: str, advertise: int | None = None, more: str = "",
        cluster: str | None = None, member: Member | None = None, libs: Path = KAFKA_LIBS,
    ) -> None:  # fmt: skip
        """Take `java`: its options; without any a small heap, as many run beside each other.

        `advertise`: the port that clients are told, of a proxy between. `more`: settings that hold
        over those here; PORT and CONTROLLER_AT stand for its ports. `cluster`: the id of its
        cluster, where it is not the first there. `libs`: of its release.
        """
        need(libs.exists(), f"Kafka's broker: make {libs.name}")
        super().__init__(free_port())
        alone = Member(1, {1: free_port()}, cluster or uuid.uuid4().hex[:22])
        member = member or alone
        self.cluster = member.cluster
        self.controller = controller = member.controllers[member.node]
        voters = ",".join(f"{node}@127.0.0.1:{at}" for node, at in member.controllers.items())
        self._log = (directory / "kafka.out").open("w")
        properties = directory / "server.properties"
        properties.write_text(
            f"""
process.roles=broker,controller
node.id={member.node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertise or self.port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory / "logs"}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
group.consumer.assignment.interval.ms=0
group.consumer.assignor.offload.enable=false
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.share.assignment.interval.ms=0
group.share.assignor.offload.enable=false
group.share.min.record.lock.duration.ms=1000
{more.replace("PORT", str(self.port)).replace("CONTROLLER_AT", str(controller))}
"""
        )
        self._base = [
            need_program("java"), *(java or ("-Xmx512m", *SHORT_LIVED_JAVA)), *archived(libs),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{libs}/*",
        ]  # fmt: skip
        self._properties, self._format_s = properties, 0.0
        if member.formatted is None:
            self._format(member.cluster)
        else:
            _copy(member.formatted / "logs", directory / "logs", member.node)
        if len(member.controllers) == 1:  # one of several is not ready by itself
            with missing_archive(libs) as archive:
                if archive is not None:
                    self._make(archive)
        self.start()

    def _format(self, cluster: str) -> None:
        before = os.times()
        subprocess.run(
            [*self._base, "kafka.tools.StorageTool", "format", "-t", cluster, "-c",
             str(self._properties)],
            check=True, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        after = os.times()
        self._format_s = sum(after[2:4]) - sum(before[2:4])

    def start(self) -> None:
        """Start the broker, or start it again on what it had."""
        self.process = subprocess.Popen(
            [*self._base, "kafka.Kafka", str(self._properties)], stdout=self._log, stderr=self._log
        )

    def _make(self, archive: Path) -> None:
        """Start and stop once, for the archive of the classes that it has loaded."""
        base = [option for option in self._base if "SharedArchiveFile" not in option]
        dump = [base[0], f"-XX:ArchiveClassesAtExit={archive}", *base[1:]]
        self.process = subprocess.Popen(
            [*dump, "kafka.Kafka", str(self._properties)], stdout=self._log, stderr=self._log
        )
        self.wait_ready()
        self.process.terminate()
        self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def wait_ready(self) -> "Kafka":
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.list_topics(timeout=60)
        note_start("Kafka", self.process.pid, self._format_s)
        return self

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._log.close()


def _copy(formatted: Path, directory: Path, node: int) -> None:
    """Make a node's directory from another's, as `StorageTool` would."""
    directory.mkdir()
    for name in ("bootstrap.checkpoint", "meta.properties"):
        shutil.copy(formatted / name, directory / name)
    about = directory / "meta.properties"
    own = {"node.id": str(node), "directory.id": secrets.token_urlsafe(16)}
    lines = [line.partition("=") for line in about.read_text().splitlines()]
    about.write_text("".join(f"{name}{is_}{own.get(name, value)}\n" for name, is_, value in lines))
