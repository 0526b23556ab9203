"""The servers that are compared, all up at the same time while one of them has the load."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.harness import Served, eventually, served
from tests.real_kafka import Kafka
from tests.workers import Workers

KAFKA, ON_KAFKA, EMBEDDED, SYNCED = "Kafka", "on Kafka", "embedded", "embedded, synced"

# As Kafka's own start script sets them: the broker is measured as people run it.
_BROKER = (
    "-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip


@dataclass
class Server:
    """Something that clients connect to, and the processes whose CPU it costs."""

    name: str
    address: str
    process: psutil.Process
    served: Served | None = None  # None for Kafka
    broker: psutil.Process | None = None  # the Kafka behind it

    def cpu(self) -> float:
        """Return seconds of CPU so far, of the process that clients are connected to."""
        return _cpu(self.process)

    def broker_cpu(self) -> float:
        """Return seconds of CPU so far, of the Kafka behind it."""
        return _cpu(self.broker) if self.broker else 0.0

    def counters(self) -> dict[str, int]:
        """Return what kproxy has counted since its start."""
        assert self.served
        return counters_of(self.served)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return kproxy's log events of these names."""
        assert self.served
        return [event for event in list(self.served.events) if event["event"] in names]

    def rss_mb(self) -> float:
        """Return resident memory in MB (10**6 bytes)."""
        return float(self.process.memory_info().rss / 1e6)


def counters_of(served_: Served) -> dict[str, int]:
    """Return what a kproxy has counted since its start."""

    def told() -> list[dict[str, Any]]:
        return [event for event in list(served_.events) if event["event"] == "counters"]

    seen = len(told())
    served_.process.send_signal(signal.SIGUSR1)
    eventually(lambda: len(told()) > seen, 60)
    return told()[-1]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


_READY_S = 600  # a million queues rebuilt
AS_SHIPPED = ("--group-initial-rebalance-delay-ms", "0")  # as in the broker's shipped settings


@contextmanager
def kafka(directory: Path) -> Iterator[Kafka]:
    """Run a broker with the settings that Kafka ships."""
    directory.mkdir(parents=True)
    broker = Kafka(directory, *_BROKER)
    try:
        yield broker.wait_ready()
    finally:
        broker.stop()


@contextmanager
def on_kafka(broker: Kafka, directory: Path, prefix: str, shards: int = 8) -> Iterator[Server]:
    """Run one worker on that broker."""
    worker = Workers(broker, directory, *AS_SHIPPED, count=1, shards=shards, prefix=prefix)
    with worker.running(_READY_S):
        (served_,) = worker.workers
        process, behind = (psutil.Process(p.pid) for p in (served_.process, broker.process))
        yield Server(ON_KAFKA, worker.address, process, served_, behind)


@contextmanager
def embedded(directory: Path, sync: str) -> Iterator[Server]:
    """Run kproxy on its own storage; `sync`: never (as Kafka's default), always (kproxy's)."""
    name = EMBEDDED if sync == "never" else SYNCED
    with served(directory, "--sync", sync, *AS_SHIPPED, by_exec=True) as process:
        yield Server(name, process.address, psutil.Process(process.process.pid), process)


@contextmanager
def all_servers(directory: Path) -> Iterator[dict[str, Server]]:
    """Run Kafka itself, kproxy on it, and kproxy embedded, without and with fsync; yield them by
    name.
    """
    with ExitStack() as stack:
        broker = stack.enter_context(kafka(directory / "kafka"))
        direct = Server(KAFKA, broker.address, psutil.Process(broker.process.pid))
        found = [direct, stack.enter_context(on_kafka(broker, directory / "worker", "bench"))]
        for sync in ("never", "always"):
            found.append(stack.enter_context(embedded(directory / sync, sync)))
        yield {server.name: server for server in found}
