"""Records from queues into queues exactly once, while clients die; and who checks it afterwards.

    python -m tests.clients.transactions.exactly_once ADDRESS PREFIX SLOT QUEUES RECORDS PAUSE_MS \
        HISTORIES

copies PREFIX-in-k to PREFIX-out-k with librdkafka, a transaction for each handful of records, and
each seventh is aborted once before it is committed. It records that in a file of HISTORIES, as
does who fills and who reads (`tests/histories`). A processor that meets an error ends, as many
do: its successor in the same slot begins where the committed offsets are. `Transactions.java` does
it too.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer

from kproxy.loop.callbacks import nothing
from tests.clients.calls import create
from tests.clients.transactions.calls import (
    COMMITTED,
    UNCOMMITTED,
    committed_offsets,
    ends,
    read,
    transactional,
)
from tests.clients.transactions.processes import Processes
from tests.clients.transactions.recorded import Transaction, places, poll
from tests.harness import KAFKA_JAVA, KAFKA_LIBS, need, need_program
from tests.histories.operations import Recorder

JAVA_PROGRAM = Path(__file__).with_name("Transactions.java")
AT_ONCE = 100  # records of a transaction that fills the input
ABORTED_EACH = 7  # one transaction of a processor in so many


def process(
    address: str, prefix: str, slot: str, queues: int, count: int, pause_s: float, histories: Path
) -> None:
    """Work until something fails."""
    name = f"{slot}.{os.getpid()}"
    recorder = Recorder(histories / f"{name}.jsonl", name)
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": prefix, "group.instance.id": slot,
         "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "isolation.level": COMMITTED,
         "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
         "reconnect.backoff.max.ms": 200}
    )  # fmt: skip
    producer = transactional(address, f"{prefix}-{slot}", **{"transaction.timeout.ms": 10_000})
    consumer.subscribe(
        [f"{prefix}-in-{number}" for number in range(queues)],
        on_assign=lambda _, parts: recorder.event("ok", "assign", places(parts)),
    )
    number = 0
    while True:
        messages = poll(recorder, consumer, count, 0.2)
        if not messages:
            continue
        number += 1
        positions = {one.topic() or "": (one.offset() or 0) + 1 for one in messages}
        for mark in (b"aborted ", b"") if number % ABORTED_EACH == 0 else (b"",):
            copies = [
                ((one.topic() or "").replace("-in-", "-out-"), mark + (one.value() or b""))
                for one in messages
            ]
            copying = Transaction(recorder, producer, copies)
            for queue, value in copies:
                copying.send(queue, value)
            copying.commit_offsets(consumer, prefix, positions)
            if mark:
                copying.abort()
            else:
                copying.commit()
        time.sleep(pause_s)


def problems(wanted: Mapping[str, list[bytes]], found: Mapping[str, list[bytes]]) -> list[str]:
    """List the differences between the records found and those that each queue must have."""
    said = []
    for queue, values in wanted.items():
        seen, must = Counter(found[queue]), Counter(values)
        for value, times in (must - seen).items():
            said.append(f"{queue}: lost {value!r}, {times} times")
        for value, times in (seen - must).items():
            kind = "doubled" if value in must else "never committed"
            said.append(f"{queue}: {kind} {value!r}, {times} times")
        if seen == must and found[queue] != values:
            pairs = zip(found[queue], values, strict=True)
            at, (other, value) = next((n, p) for n, p in enumerate(pairs) if p[0] != p[1])
            said.append(f"{queue}: reordered, {other!r} at {at} in the place of {value!r}")
    return said


class Work(Processes):
    """Queues with numbered records, and the processes that copy them."""

    def __init__(self, address: str, prefix: str, queues: int, histories: Path) -> None:
        super().__init__(histories.parent / "processors.log")
        self.address, self.prefix = address, prefix
        names = [f"{prefix}-{way}-{n}" for way in ("in", "out") for n in range(queues)]
        self.sources, self.targets = names[:queues], names[queues:]
        create(address, *names)
        self.wanted: dict[str, list[bytes]] = {name: [] for name in self.targets}
        self._written = 0
        self._last: dict[str, int] = {}  # behind the last record: a marker may come after it
        self._fillers = self._readers = 0
        self.histories = histories
        self._recorder = Recorder(histories / "test.jsonl", "test")
        self._recorder.rules(whole=True)

    def fill(
        self, records: int, producer: Producer | None = None, done: Callable[[], None] = nothing
    ) -> None:
        """Write records in transactions over all queues, and call `done` after each.

        Each fifth is aborted and written again.
        """
        producer = producer or transactional(self.address, f"{self.prefix}-fill")
        self._fillers += 1
        for number, first in enumerate(range(self._written, self._written + records, AT_ONCE)):
            some = []
            for value in range(first, min(first + AT_ONCE, self._written + records)):
                index = value % len(self.sources)
                some.append((self.sources[index], b"%d" % value))
                self.wanted[self.targets[index]].append(b"%d" % value)
            if number % 5 == 0:
                self._write(producer, [(queue, b"aborted in " + value) for queue, value in some])
                done()
            last = self._write(producer, some, commit=True)
            self._last |= {queue: offset + 1 for queue, offset in last.items()}
            done()
        self._written += records

    def _write(
        self, producer: Producer, some: list[tuple[str, bytes]], *, commit: bool = False
    ) -> dict[str, int]:
        """Write records in a transaction; return the offset of the last one in each queue."""
        writing = Transaction(self._recorder, producer, some, f"filler {self._fillers}")
        for queue, value in some:
            writing.send(queue, value)
        if commit:
            writing.commit()
        else:
            writing.abort()
        return writing.last()

    def start(self, slot: str, client: str, classes: Path, count: int, pause_ms: int) -> None:
        if client == "java":
            command = [
                need_program("java"), "-Xmx128m", *KAFKA_JAVA,
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{KAFKA_LIBS}/*:{classes}",
                "Transactions", "process",
            ]  # fmt: skip
        else:
            command = [sys.executable, "-m", "tests.clients.transactions.exactly_once"]
        self.run(
            slot, *command, self.address, self.prefix, slot, str(len(self.sources)), str(count),
            str(pause_ms), str(self.histories),
        )  # fmt: skip

    def done(self) -> bool:
        """Whether all that is committed in the input was processed, as the group's offsets say."""
        looking = self._recorder.invoke("offsets")
        try:
            found = committed_offsets(self.address, self.prefix, self.sources)
        except (KafkaException, TimeoutError):  # pending offsets; a server that is away
            looking.fail()
            return False
        looking.ok([self.prefix, [[queue, 0, offset] for queue, offset in found.items()]])
        return found == self._last

    def look_at_ends(self) -> None:
        """Record the ends of all queues, as both kinds of readers see them."""
        for level in (COMMITTED, UNCOMMITTED):
            looking = self._recorder.invoke("ends", level)
            found = ends(self.address, [*self.sources, *self.targets], level)
            looking.ok([[queue, 0, end] for queue, end in found.items()])

    def read(self, isolation: str = COMMITTED) -> dict[str, list[tuple[int, bytes]]]:
        """Read all queues, by a consumer of its own."""
        self._readers += 1
        reading = self._recorder.invoke("poll", isolation, f"reader {self._readers}")
        found = read(self.address, [*self.sources, *self.targets], isolation)
        reading.ok(
            [[queue, 0, at, value] for queue, some in found.items() for at, value in some]
        )  # fmt: skip
        return found

    def problems(self, isolation: str = COMMITTED) -> list[str]:
        found = self.read(isolation)
        values = {queue: [value for _, value in seen] for queue, seen in found.items()}
        return problems(self.wanted, values)


def compiled(directory: Path, program: Path = JAVA_PROGRAM) -> Path:
    """Return a directory with the classes of a Java program, which is started often."""
    need(KAFKA_LIBS.exists(), "Kafka's libraries: make kafka-libs")
    subprocess.run(
        [need_program("javac"), "-cp", f"{KAFKA_LIBS}/*", "-d", str(directory), str(program)],
        check=True, timeout=120,
    )  # fmt: skip
    return directory


if __name__ == "__main__":
    address, prefix, slot, queues, count, pause_ms, histories = sys.argv[1:]
    pause_s = int(pause_ms) / 1000
    process(address, prefix, slot, int(queues), int(count), pause_s, Path(histories))
