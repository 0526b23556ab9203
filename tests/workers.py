"""Several kproxy processes on one real Kafka."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kproxy.virtual.partitioner import shard_of
from tests.harness import Served, eventually, free_port
from tests.real_kafka import RunningKafka
from tests.wire import Wire

SIDE_BY_SIDE = os.environ.get("PYTEST_XDIST_WORKER", "")
"""The name of this process of xdist, or nothing."""
_prefixes = itertools.count()
NOT_DRAINED = ("--drain-ms-max", "0")
"""SIGTERM stops at once: a test that ends hands nothing over."""


class Workers:
    """Workers with a topic prefix of their own; `address` names them all."""

    def __init__(
        self, kafka: RunningKafka, directory: Path, *flags: str, count: int = 2, shards: int = 8,
        prefix: str | None = None, env: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.kafka = kafka
        self.env = env
        self.directory = directory
        self.shards = shards
        self.prefix = prefix or f"t{SIDE_BY_SIDE}-{next(_prefixes)}"
        self.flags = (
            "--bootstrap-servers", kafka.address, "--topic-prefix", self.prefix, "--shards",
            str(shards), "--allow-single-replica", *NOT_DRAINED, *flags,
        )  # fmt: skip
        first = free_port(count)
        self.ports = list(range(first, first + count))
        self.workers = [self.start(i) for i in range(count)]

    def start(self, index: int) -> Served:
        return Served(
            self.directory / f"worker-{index}", *self.flags, port=self.ports[index], env=self.env
        )

    def again(self, index: int) -> Served:
        """Start a worker that has ended at its old address, on its old directory."""
        self.workers[index] = self.start(index)
        return self.workers[index]

    @contextmanager
    def running(self, seconds: float = 60) -> Iterator["Workers"]:
        """Serve for the length of a block, once ready; at its end clean stops are demanded."""
        try:
            yield self.wait_ready(seconds)
        except BaseException:
            for worker in self.workers:
                worker.kill()
                print(f"--- worker on {worker.process.args}", "".join(worker.raw[-60:]))  # noqa: T201
            raise
        living = [worker for worker in self.workers if worker.process.poll() is None]
        for worker in living:  # all at once
            worker.terminate()
        for worker in living:
            assert worker.ended() == 0, "".join(worker.raw[-50:])
        for worker in self.workers:
            assert not worker.faults(), worker.faults()

    def wait_ready(self, seconds: float = 60) -> "Workers":
        for worker in self.workers:
            worker.wait_ready(seconds)
        self.wait_balanced(seconds)
        return self

    def wait_served(self, seconds: float = 30) -> None:
        """Wait until every shard has an owner among the living."""
        eventually(lambda: len(self.owners()) == self.shards, seconds)

    def wait_balanced(self, seconds: float = 20) -> dict[int, int]:
        """Return worker by shard, once every shard has an owner and every worker its share.

        The first worker has all until the second has joined: a test that acts while shards are
        handed over means to test that, or it waits.
        """

        def owners() -> dict[int, int] | None:
            found = self.owners()
            share = self.shards // len(self.workers)
            sizes = [list(found.values()).count(index) for index in range(len(self.workers))]
            return found if len(found) == self.shards and min(sizes) >= share else None

        found: dict[int, int] = eventually(owners, seconds)
        return found

    def owners(self) -> dict[int, int]:
        """Return worker by shard, as their logs say."""
        found = {}
        for index, worker in enumerate(self.workers):
            if worker.process.poll() is None:
                found |= dict.fromkeys(worker.served_shards(), index)
        return found

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def owner(self, name: str, partition: int = 0) -> Served:
        """Return the worker that serves a queue's partition, or a group."""
        return self.workers[self.owners()[shard_of(name, self.shards, partition)]]

    def wire(self, name: str, partition: int = 0) -> Wire:
        """Return a connection to the worker that serves a queue's partition."""
        return self.owner(name, partition).wire(name, partition)


Site = Served | Workers
"""A server that client tests run against: an embedded kproxy, or workers on a real Kafka."""


def known_everywhere(site: Site, *names: str) -> None:
    """Wait until each worker has heard of these queues: a client may ask any of them about one."""
    for worker in site.workers if isinstance(site, Workers) else [site]:
        with Wire(worker.host, worker.port) as wire:

            def heard(wire: Wire = wire) -> bool:
                return not any(t.error_code for t in wire.metadata(*names, create=False).topics)

            eventually(heard)
