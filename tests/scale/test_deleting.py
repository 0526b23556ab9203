"""100,000 queues deleted while others are in use: run with -s to see the figures."""

import threading
import time
from pathlib import Path

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.partitioner import shard_of
from tests.harness import Served, eventually, served
from tests.real_kafka import Kafka
from tests.wire import Wire, batch
from tests.workers import Site, Workers

pytestmark = pytest.mark.long

QUEUES = 100_000


class Traffic(threading.Thread):
    """Produces to one queue and reads it back, all the time; latencies in seconds."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self._site = site
        self.latencies: list[float] = []
        self.stopping = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._site.wire("live") as wire:
                offset = 0
                while not self.stopping:
                    began = time.monotonic()
                    answer = wire.produce("live", batch(b"x" * 100))
                    assert (answer.error_code, answer.base_offset) == (0, offset)
                    assert wire.fetch("live", offset).records
                    self.latencies.append(time.monotonic() - began)
                    offset += 1
        except BaseException as error:
            self.error = error

    def window(self) -> list[float]:
        taken, self.latencies = self.latencies, []
        return sorted(taken)


def p(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] * 1000


def fill(site: Site, names: list[str]) -> None:
    """Write a record in each, many in a request, to the worker that serves them."""
    by_port: dict[int, list[str]] = {}
    if isinstance(site, Workers):
        owners = site.owners()
        for name in names:
            port = site.ports[owners[shard_of(name, site.shards)]]
            by_port.setdefault(port, []).append(name)
    else:
        by_port[site.port] = names
    for port, mine in by_port.items():
        with Wire("127.0.0.1", port, seconds=60) as wire:
            for start in range(0, len(mine), 500):
                topics = [
                    {"name": n, "partition_data": [{"index": 0, "records": batch(b"x" * 50)}]}
                    for n in mine[start : start + 500]
                ]
                values = {"transactional_id": None, "acks": -1, "timeout": 30_000,
                          "topic_data": topics}  # fmt: skip
                for answer in wire.call(ApiKey.PRODUCE, 9, values).responses:
                    assert answer.partition_responses[0].error_code == 0


def delete_all(site: Site, names: list[str]) -> None:
    with site.wire("live") as wire:
        wire.socket.settimeout(60)
        for start in range(0, len(names), 500):
            topics = [{"name": name, "topic_id": None} for name in names[start : start + 500]]
            for answer in wire.call(
                ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 60_000}
            ).responses:
                assert answer.error_code == 0, answer


def deleting(site: Site, what: str) -> None:
    names = [f"doomed-{i}" for i in range(QUEUES)]
    with site.wire("live") as wire:
        wire.create("live")
    fill(site, names)
    traffic = Traffic(site)
    traffic.start()
    time.sleep(5)
    before = traffic.window()
    began = time.monotonic()
    delete_all(site, names)
    took = time.monotonic() - began
    during = traffic.window()
    time.sleep(5)
    after = traffic.window()
    traffic.stopping = True
    traffic.join(30)
    assert traffic.error is None, traffic.error
    print(  # noqa: T201
        f"\n{what}: {QUEUES} queues deleted in {took:.1f} s; produce and fetch of a live queue,"
        f" p50/p99/max ms: before {p(before, 0.5):.1f}/{p(before, 0.99):.1f}/{p(before, 1):.1f},"
        f" during {p(during, 0.5):.1f}/{p(during, 0.99):.1f}/{p(during, 1):.1f},"
        f" after {p(after, 0.5):.1f}/{p(after, 0.99):.1f}/{p(after, 1):.1f}"
    )
    assert p(during, 1) < 3000
    with site.wire("doomed-1") as wire:
        assert wire.fetch("doomed-1", 0).error_code == 3


def test_embedded(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--keeper-period-ms", "200") as server:
        deleting(server, "embedded")
        eventually(lambda: rows_left(server) < 100, 60, 2)


def rows_left(server: Served) -> int:
    """Return entries of the `kproxy queues` pages, as a check that nothing of the dead is
    listed.
    """
    with server.wire("live") as wire:
        values = {"topics": (), "response_partition_limit": 2000, "cursor": None}
        return len(wire.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, values).topics)


def test_on_kafka(kafka: Kafka, tmp_path: Path) -> None:
    with Workers(kafka, tmp_path, count=2, shards=8).running() as workers:
        deleting(workers, "two workers on a real Kafka")
