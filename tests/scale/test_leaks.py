"""Half an hour of everything at once: what kproxy holds stays the same. Run with -s for figures.

Every cache has a small bound here, so that it is full before the measuring begins.
"""

import os
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.harness import Served, eventually, served
from tests.real_kafka import Kafka
from tests.workers import Site, Workers

pytestmark = pytest.mark.long

MINUTES = float(os.environ.get("LEAK_MINUTES", "30"))
PERIOD_S = 5
QUEUES = 300  # at a time; all the time new ones come and the oldest go
SMALL = (
    "--rows-cached-max", "2000", "--rows-cache-bytes", "4MiB", "--rows-flush-bytes", "4MiB",
    "--rows-flush-ms-max", "3000", "--segment-bytes", "16MiB", "--offsets-check-ms", "5000",
    "--group-initial-rebalance-delay-ms", "0",
)  # fmt: skip
GROWTH_MAX = 0.03
NOISE_BYTES = 4 << 20  # an allocator gives so much back late


class Users:
    """Threads that use one site until told to stop; what goes wrong is kept."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.rounds: dict[str, int] = {}
        self.errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._born = 0
        self._admin = AdminClient(self._client())
        users = (self.write, self.read, self.follow, self.operate, self.offend)
        self._threads = [threading.Thread(target=self._again, args=(user,)) for user in users]

    @contextmanager
    def at_work(self) -> Iterator["Users"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join(120)
                assert not thread.is_alive()

    def _again(self, user: Callable[[], None]) -> None:
        name = user.__name__
        try:
            while not self._stopping.wait(0.2):
                user()
                self.rounds[name] = self.rounds.get(name, 0) + 1
        except BaseException as error:
            self.errors.append(error)

    def _client(self, **more: object) -> dict[str, object]:
        return {"bootstrap.servers": self.site.address, "log_level": 0, **more}

    def _alive(self) -> list[str]:
        last = self._born
        return [f"life-{number}" for number in range(max(0, last - QUEUES), last)]

    # -- what they do, a round each

    def write(self) -> None:
        """Write by a new producer for ten new queues and a hundred old ones; the oldest ten go."""
        failed: list[object] = []
        producer = Producer(self._client(**{"enable.idempotence": True, "linger.ms": 5}))
        names = [f"life-{self._born + i}" for i in range(10)]
        for name in names + self.random.choices(self._alive() or names, k=100):
            for _ in range(3):
                producer.produce(
                    name,
                    self.random.randbytes(300),
                    on_delivery=lambda error, _: error and failed.append(error),
                )
        assert producer.flush(60) == 0
        assert not failed, failed[0]
        self._born += len(names)
        old = [f"life-{self._born - QUEUES - 50 - i}" for i in range(1, 11)]
        if self._born > QUEUES + 60:
            for future in self._admin.delete_topics(old, request_timeout=60).values():
                future.result()

    def read(self) -> None:
        """Read by a new group, which commits, leaves and is deleted."""
        if not (alive := self._alive()):
            return
        group = f"group-{self.rounds.get('read', 0)}"
        consumer = Consumer(self._client(**{"group.id": group, "auto.offset.reset": "earliest"}))
        consumer.subscribe(self.random.sample(alive[-100:], 5))
        seen = eventually(lambda: consumer.consume(100, 1), 60)
        assert not seen[0].error(), seen[0].error()
        consumer.commit(asynchronous=False)
        consumer.close()
        wanted = [ConsumerGroupTopicPartitions(group)]
        for future in self._admin.list_consumer_group_offsets(wanted).values():
            assert future.result().topic_partitions
        for future in self._admin.delete_consumer_groups([group], request_timeout=60).values():
            future.result()

    def follow(self) -> None:
        """Follow a hundred queues by a fetch session, with long polls."""
        if not (alive := self._alive()):
            return
        consumer = Consumer(self._client(**{"group.id": "nobody", "enable.auto.commit": False}))
        consumer.assign([TopicPartition(name, 0, 0) for name in alive[-100:]])
        end = time.monotonic() + 5
        while time.monotonic() < end:
            consumer.consume(500, 0.5)
        consumer.close()

    def operate(self) -> None:
        """Ask as people and tools do."""
        self._admin.list_topics(timeout=60)
        self._admin.list_consumer_groups(request_timeout=60).result()
        if alive := self._alive():
            queue = ConfigResource(ConfigResource.Type.TOPIC, alive[-1])
            for future in self._admin.describe_configs([queue], request_timeout=60).values():
                future.result()
        AdminClient(self._client()).list_topics(timeout=60)

    def offend(self) -> None:
        """Connect to send nonsense, stop inside a request, or leave at once."""
        for address in self.site.address.split(","):
            host, _, port = address.partition(":")
            for sent in (b"", b"\0\0\1\0half", b"\x7f\xff\xff\xff", self.random.randbytes(60)):
                with socket.create_connection((host, int(port)), 10) as wire:
                    wire.sendall(sent)


class Held:
    """The memory of a worker's process, sampled."""

    def __init__(self, name: str, worker: Served) -> None:
        self.name = name
        self._process = psutil.Process(worker.process.pid)
        self.samples: list[tuple[int, int, int]] = []

    def sample(self) -> None:
        process = self._process
        self.samples.append((process.memory_info().rss, process.num_fds(), process.num_threads()))

    def median(self, start: float, end: float) -> tuple[float, ...]:
        """Return the median of each kind, over a part of the time (0 to 1)."""
        count = len(self.samples)
        part = self.samples[int(count * start) : max(int(count * end), int(count * start) + 1)]
        return tuple(statistics.median(column) for column in zip(*part, strict=True))


def test_held_objects_stay_the_same(kafka: Kafka, tmp_path: Path) -> None:
    with (
        served(tmp_path / "embedded", *SMALL) as embedded,
        Workers(kafka, tmp_path, *SMALL, "--publish-ms", "2000", count=2).running() as workers,
        Users(embedded, 1).at_work() as one,
        Users(workers, 2).at_work() as other,
    ):
        held = [Held("embedded", embedded)]
        held += [Held(f"on Kafka, {i}", worker) for i, worker in enumerate(workers.workers)]
        end = time.monotonic() + MINUTES * 60
        while time.monotonic() < end and not (one.errors or other.errors):
            time.sleep(PERIOD_S)
            for process in held:
                process.sample()
        assert not one.errors + other.errors, (one.rounds, other.rounds)
        print(f"\nrounds: embedded {one.rounds}, on Kafka {other.rounds}")  # noqa: T201
        for process in held:
            parts = [process.median(i / 6, (i + 1) / 6) for i in range(6)]
            print(  # noqa: T201
                f"{process.name}: MiB {', '.join(f'{part[0] / (1 << 20):.1f}' for part in parts)};"
                f" files {[int(part[1]) for part in parts]}; threads {int(parts[-1][2])}"
            )
        for process in held:
            middle, late = process.median(1 / 3, 1 / 2), process.median(5 / 6, 1)
            assert late[0] < middle[0] * (1 + GROWTH_MAX) + NOISE_BYTES, process.name
            assert late[1] <= middle[1] * 1.2 + 20, process.name
            assert late[2] <= middle[2] + 2, process.name
