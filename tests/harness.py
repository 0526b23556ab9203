"""A served kproxy, and what tests need around it."""

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from tests.forked import AS_INSTALLED, KPROXY, ROOT, Forked
from tests.jvm import SHORT_LIVED_JAVA, archived
from tests.marks import must_be_outside
from tests.running.cpu import note_start
from tests.wire import Wire

KAFKA_LIBS = ROOT / ".tools" / "kafka-libs"
NEWEST_KAFKA_LIBS = ROOT / ".tools" / "kafka44-libs"
SPARK_JARS = ROOT / ".tools" / "spark-jars"
CLIENT_JARS = ROOT / ".tools" / "client-jars"
OLD_KAFKA_PYTHON = ROOT / ".tools" / "kafka-python-2.0.2"
IN_CI = os.environ.get("CI") == "true"
_SLACK_S, _SLACK = 10, 4 if os.environ.get("PYTEST_XDIST_WORKER") else 1
"""The seconds from which on a wait only bounds a failure, and its factor on a busy machine.

A shorter wait is a claim: it happens at once, not by a timer.
"""


def need(present: Any, what: str) -> None:
    """Skip with the reason where the machine lacks something; in CI that is a failure."""
    if not present:
        (pytest.fail if IN_CI else pytest.skip)(f"this machine lacks {what}")


def need_program(name: str) -> str:
    must_be_outside(f"the program {name}")
    path = shutil.which(name)
    need(path, f"the program {name}")
    assert path
    return path


def free_port(count: int = 1) -> int:
    """Return the first of `count` free ports, below those that the system itself gives away."""
    while True:
        first = random.randrange(15_000, 30_000)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first


class Served:
    """A kproxy process. `events` are the log events it wrote so far.

    It is forked, or started as a user starts it: `by_exec`, with a `prefix`, or with another
    environment of the interpreter (LD_PRELOAD, PYTHONPATH).
    """

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        port: int = 0,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        by_exec: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self.events: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._ready = threading.Event()
        self._noted = False
        command = [
            *prefix, *KPROXY, "serve", "--listen", f"127.0.0.1:{port}",
            "--data-dir", str(data_dir), "--log-format", "json", *flags,
        ]  # fmt: skip
        self.process = (subprocess.Popen if by_exec else Forked)(
            command, stderr=subprocess.PIPE, text=True, errors="replace", cwd=ROOT,
            env=os.environ | AS_INSTALLED | (env or {}),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.raw.append(line)
            try:
                event = json.loads(line)
                name = event["event"]
            except (ValueError, TypeError, KeyError):  # two lines in one, or a warning
                continue
            self.events.append(event)
            if name == "ready":
                self._ready.set()
        self._ready.set()

    def wait_ready(self, seconds: float = 30) -> "Served":
        self._ready.wait(patient(seconds))
        ready = self.event("ready")
        if not ready:
            self.kill()
            raise AssertionError("kproxy did not get ready:\n" + "".join(self.raw))
        if not self._noted:
            self._noted = True
            note_start("kproxy", self.process.pid)
        host, _, port = ready["listen"].rpartition(":")
        self.host, self.port = host, int(port)
        return self

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def event(self, name: str) -> dict[str, Any] | None:
        return next((event for event in self.events if event["event"] == name), None)

    def served_shards(self) -> set[int]:
        """Return the shards of a cluster that this worker serves now."""
        shards = set()
        for event in list(self.events):
            if event["event"] == "shard_served":
                shards.add(event["shard"])
            elif event["event"] == "shard_left":
                shards.discard(event["shard"])
        return shards

    def wire(self, name: str, partition: int = 0) -> Wire:
        """Return a connection to the owner of a queue's partition: embedded, always this one."""
        return Wire(self.host, self.port)

    def faults(self) -> list[dict[str, Any]]:
        """Return events that say kproxy itself failed."""
        return [event for event in self.events if "exception" in event]

    def rss(self) -> int:
        """Return resident bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def disk_bytes(self) -> int:
        total = 0
        for path in self.data_dir.rglob("*"):
            with suppress(FileNotFoundError):  # deleted while we look
                total += path.stat().st_blocks * 512 if path.is_file() else 0
        return total

    def terminate(self) -> None:
        """Ask it to stop: `ended` waits for it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def ended(self, seconds: float = 30) -> int:
        code = self.process.wait(seconds)
        self._close()
        return code

    def stop(self, seconds: float = 30) -> int:
        self.terminate()
        return self.ended(seconds)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self._close()

    def _close(self) -> None:
        self._reader.join(10)
        if self.process.stderr:
            self.process.stderr.close()


@contextmanager
def served(data_dir: Path, *flags: str, **options: Any) -> Iterator[Served]:
    """Serve for the length of a block; at its end a clean stop is demanded."""
    server = Served(data_dir, *flags, **options)
    try:
        yield server.wait_ready()
    except BaseException:
        server.kill()
        print("".join(server.raw[-50:]))  # noqa: T201
        raise
    ended = server.process.poll() is not None  # by the test, or by itself
    code = server.ended() if ended else server.stop()
    told = f"it ended with status {code}:\n" + "".join(server.raw[-50:])
    assert code == 0 or (ended and code == -signal.SIGKILL), told
    assert not server.faults(), f"{server.faults()}\n{told}"


def patient(seconds: float) -> float:
    """Return how long to wait for what only a failure keeps away."""
    return seconds if seconds < _SLACK_S else seconds * _SLACK


def eventually(check: Callable[[], Any], seconds: float = 15, period: float = 0.05) -> Any:
    """Wait until `check()` is true, and return what it gave."""
    seconds = patient(seconds)
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(period)


class Working:
    """Threads that work until the end of a block; each looks at `_stop`."""

    def __init__(self, *calls: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=call) for call in calls]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)


