"""Work on queues while things break, and the checks afterwards.

Each queue has one idempotent producer's numbered records and a consumer that follows. Afterwards
every acknowledged record must have been read exactly once, in order, at the offset it was
acknowledged with, and offsets must be dense. An unacknowledged record may be there or not.
"""

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.harness import KAFKA_JAVA, KAFKA_LIBS, Working, need, need_program


class Load(Working):
    """Produces to and consumes from queues, in two threads, until `stop`."""

    def __init__(
        self, address: str, queues: list[str], per_second: int = 1000, **settings: object
    ) -> None:
        """Take `settings` of both clients; `_` in a name stands for `.`."""
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.queues = queues
        self._address = address
        self._per_second = per_second
        self.acknowledged: dict[str, dict[int, int]] = {q: {} for q in queues}  # number -> offset
        self.read: dict[str, list[tuple[int, int]]] = {q: [] for q in queues}  # (offset, number)
        self.refused: list[Any] = []
        self.consumer_errors: list[Any] = []
        self.pauses_s: dict[str, float] = {}  # the longest between two acknowledgements
        self._last_s: dict[str, float] = {}
        self.sent = 0
        self._all_sent = threading.Event()
        super().__init__(self._produce, self._consume)

    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def longest_pause_s(self) -> float:
        """Return the longest between two acknowledgements of a queue since this was asked last."""
        longest = max(self.pauses_s.values(), default=0.0)
        self.pauses_s.clear()
        return longest

    def wait_for(self, more: int, seconds: float = 60) -> None:
        """Wait until so many more records were acknowledged than now."""
        wanted, end = self.count() + more, time.monotonic() + seconds
        while self.count() < wanted:
            assert time.monotonic() < end, f"{wanted - self.count()} records not acknowledged"
            time.sleep(0.02)

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._address, "enable.idempotence": True, "linger.ms": 5,
                "message.timeout.ms": 120_000, "reconnect.backoff.max.ms": 500, "log_level": 0,
                "topic.metadata.refresh.interval.ms": 5000, **self._settings,
            }
        )  # fmt: skip
        began = time.monotonic()
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * self._per_second)
            while self.sent < due and len(producer) < 50_000:
                queue = self.queues[self.sent % len(self.queues)]
                producer.produce(
                    queue, b"%d" % self.sent, on_delivery=self._noted(queue, self.sent)
                )
                self.sent += 1
            producer.poll(0.01)
        assert producer.flush(60) == 0
        self._all_sent.set()

    def _noted(self, queue: str, number: int) -> Any:
        def note(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged[queue][number] = message.offset()
                now = time.monotonic()
                pause = now - self._last_s.get(queue, now)
                self.pauses_s[queue] = max(pause, self.pauses_s.get(queue, 0.0))
                self._last_s[queue] = now
            else:
                self.refused.append((number, error))

        return note

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._address, "group.id": "load", "log_level": 0,
                "enable.auto.commit": False, "auto.offset.reset": "error",
                "topic.metadata.refresh.interval.ms": 5000, "reconnect.backoff.max.ms": 500,
                **self._settings,
            }
        )  # fmt: skip
        consumer.assign([TopicPartition(queue, 0, 0) for queue in self.queues])
        end = None
        while end is None or time.monotonic() < end:
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    pair = (message.offset(), int(message.value()))
                    self.read[message.topic()].append(pair)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.consumer_errors.append(error)
            if self._all_sent.is_set():
                end = end or time.monotonic() + 60
                if all(len(self.read[q]) >= len(self.acknowledged[q]) for q in self.queues):
                    break
        consumer.close()

    def check(self) -> None:
        """Check after the block: the acknowledged records are the ones read."""
        assert not self.refused, self.refused[:3]
        assert not self.consumer_errors, self.consumer_errors[:3]
        assert self.count() == self.sent > 0
        for queue in self.queues:
            acknowledged, read = self.acknowledged[queue], self.read[queue]
            assert [offset for offset, _ in read] == list(range(len(read))), queue
            assert read == sorted((o, n) for n, o in acknowledged.items()), queue
            numbers = [number for _, number in read]
            assert numbers == sorted(set(numbers)), queue


class JavaLoad:
    """Kafka's VerifiableProducer with a Java producer's defaults, on one queue, until `stop`."""

    def __init__(self, address: str, queue: str, directory: Path, per_second: int = 200) -> None:
        need_program("java")
        need(KAFKA_LIBS.exists(), "Kafka's tools: make kafka-libs")
        self._address, self._queue = address, queue
        self.acknowledged: dict[int, int] = {}  # number -> offset
        self.refused: list[Any] = []
        defaults = directory / "producer.properties"  # the tool itself retries nothing
        defaults.write_text("retries=2147483647\nenable.idempotence=true\n")
        self._process = subprocess.Popen(
            [
                "java", "-Xmx128m", *KAFKA_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                "-cp", f"{KAFKA_LIBS}/*", "org.apache.kafka.tools.VerifiableProducer",
                "--bootstrap-server", address, "--topic", queue, "--acks", "-1",
                "--throughput", str(per_second), "--command-config", str(defaults),
            ],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "JavaLoad":
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(150)  # it waits for what is under way
        self._reader.join(10)
        assert self._process.stdout
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            said = json.loads(line) if line.startswith("{") else {"name": line}
            if said["name"] == "producer_send_success":
                self.acknowledged[int(said["value"])] = said["offset"]
            elif said["name"] == "producer_send_error":
                self.refused.append(said)

    def wait_for(self, more: int, seconds: float = 120) -> None:
        """Wait until so many more records were acknowledged than now."""
        wanted, end = len(self.acknowledged) + more, time.monotonic() + seconds
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < end, f"{wanted - len(self.acknowledged)} not acknowledged"
            time.sleep(0.02)

    def check(self) -> None:
        """Check after the block: all that is there was acknowledged, once and in order."""
        assert not self.refused, self.refused[:3]
        consumer = Consumer(
            {
                "bootstrap.servers": self._address, "group.id": "check", "log_level": 0,
                "enable.auto.commit": False, "enable.partition.eof": True,
            }
        )  # fmt: skip
        consumer.assign([TopicPartition(self._queue, 0, 0)])
        read: list[tuple[int, int]] = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            read.append((message.offset(), int(message.value())))
        consumer.close()
        assert read == sorted((offset, number) for number, offset in self.acknowledged.items())
        assert [offset for offset, _ in read] == list(range(len(read)))
        assert [number for _, number in read] == sorted({number for _, number in read})
