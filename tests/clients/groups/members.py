"""Members of a group, of every kind of client, each noting what it was given."""

import asyncio
import json
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer
from kafka import KafkaConsumer

from tests.harness import KAFKA_JAVA, KAFKA_LIBS, need_program

Seen = tuple[str, int, int]
"""Queue, partition, offset."""


class Member(ABC):
    """A member that consumes and commits until it is stopped; `seen` is in order of delivery."""

    def __init__(self, address: str, group: str, topics: list[str]) -> None:
        self.address = address
        self.group = group
        self.topics = topics
        self.seen: list[Seen] = []
        self.assigned: set[tuple[str, int]] = set()
        self.errors: list[Any] = []
        self.stopping = False

    @abstractmethod
    def start(self) -> "Member": ...

    @abstractmethod
    def stop(self) -> None:
        """Leave the group, having committed all that was delivered."""


class _InThread(Member):
    def start(self) -> Member:
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()
        return self

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.errors.append(error)

    @abstractmethod
    def _run(self) -> None: ...

    def stop(self) -> None:
        self.stopping = True
        self._thread.join(40)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors


class Librdkafka(_InThread):
    settings: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}  # noqa: RUF012

    def _run(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": self.group, "log_level": 0,
             "auto.offset.reset": "earliest", "enable.auto.commit": False,
             "topic.metadata.refresh.interval.ms": 1000, **self.settings}
        )  # fmt: skip
        consumer.subscribe(self.topics)
        try:
            while not self.stopping:
                records = consumer.consume(200, 0.1)
                for record in records:
                    if record.error():
                        assert record.error().retriable() or record.error().code() in (
                            -195, -187, 3,
                        ), record.error()  # fmt: skip
                    else:
                        self.seen.append((record.topic(), record.partition(), record.offset()))
                if any(not record.error() for record in records):
                    self._commit(consumer)
                self.assigned = {(p.topic, p.partition) for p in consumer.assignment()}
        finally:
            consumer.close()

    def _commit(self, consumer: Consumer) -> None:
        from confluent_kafka import KafkaException

        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:  # in the middle of a rebalance, or a takeover
            self.errors_ok = error


class LibrdkafkaConsumerProtocol(Librdkafka):
    settings: dict[str, Any] = {"group.protocol": "consumer"}  # noqa: RUF012


class LibrdkafkaCooperative(Librdkafka):
    settings: dict[str, Any] = {  # noqa: RUF012
        **Librdkafka.settings, "partition.assignment.strategy": "cooperative-sticky",
    }  # fmt: skip


class KafkaPython(_InThread):
    def _run(self) -> None:
        consumer = KafkaConsumer(
            *self.topics, bootstrap_servers=self.address, group_id=self.group,
            auto_offset_reset="earliest", enable_auto_commit=False, session_timeout_ms=6000,
            heartbeat_interval_ms=500, metadata_max_age_ms=1000,
        )  # fmt: skip
        try:
            while not self.stopping:
                for part, records in consumer.poll(timeout_ms=100).items():
                    self.seen += [(part.topic, part.partition, r.offset) for r in records]
                self._commit(consumer)
                self.assigned = {(p.topic, p.partition) for p in consumer.assignment()}
        finally:
            consumer.close(autocommit=False)

    def _commit(self, consumer: KafkaConsumer) -> None:
        from kafka.errors import KafkaError

        try:
            consumer.commit()
        except KafkaError as error:  # in the middle of a rebalance
            self.errors_ok = error


class AioKafka(_InThread):
    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka.errors import KafkaError

        consumer = AIOKafkaConsumer(
            *self.topics, bootstrap_servers=self.address, group_id=self.group,
            auto_offset_reset="earliest", enable_auto_commit=False, session_timeout_ms=6000,
            heartbeat_interval_ms=500, metadata_max_age_ms=1000,
        )  # fmt: skip
        await consumer.start()
        try:
            while not self.stopping:
                for part, records in (await consumer.getmany(timeout_ms=100)).items():
                    self.seen += [(part.topic, part.partition, r.offset) for r in records]
                try:
                    await consumer.commit()
                except KafkaError as error:  # in the middle of a rebalance
                    self.errors_ok = error
                self.assigned = {(p.topic, p.partition) for p in consumer.assignment()}
        finally:
            await consumer.stop()


class Java(Member):
    """Kafka's own VerifiableConsumer, which commits what it was given and says so."""

    flags: tuple[str, ...] = ("--session-timeout", "6000")

    def command(self) -> list[str]:
        return [
            "org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", self.address,
            "--group-id", self.group, "--topic", ",".join(self.topics), "--reset-policy",
            "earliest", "--verbose", *self.flags,
        ]  # fmt: skip

    def start(self) -> Member:
        self._process = subprocess.Popen(
            [need_program("java"), *KAFKA_JAVA, "-cp", f"{KAFKA_LIBS}/*",
             "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *self.command()],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            parts = {(p["topic"], p["partition"]) for p in event.get("partitions", ())
                     if "topic" in p}  # fmt: skip
            if event["name"] == "record_data":
                self.seen.append((event["topic"], event["partition"], event["offset"]))
            elif event["name"] == "partitions_assigned":
                self.assigned |= parts
            elif event["name"] == "partitions_revoked":
                self.assigned -= parts

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(40)
        self._reader.join(10)
        assert self._process.stdout
        self._process.stdout.close()


class JavaConsumerProtocol(Java):
    flags = ("--group-protocol", "consumer")


class JavaByRegex(Java):
    """Kafka's console consumer on all queues that a regular expression matches, RE2 on the server.

    Records say which queue and offset they are: `name:offset`.
    """

    def command(self) -> list[str]:
        return [
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", self.address,
            "--group", self.group, "--include", self.topics[0], "--from-beginning",
            "--command-property", "group.protocol=consumer",
        ]  # fmt: skip

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            name, _, offset = line.strip().partition(":")
            self.seen.append((name, 0, int(offset)))


KINDS: dict[str, Callable[[str, str, list[str]], Member]] = {
    "librdkafka": Librdkafka,
    "librdkafka-cooperative": LibrdkafkaCooperative,
    "librdkafka-consumer": LibrdkafkaConsumerProtocol,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "java": Java,
    "java-consumer": JavaConsumerProtocol,
}
