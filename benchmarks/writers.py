"""Writing to many queues: how fast each client goes, by how many of them one producer writes to.

    python -m benchmarks.writers

prints a table in some five minutes: records a second, where each record is the first of a new
queue, and where each is one more. A producer remembers every queue that it has written to; what
that costs it grows with their number, and kproxy cannot take it away. The producers are made one
after another, and each is closed when it has written to its queues; Java's stay.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from confluent_kafka import Producer
from kafka import KafkaProducer  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from benchmarks import loads
from benchmarks.servers import embedded

_VALUE = b"x" * loads.RECORD_BYTES
_AT_ONCE = 200  # records that aiokafka waits for together
_QUEUES, _JAVA_QUEUES = 10_000, 20_000
_EACH = (250, 1_000, 5_000, 10_000)
_SLOW_QUEUES = 100  # for a client that asks for one queue after another


def librdkafka(address: str, names: list[str]) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 2})
    for name in names:
        producer.produce(name, _VALUE)
    if producer.flush(300):
        raise TimeoutError


def aiokafka(address: str, names: list[str]) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=address) as producer:
            for start in range(0, len(names), _AT_ONCE):
                some = names[start : start + _AT_ONCE]
                await asyncio.gather(*(producer.send_and_wait(name, _VALUE) for name in some))

    asyncio.run(send())


def kafka_python(address: str, names: list[str]) -> None:
    producer = KafkaProducer(bootstrap_servers=address)
    sent = [producer.send(name, _VALUE) for name in names]
    producer.flush()
    producer.close()
    for one in sent:
        one.get(0)


def _rates(
    write: Callable[[str, list[str]], None], address: str, prefix: str, queues: int, each: int
) -> list[float]:
    """Return records a second of the first record to each queue, and of the next."""
    rates = []
    for _ in range(2):
        began = time.monotonic()
        for start in range(0, queues, each):
            write(address, [f"{prefix}{i}" for i in range(start, start + each)])
        rates.append(queues / (time.monotonic() - began))
    return rates


def _java(address: str, prefix: str, each: int) -> list[float]:
    """Return the rates of producers that stay: starting Java for each would be measured else."""
    return [_JAVA_QUEUES / r.seconds for r in loads.wide(address, prefix, _JAVA_QUEUES, 2, each)]


def main() -> None:
    """Measure all, against one embedded server."""
    table = Table("client", "queues a producer", "new queues, records/s", "again, records/s")

    def row(client: str, each: int, rates: list[float]) -> None:
        table.add_row(client, f"{each:,}", *(f"{rate:,.0f}" for rate in rates))
        print(client, each, *map(round, rates), file=sys.stderr)  # noqa: T201

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = stack.enter_context(embedded(directory / "own", "never")).address
        for each in _EACH:
            row("Java", each, _java(address, f"java-{each}-", each))
        for each in _EACH:
            row("librdkafka", each, _rates(librdkafka, address, f"rd-{each}-", _QUEUES, each))
        for each in _EACH[:-1]:
            row("aiokafka", each, _rates(aiokafka, address, f"aio-{each}-", _EACH[-2], each))
        few = _SLOW_QUEUES
        row("kafka-python", few, _rates(kafka_python, address, "python-", few, few))
    Console().print(table)


if __name__ == "__main__":
    main()
