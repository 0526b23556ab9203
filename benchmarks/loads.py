"""The load: Kafka's own performance tools, Load.java for many queues, and librdkafka."""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import KAFKA_LIBS

RECORD_BYTES = 100
_JAVA = ("java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{KAFKA_LIBS}/*")
# It lives for seconds, which are not to be those of a compiler; each queue takes some 20 kB of it.
_LOAD = (
    *_JAVA, "-Xmx4g", "-XX:TieredStopAtLevel=1", str(Path(__file__).with_name("Load.java")),
)  # fmt: skip


def _run(*command: str) -> str:
    done = subprocess.run(
        [*_JAVA, "-Xmx1g", *command], capture_output=True, text=True, timeout=1200, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 3})


def make_queue(address: str, name: str) -> None:
    """Make a topic of one partition; a topic of Kafka's, or a queue."""
    admin = _admin(address)  # gone, it answers nothing more
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)


def drop(address: str, *names: str) -> None:
    """Delete topics."""
    admin = _admin(address)
    for future in admin.delete_topics(list(names)).values():
        future.result(60)


def produce(
    address: str, queue: str, records: int, batch_bytes: int, *more: str
) -> tuple[float, float]:
    """Return records per second of Kafka's ProducerPerformance, with linger.ms=5; its seconds of
    CPU.

    `more`: settings of the producer.
    """
    before = _children_cpu()
    said = _run(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", queue,
        "--num-records", str(records), "--record-size", str(RECORD_BYTES), "--throughput", "-1",
        "--bootstrap-server", address,
        "--command-property", "linger.ms=5", f"batch.size={batch_bytes}", *more,
    )  # fmt: skip
    found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", said, re.MULTILINE)
    if int(found[-1][0]) != records:
        raise RuntimeError(said)
    return float(found[-1][1]), _children_cpu() - before


def _children_cpu() -> float:
    """Return seconds of CPU of the clients that have ended: servers run on."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def consume(address: str, queue: str, records: int) -> float:
    """Return records per second of Kafka's ConsumerPerformance, from the oldest on."""
    said = _run(
        "org.apache.kafka.tools.ConsumerPerformance", "--topic", queue,
        "--num-records", str(records), "--bootstrap-server", address, "--timeout", "60000",
        "--hide-header",
    )  # fmt: skip
    fields = said.strip().splitlines()[-1].split(", ")
    if int(fields[4]) < records:
        raise RuntimeError(said)
    return float(fields[9])  # fetch.nMsg.sec: without the time of joining a group


def share_consume(address: str, queue: str, group: str, records: int) -> float:
    """Return records per second of Kafka's ShareConsumerPerformance, the time of joining
    included.
    """
    said = _run(
        "org.apache.kafka.tools.ShareConsumerPerformance", "--topic", queue, "--group", group,
        "--num-records", str(records), "--bootstrap-server", address, "--timeout", "60000",
        "--hide-header",
    )  # fmt: skip
    fields = said.strip().splitlines()[-1].split(", ")
    if int(fields[5]) < records:
        raise RuntimeError(said)
    return float(fields[4])


def java(command: str, *arguments: object) -> Iterator[dict[str, Any]]:
    """Yield the measurements of Load.java, as it prints them."""
    return said(*_LOAD, command, *map(str, arguments))


def said(*command: str) -> Iterator[dict[str, Any]]:
    """Yield lines of JSON, as a program prints them."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout
        assert it.stderr
        try:
            for line in it.stdout:
                yield json.loads(line)
            errors = it.stderr.read()
            if it.wait(30):
                raise RuntimeError(f"{command}: {errors[-2000:]}")
        finally:
            it.kill()


class Round(NamedTuple):
    """One record to each queue: how long it took, and the client's CPU; seconds."""

    seconds: float
    cpu: float


def wide(
    address: str, prefix: str, queues: int, rounds: int, each: int, more: int = 0
) -> Iterator[Round]:
    """Yield rounds of one record to each queue, then of `more`, by Java producers of `each`
    queues.
    """
    for told in java("wide", address, prefix, queues, rounds, each, more):
        yield Round(**told)


@contextmanager
def following(
    address: str, prefix: str, queues: int, seconds: int, rate: int
) -> Iterator[dict[str, Any]]:
    """Run a consumer of many queues; the block begins when it is steady, and then sees its
    count.
    """
    told = java("follow", address, prefix, queues, seconds, rate)
    counted: dict[str, Any] = {}
    if "ready" not in next(told):
        raise RuntimeError("the consumer did not get ready")
    yield counted
    for line in told:
        counted.update(line)


def librdkafka(address: str, prefix: str, queues: int, rounds: int, each: int) -> Iterator[Round]:
    """Do as `wide`, by librdkafka, in a process of its own."""
    arguments = [address, prefix, *map(str, (queues, rounds, each))]
    for told in said(sys.executable, "-m", "benchmarks.loads", *arguments):
        yield Round(**told)


def _librdkafka(address: str, prefix: str, queues: int, rounds: int, each: int) -> None:
    failed: list[Any] = []
    settings = {"bootstrap.servers": address, "linger.ms": 5, "log_level": 2}
    producers = [Producer(settings) for _ in range(0, queues, each)]
    value = b"x" * RECORD_BYTES

    def send(number: int) -> None:
        producer = producers[number]
        for i in range(number * each, min(queues, (number + 1) * each)):
            producer.produce(
                f"{prefix}{i}", value, on_delivery=lambda e, _: failed.append(e) if e else None
            )
        if producer.flush(300):
            raise TimeoutError

    with ThreadPoolExecutor(4) as pool:
        for _ in range(rounds):
            began, before = time.monotonic(), time.process_time()
            list(pool.map(send, range(len(producers))))
            told = Round(time.monotonic() - began, time.process_time() - before)
            print(json.dumps(told._asdict()), flush=True)  # noqa: T201
    if failed:
        raise RuntimeError(str(failed[0]))


if __name__ == "__main__":
    _librdkafka(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
