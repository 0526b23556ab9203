"""Records from queues into queues exactly once, while clients die; and who checks it afterwards.

    python -m tests.clients.transactions.exactly_once ADDRESS PREFIX SLOT QUEUES RECORDS PAUSE_MS

copies PREFIX-in-k to PREFIX-out-k with librdkafka, a transaction for each handful of records, and
each seventh is aborted once before it is committed. A processor that meets an error ends, as many
do: its successor in the same slot begins where the committed offsets are. `Transactions.java` does
it too.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kproxy.loop.callbacks import nothing
from tests.clients.calls import WAIT_S, create
from tests.clients.transactions.calls import (
    COMMITTED,
    abort,
    commit,
    committed_offsets,
    read,
    transactional,
)
from tests.harness import KAFKA_JAVA, KAFKA_LIBS, ROOT, need, need_program

JAVA_PROGRAM = Path(__file__).with_name("Transactions.java")
AT_ONCE = 100  # records of a transaction that fills the input
ABORTED_EACH = 7  # one transaction of a processor in so many


def process(address: str, prefix: str, slot: str, queues: int, count: int, pause_s: float) -> None:
    """Work until something fails."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": prefix, "group.instance.id": slot,
         "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "isolation.level": COMMITTED,
         "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
         "reconnect.backoff.max.ms": 200}
    )  # fmt: skip
    producer = transactional(address, f"{prefix}-{slot}", **{"transaction.timeout.ms": 10_000})
    consumer.subscribe([f"{prefix}-in-{number}" for number in range(queues)])
    number = 0
    while True:
        messages = [one for one in consumer.consume(count, 0.2) if not one.error()]
        if not messages:
            continue
        number += 1
        if number % ABORTED_EACH == 0:
            _copy(producer, consumer, messages, b"aborted ")
            producer.abort_transaction(WAIT_S)
        _copy(producer, consumer, messages)
        producer.commit_transaction(WAIT_S)
        time.sleep(pause_s)


def _copy(producer: Producer, consumer: Consumer, messages: Sequence, mark: bytes = b"") -> None:
    positions = {one.topic(): one.offset() + 1 for one in messages}
    producer.begin_transaction()
    for one in messages:
        producer.produce(one.topic().replace("-in-", "-out-"), mark + one.value())
    producer.send_offsets_to_transaction(
        [TopicPartition(queue, 0, offset) for queue, offset in positions.items()],
        consumer.consumer_group_metadata(), WAIT_S,
    )  # fmt: skip
    assert producer.flush(WAIT_S) == 0


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


class Work:
    """Queues with numbered records, and the processes that copy them."""

    def __init__(self, address: str, prefix: str, queues: int) -> None:
        self.address, self.prefix = address, prefix
        names = [f"{prefix}-{way}-{n}" for way in ("in", "out") for n in range(queues)]
        self.sources, self.targets = names[:queues], names[queues:]
        create(address, *names)
        self.wanted: dict[str, list[bytes]] = {name: [] for name in self.targets}
        self._written = 0
        self._last: dict[str, int] = {}  # behind the last record: a marker may come after it
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._born: dict[str, float] = {}
        self.ended = self.killed = 0

    def fill(
        self, records: int, producer: Producer | None = None, done: Callable[[], None] = nothing
    ) -> None:
        """Write records in transactions over all queues, and call `done` after each.

        Each fifth is aborted and written again.
        """
        producer = producer or transactional(self.address, f"{self.prefix}-fill")
        for number, first in enumerate(range(self._written, self._written + records, AT_ONCE)):
            some = []
            for value in range(first, min(first + AT_ONCE, self._written + records)):
                index = value % len(self.sources)
                some.append((self.sources[index], b"%d" % value))
                self.wanted[self.targets[index]].append(b"%d" % value)
            if number % 5 == 0:
                abort(producer, [(queue, b"aborted in " + value) for queue, value in some])
                done()
            last = commit(producer, some)
            self._last |= {queue: offset + 1 for queue, offset in last.items()}
            done()
        self._written += records

    def start(self, slot: str, client: str, classes: Path, count: int, pause_ms: int) -> None:
        if client == "java":
            command = [
                need_program("java"), "-Xmx128m", *KAFKA_JAVA,
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{KAFKA_LIBS}/*:{classes}",
                "Transactions", "process",
            ]  # fmt: skip
        else:
            command = [sys.executable, "-m", "tests.clients.transactions.exactly_once"]
        self._commands[slot] = [
            *command, self.address, self.prefix, slot, str(len(self.sources)), str(count),
            str(pause_ms),
        ]  # fmt: skip
        self.log = classes / "processors.log"
        self._begin(slot)

    def _begin(self, slot: str) -> None:
        with self.log.open("ab") as out:
            self._processes[slot] = subprocess.Popen(
                self._commands[slot], cwd=ROOT, stdout=out, stderr=out
            )
        self._born[slot] = time.monotonic()

    @property
    def slots(self) -> list[str]:
        return list(self._processes)

    def process(self, slot: str) -> subprocess.Popen[bytes]:
        return self._processes[slot]

    def kill(self, slot: str) -> None:
        self._processes[slot].kill()
        self._processes[slot].wait(30)
        self.killed += 1

    def revive(self) -> None:
        """Start again who has ended, by itself or not, but none twice a second."""
        for slot, process in self._processes.items():
            if process.poll() is not None and time.monotonic() > self._born[slot] + 1:
                self.ended += 1
                self._begin(slot)

    def done(self) -> bool:
        """Whether all that is committed in the input was processed, as the group's offsets say."""
        try:
            return committed_offsets(self.address, self.prefix, self.sources) == self._last
        except (KafkaException, TimeoutError):  # pending offsets; a server that is away
            return False

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(30)

    def problems(self, isolation: str = COMMITTED) -> list[str]:
        found = read(self.address, self.targets, isolation)
        values = {queue: [value for _, value in seen] for queue, seen in found.items()}
        return problems(self.wanted, values)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]


def compiled(directory: Path, program: Path = JAVA_PROGRAM) -> Path:
    """Return a directory with the classes of a Java program, which is started often."""
    need(KAFKA_LIBS.exists(), "Kafka's libraries: make kafka-libs")
    subprocess.run(
        [need_program("javac"), "-cp", f"{KAFKA_LIBS}/*", "-d", str(directory), str(program)],
        check=True, timeout=120,
    )  # fmt: skip
    return directory


if __name__ == "__main__":
    address, prefix, slot, queues, count, pause_ms = sys.argv[1:]
    process(address, prefix, slot, int(queues), int(count), int(pause_ms) / 1000)