async def until(check: Callable[[], Any], seconds: float = 30, period: float = 0.01) -> Any:
    """Wait as `eventually` does, in an event loop that goes on meanwhile."""
    seconds = patient(seconds)
    end = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < end, f"not within {seconds} s"
        await asyncio.sleep(period)
    return value


def stand_still(process: "subprocess.Popen[Any]") -> None:
    """Stop a process until SIGCONT: all its threads, which a signal alone takes a moment for."""

    def stopped() -> bool:
        try:
            stats = [(one / "stat").read_text() for one in threads.iterdir()]
        except FileNotFoundError:  # a thread has just ended
            return False
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    threads = Path(f"/proc/{process.pid}/task")
    process.send_signal(signal.SIGSTOP)
    eventually(stopped, period=0.001)


def java(
    main_class: str,
    *arguments: str,
    stdin: str | None = None,
    seconds: float = 120,
    libs: str | None = None,
) -> str:
    """Run one of Kafka's own tools; its standard output. Fails the test if the tool fails."""
    done = run_java(main_class, *arguments, stdin=stdin, seconds=seconds, libs=libs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


KAFKA_JAVA = (*SHORT_LIVED_JAVA, *archived(KAFKA_LIBS))
"""The same, where the class path begins with Kafka's jars."""
SPARK_ENV = {"JDK_JAVA_OPTIONS": " ".join(SHORT_LIVED_JAVA)}


def run_java(
    main_class: str,
    *arguments: str,
    stdin: str | None = None,
    seconds: float = 120,
    libs: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a Java program. `libs`: a class path in the place of Kafka's own."""
    need_program("java")
    need(KAFKA_LIBS.exists(), "Kafka's tools: make kafka-libs")
    command = [
        "java", "-Xmx256m", *(SHORT_LIVED_JAVA if libs else KAFKA_JAVA),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp", libs or f"{KAFKA_LIBS}/*", main_class, *arguments,
    ]  # fmt: skip
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False
    )
