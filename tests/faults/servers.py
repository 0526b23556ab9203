"""The servers that are killed and stopped under clients: one process, or several workers."""

import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness import Served, eventually, free_port
from tests.real_kafka import Kafka
from tests.wire import Wire
from tests.workers import Workers

WORKERS, SHARDS = 3, 8
_TAKEN_OVER_S = 16


class Servers(ABC):
    """The servers of connected clients, and the ways to disturb them."""

    address: str

    @abstractmethod
    def kill(self, rng: random.Random) -> None:
        """kill -9, and start again."""

    @abstractmethod
    def stop_one(self) -> None:
        """Stop a process until others do its work, and wake it."""

    @abstractmethod
    def wire(self, name: str) -> Wire:
        """Connect to the server of a queue's first partition, or of a group."""

    def wait_ready(self) -> None:
        """Wait until all of it works."""
        return


class Embedded(Servers):
    """One process, which is killed or stands still."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._directory, self._port, self._flags = directory, free_port(), flags
        self._server = self._start()
        self.address = f"127.0.0.1:{self._port}"

    def _start(self) -> Served:
        return Served(self._directory, *self._flags, port=self._port).wait_ready()

    def kill(self, rng: random.Random) -> None:
        self._server.kill()
        time.sleep(rng.random())
        self._server = self._start()

    def stop_one(self) -> None:
        self._server.process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        self._server.process.send_signal(signal.SIGCONT)

    def wire(self, name: str) -> Wire:
        return self._server.wire(name)

    def close(self) -> None:
        code = self._server.stop()
        assert code == 0, "".join(self._server.raw[-50:])
        assert not self._server.faults(), self._server.faults()


class OnKafka(Servers):
    """Several workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self._count = workers, len(workers.workers)
        self.address = workers.address

    def kill(self, rng: random.Random) -> None:
        index = rng.randrange(self._count)
        self._workers.workers[index].kill()
        time.sleep(rng.random())
        self._workers.again(index)

    def stop_one(self) -> None:
        self.wait_ready()
        stopped, *others = self._workers.workers
        its_own = stopped.served_shards()
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            eventually(
                lambda: its_own <= set().union(*(one.served_shards() for one in others)),
                _TAKEN_OVER_S,
            )
        finally:
            stopped.process.send_signal(signal.SIGCONT)

    def wire(self, name: str) -> Wire:
        return self._workers.wire(name)

    def wait_ready(self) -> None:
        for worker in self._workers.workers:
            worker.wait_ready(60)
        self._workers.wait_served(60)


@contextmanager
def disturbed(
    directory: Path, kafka: Kafka | None, *flags: str, count: int = WORKERS
) -> Iterator[Servers]:
    """Yield an embedded server, or workers on a Kafka."""
    if kafka is None:
        server = Embedded(directory / "data", *flags)
        try:
            yield server
        finally:
            server.close()
    else:
        workers = Workers(kafka, directory, *flags, count=count, shards=SHARDS)
        with workers.running():
            yield OnKafka(workers)
