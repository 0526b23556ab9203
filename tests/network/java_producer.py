"""Kafka's own idempotent Java producer, which notes what was acknowledged."""

import json
import subprocess
import threading
from pathlib import Path

from confluent_kafka import TopicPartition

from tests.clients.transactions.calls import UNCOMMITTED, messages
from tests.harness import KAFKA_JAVA, KAFKA_LIBS, need_program

_SETTINGS = """
enable.idempotence=true
acks=all
retries=2147483647
delivery.timeout.ms=120000
request.timeout.ms=8000
reconnect.backoff.max.ms=500
"""


class JavaProducer:
    """A producer of numbers to one queue, for the length of a block."""

    def __init__(self, address: str, queue: str, directory: Path, per_second: int) -> None:
        self._address, self._queue = address, queue
        self.acknowledged: dict[int, int] = {}  # offset by number
        self.failed: list[str] = []
        settings = directory / "producer.properties"
        settings.write_text(_SETTINGS)
        self._command = [
            need_program("java"), "-Xmx128m", *KAFKA_JAVA, "-cp", f"{KAFKA_LIBS}/*",
            "org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", address,
            "--topic", queue, "--throughput", str(per_second), "--command-config", str(settings),
        ]  # fmt: skip
        self._process: subprocess.Popen[str]
        self._reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            said = json.loads(line)
            if said["name"] == "producer_send_success":
                self.acknowledged[int(said["value"])] = said["offset"]
            elif said["name"] == "producer_send_error":
                self.failed.append(line)

    def __enter__(self) -> "JavaProducer":
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # it sends what is in line
        try:
            self._process.wait(120)
        finally:
            self._process.kill()
        self._reader.join(30)
        assert self._process.stdout
        self._process.stdout.close()

    def check(self) -> None:
        """Check after the block that each record is once where it was acknowledged, in order."""
        assert not self.failed, self.failed[:3]
        assert self.acknowledged
        part = TopicPartition(self._queue, 0, 0)
        (found,) = messages(self._address, [part], UNCOMMITTED).values()
        read = [(one.offset(), int(one.value() or b"-1")) for one in found]
        assert read == [(number, number) for number in range(len(read))]
        for number, offset in self.acknowledged.items():
            assert read[offset] == (offset, number)
