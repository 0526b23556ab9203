"""Kafka Connect, distributed: its own three topics are compacted queues."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.frameworks.connect import ConnectWorker
from tests.frameworks.test_streams import settings
from tests.harness import eventually
from tests.workers import Site

FLAGS = ("--group-initial-rebalance-delay-ms", "200", "--compaction-check-ms", "500")
CLASSES = "org.apache.kafka.connect.file.FileStream"


@contextmanager
def connect(
    site: Site, group: str, directory: Path, count: int = 1
) -> Iterator[list[ConnectWorker]]:
    with ExitStack() as stack:
        workers = []
        for number in range(count):
            worker = ConnectWorker(site.address, group, directory / f"connect-{number}")
            stack.callback(worker.kill)
            workers.append(worker)
        for worker in workers:
            worker.wait_ready()
        yield workers


class Files:
    """A file that is read into a queue, and a file that the queue is written to."""

    def __init__(self, worker: ConnectWorker, queue: str, directory: Path) -> None:
        self.source, self.sink = directory / "in.txt", directory / "out.txt"
        self.source.write_text("")
        self.written: list[str] = []
        worker.configure(
            "source",
            {"connector.class": f"{CLASSES}SourceConnector", "tasks.max": 1,
             "file": str(self.source), "topic": queue},
        )  # fmt: skip
        worker.configure(
            "sink",
            {"connector.class": f"{CLASSES}SinkConnector", "tasks.max": 1,
             "file": str(self.sink), "topics": queue, "consumer.override.metadata.max.age.ms": 500},
        )  # fmt: skip
        for name in ("source", "sink"):
            eventually(lambda name=name: worker.state(name) == "RUNNING", 60)

    def write(self, count: int) -> None:
        lines = [f"line {len(self.written) + number}" for number in range(count)]
        self.written += lines
        with self.source.open("a") as file:
            file.write("".join(line + "\n" for line in lines))

    @property
    def read(self) -> list[str]:
        return self.sink.read_text().splitlines() if self.sink.exists() else []

    def arrived(self) -> bool:
        return self.read == self.written

    def settled(self, worker: ConnectWorker) -> bool:
        """Whether all that was written is stored as read, on both sides."""
        position = {"position": self.source.stat().st_size}
        sunk = {"kafka_offset": len(self.written)}
        return worker.offsets("source") == [position] and worker.offsets("sink") == [sunk]


def test_files_into_a_queue_and_out_of_it(site: Site, tmp_path: Path) -> None:
    """One worker: a connector paused, resumed, stopped with its worker, and deleted."""
    group = f"connect-{'embedded' if hasattr(site, 'process') else 'workers'}"
    with connect(site, group, tmp_path) as (worker,):
        files = Files(worker, f"{group}-lines", tmp_path)
        files.write(500)
        eventually(files.arrived, 30)
        worker.ask("/connectors/source/pause", "PUT")
        eventually(lambda: worker.state("source") == "PAUSED", 20)
        eventually(lambda: files.settled(worker), 20)
        files.write(10)
        worker.ask("/connectors/source/resume", "PUT")
        eventually(files.arrived, 30)
        eventually(lambda: files.settled(worker), 20)
        worker.stop()
        files.write(10)
    for kind in ("config", "offset", "status"):
        assert settings(site, f"{group}-{kind}")["cleanup.policy"] == "compact"
    with connect(site, group, tmp_path / "again") as (worker,):
        eventually(files.arrived, 60)  # from where it was: no line comes again
        for name in ("source", "sink"):
            eventually(
                lambda name=name: worker.ask(f"/connectors/{name}", "DELETE") is not None, 20
            )
        eventually(lambda: worker.ask("/connectors") == [], 20)
        assert worker.ask("/connectors/source/status") is None


@pytest.mark.long
def test_two_workers_one_killed(site: Site, tmp_path: Path) -> None:
    group = f"two-{'embedded' if hasattr(site, 'process') else 'workers'}"
    with connect(site, group, tmp_path, count=2) as workers:
        files = Files(workers[0], f"{group}-lines", tmp_path)
        for _ in range(3):
            files.write(200)
            eventually(files.arrived, 30)
        eventually(lambda: files.settled(workers[0]), 20)
        runner = workers[0].runner("source")
        killed, left = sorted(workers, key=lambda worker: worker.name != runner)
        killed.kill()
        files.write(200)
        eventually(files.arrived, 90)
        assert left.runner("source") == left.runner("sink") == left.name
        eventually(lambda: files.settled(left), 20)
        third = ConnectWorker(site.address, group, tmp_path / "third")
        try:
            third.wait_ready()
            eventually(lambda: third.name in (left.runner("source"), left.runner("sink")), 60)
            files.write(200)
            eventually(files.arrived, 60)
        finally:
            third.kill()
