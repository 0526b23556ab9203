"""Servers that live for a whole run: one real Kafka, and kproxys that modules share.

The processes of xdist share the Kafka. The one that needs it first starts it; the process that
started the others outlives them, also those that crash, and ends it.
"""

import fcntl
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness import eventually
from tests.real_kafka import Kafka, RunningKafka
from tests.workers import SIDE_BY_SIDE, Site, Workers

_STARTED = "kafka.json"
_kafkas: list[Kafka] = []


def kafka_of_run(factory: pytest.TempPathFactory) -> RunningKafka:
    """Return the Kafka of this run; start it where nobody has."""
    base = factory.getbasetemp()
    directory = base.parent if SIDE_BY_SIDE else base
    with (directory / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = directory / _STARTED
        if started.exists():
            return RunningKafka(**json.loads(started.read_text()))
        kafka = Kafka(Path(tempfile.mkdtemp(prefix="kafka-", dir=directory)))
        _kafkas.append(kafka)  # kept: it outlives this process, perhaps
        kafka.wait_ready()
        told = {"port": kafka.port, "pid": kafka.process.pid}
        started.write_text(json.dumps(told))
        return RunningKafka(**told)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the Kafka of the run, where this process outlives all others."""
    factory: pytest.TempPathFactory | None = getattr(session.config, "_tmp_path_factory", None)
    if SIDE_BY_SIDE or factory is None or factory._basetemp is None:
        return
    for kafka in _kafkas:
        kafka.stop()
    with suppress(FileNotFoundError, ProcessLookupError):
        pid = json.loads((factory.getbasetemp() / _STARTED).read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), 30)


Start = Callable[[], AbstractContextManager[Site]]


class Sites:
    """The running kproxys, by a key that says what they are."""

    def __init__(self) -> None:
        self._running: dict[object, tuple[Site, ExitStack]] = {}

    @contextmanager
    def lent(self, key: object, start: Start) -> Iterator[Site]:
        """Lend a running one, for the length of a block.

        One that failed in it is not lent again.
        """
        if key not in self._running:
            stack = ExitStack()
            self._running[key] = stack.enter_context(start()), stack
        site, _ = self._running[key]
        yield site
        workers = site.workers if isinstance(site, Workers) else [site]
        if any(one.process.poll() is not None or one.faults() for one in workers):
            self._end(key)
            ended = [line for one in workers for line in one.raw[-50:]]
            pytest.fail("a shared kproxy has ended:\n" + "".join(ended))

    def close(self) -> None:
        """End all; clean stops are demanded."""
        with ExitStack() as all_of_them:
            for key in self._running:
                all_of_them.callback(self._running[key][1].close)
        self._running.clear()

    def _end(self, key: object) -> None:
        _, stack = self._running.pop(key)
        stack.close()
