"""The runs of the jobs of spark_examples/ as people do them, and a look at their output."""

import contextlib
import importlib
import io
import os
import signal
import subprocess
import sys
import time
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.harness import ROOT, SPARK_ENV

JOBS = ROOT / "spark_examples"


def start(name: str, *arguments: object, server: str | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, str(JOBS / f"{name}.py"), *map(str, arguments)]
    if server is not None:
        command += ["--bootstrap-server", server]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, **SPARK_ENV},
    )  # fmt: skip


def fail(name: str, *arguments: object, server: str | None = None, code: int = 1) -> str:
    """Run a job that cannot work; what it says, without what Java says of itself."""
    process = start(name, *arguments, server=server)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    lines = [line for line in err.splitlines() if not line.startswith(("WARNING: Using", "NOTE:"))]
    return out + "\n".join(lines)


def module(name: str) -> Any:
    """Return a module of spark_examples/, which import each other by name."""
    sys.path.insert(0, str(JOBS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(JOBS))


def run(name: str, *arguments: object, server: str) -> list[str]:
    """Run a job to its end in this process, which has a Spark already; the lines it printed.

    Jobs that are killed start as people start them, which takes 15 s each.
    """
    before = signal.getsignal(signal.SIGTERM)
    said = io.StringIO()
    try:
        command = getattr(module(name), name)
        with contextlib.redirect_stdout(said):
            command.main(
                [*map(str, arguments), "--bootstrap-server", server], standalone_mode=False
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    return said.getvalue().splitlines()


def kill_after(seconds: float, name: str, *arguments: object, server: str) -> bool:
    """Start a job and kill it, Java and all; whether it was killed in the middle."""
    process = start(name, *arguments, server=server)
    time.sleep(seconds)
    unfinished = process.poll() is None
    # Java ends when Python, whose end of the pipe it watches, is gone: kill it first.
    subprocess.run(["pkill", "-9", "-P", str(process.pid)], check=False)
    process.kill()
    process.communicate(timeout=30)
    return unfinished


def load(reader: Any, server: str, **options: str) -> Any:
    """Return rows of Spark's Kafka source; `reader`: spark.read or spark.readStream."""
    reader = reader.format("kafka").option("kafka.bootstrap.servers", server)
    return reader.options(**options).load()


def write(server: str, records: list[tuple[str, bytes, bytes, int | None]]) -> None:
    """Write (queue, key, value, event time in ms) in order; the time goes into the jobs' header."""
    # Idempotent: else a batch that a topic just made refuses is sent again behind the next one.
    settings = {"bootstrap.servers": server, "linger.ms": 5, "enable.idempotence": True}
    producer = Producer(settings)
    failed = []
    for queue, key, value, ms in records:
        producer.produce(
            queue, value, key=key, headers=[] if ms is None else [("timestamp", b"%d" % ms)],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(60) == 0
    assert not failed, failed[0]


def read(server: str, names: list[str], partitions: int = 1) -> dict[str, list[Message]]:
    """Return everything in some queues, each in its order."""
    consumer = Consumer({"bootstrap.servers": server, "group.id": "look", "log_level": 2})
    found: dict[str, list[Message]] = {name: [] for name in names}
    left = 0
    try:
        parts = [TopicPartition(name, index) for name in names for index in range(partitions)]
        for part in parts:
            part.offset, high = consumer.get_watermark_offsets(part, 10)
            left += high - part.offset
        consumer.assign(parts)
        end = time.monotonic() + 60
        while left and time.monotonic() < end:
            for message in consumer.consume(min(left, 1000), 1):
                assert message.error() is None, message.error()
                found[message.topic()].append(message)
                left -= 1
    finally:
        consumer.close()
    assert not left
    return found


def headers(message: Message) -> dict[str, bytes]:
    return dict(message.headers() or ())  # type: ignore[arg-type]
