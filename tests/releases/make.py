"""Makes the fixtures of a release: python -m tests.releases.make CHECKOUT NAME

CHECKOUT is a directory with that release's `kproxy`; NAME is its commit. Written to
`tests/releases/NAME`: an embedded data directory, killed; the records of the four topics, their
owners killed; and what a client read before.
"""

import base64
import gzip
import json
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.harness import Served
from tests.real_kafka import Kafka
from tests.releases import state
from tests.workers import Workers

HERE = Path(__file__).parent
TOPICS = ("data", "offset", "partitions", "queues")


def main() -> None:
    checkout, name = sys.argv[1:]
    old = {"PYTHONPATH": checkout, "PYTHONSAFEPATH": "1"}
    target = HERE / name
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        _embedded(Path(work), target, old)
        _topics(Path(work), target, old)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _embedded(work: Path, target: Path, old: dict[str, str]) -> None:
    server = Served(work / "data", "--rows-flush-ms-max", "1000", env=old).wait_ready()
    state.fill(server.address)
    time.sleep(4)  # a checkpoint
    state.more(server.address)
    expected = state.read(server.address)
    server.kill()
    _write(target / "embedded.json", expected)
    with tarfile.open(target / "embedded.tar.gz", "w:gz") as tar:
        tar.add(work / "data", "data", filter=lambda i: None if i.name.endswith("LOCK") else i)


def _topics(work: Path, target: Path, old: dict[str, str]) -> None:
    (work / "kafka").mkdir()
    kafka = Kafka(work / "kafka").wait_ready()
    try:
        workers = Workers(kafka, work, "--publish-ms", "1000", shards=4, prefix="old", env=old)
        workers.wait_ready()
        state.fill(workers.address)
        time.sleep(5)  # a publication
        state.more(workers.address)
        expected = state.read(workers.address)
        for worker in workers.workers:
            worker.kill()
        _write(target / "topics.json", expected)
        with gzip.open(target / "records.json.gz", "wt") as file:
            for record in _all_records(kafka):
                file.write(json.dumps(record) + "\n")
    finally:
        kafka.stop()


def _all_records(kafka: Kafka) -> Any:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": "dump",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    for topic in TOPICS:
        metadata = consumer.list_topics(f"old-{topic}", timeout=30)
        for index in sorted(metadata.topics[f"old-{topic}"].partitions):
            consumer.assign([TopicPartition(f"old-{topic}", index, 0)])
            while (message := consumer.poll(30)) is not None and not message.error():
                yield [topic, index, _text(message.key()), _text(message.value())]
    consumer.close()


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


if __name__ == "__main__":
    main()
