"""The cost of a transaction, by how many queues it writes to.

    python -m benchmarks.transactions [--quick]

prints a table after several minutes: how long a transaction takes from `begin_transaction` until
`commit_transaction` returns, with one record of 100 bytes to each of its queues, and the CPU of the
server for it. librdkafka is the client; its transactions are of version 1. The first transaction is
not counted: it makes the queues known. With ten thousand queues librdkafka itself takes most of the
time: compare CPU there. Kafka has topics instead of queues, and none of that many.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import loads
from benchmarks.servers import KAFKA, Server, all_servers

_VALUE = b"x" * loads.RECORD_BYTES
_WAIT_S = 120
_AT_ONCE = 500  # queues that are made in a request


class Size(NamedTuple):
    """The number of queues that a transaction writes to, and of transactions that are measured."""

    queues: int
    times: int


_FULL = (Size(1, 1000), Size(100, 100), Size(10_000, 2))
_QUICK = (Size(1, 50), Size(100, 5))
_TOPICS_MAX = 1_000  # Kafka's: one node with ten thousand topics takes minutes to make them


class Cost(NamedTuple):
    """Milliseconds of each transaction, and CPU of the server and of the Kafka behind it."""

    milliseconds: list[float]
    cpu_ms: float
    broker_ms: float

    def quantile(self, percent: int) -> float:
        if len(self.milliseconds) < 2:
            return self.milliseconds[0]
        return statistics.quantiles(self.milliseconds, n=100, method="inclusive")[percent - 1]


def _names(size: Size) -> list[str]:
    return [f"transactions-{size.queues}-{number}" for number in range(size.queues)]


def _make(address: str, names: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    for start in range(0, len(names), _AT_ONCE):
        some = [NewTopic(name, 1, 1) for name in names[start : start + _AT_ONCE]]
        for future in admin.create_topics(some, request_timeout=_WAIT_S).values():
            future.result(_WAIT_S)


def _transaction(producer: Producer, names: list[str]) -> float:
    """Run one of them; return its milliseconds."""
    began = time.perf_counter()
    producer.begin_transaction()
    for name in names:
        producer.produce(name, _VALUE)
    producer.commit_transaction(_WAIT_S)
    return (time.perf_counter() - began) * 1000


def measure(server: Server, size: Size) -> Cost:
    """Measure transactions one after another, once their queues are known."""
    names = _names(size)
    _make(server.address, names)
    producer = Producer(
        {"bootstrap.servers": server.address, "transactional.id": f"cost-{size.queues}",
         "linger.ms": 0 if size.queues == 1 else 5, "transaction.timeout.ms": _WAIT_S * 1000,
         "queue.buffering.max.messages": 1_000_000, "log_level": 2}
    )  # fmt: skip
    producer.init_transactions(_WAIT_S)
    _transaction(producer, names)
    time.sleep(1)  # its leftover work does not belong to the next ones
    cpu, broker = server.cpu(), server.broker_cpu()
    milliseconds = [_transaction(producer, names) for _ in range(size.times)]
    cpu, broker = server.cpu() - cpu, server.broker_cpu() - broker
    return Cost(milliseconds, cpu / size.times * 1000, broker / size.times * 1000)


def main() -> None:
    """Measure all, one server after another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few transactions, in half a minute")
    sizes = _QUICK if parser.parse_args().quick else _FULL
    table = Table(
        "queues", "server", "p50, ms", "p99, ms", "CPU of the server, ms", "of the Kafka behind, ms"
    )
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kproxy-bench-")))
        servers = stack.enter_context(all_servers(directory))
        for size in sizes:
            for name, server in servers.items():
                if name == KAFKA and size.queues > _TOPICS_MAX:
                    continue
                try:
                    cost = measure(server, size)
                except KafkaException as error:
                    print(name, size.queues, error, file=sys.stderr)  # noqa: T201
                    continue
                broker = f"{cost.broker_ms:.3g}" if server.broker else ""
                row = (
                    f"{size.queues:,}", name, f"{cost.quantile(50):.3g}",
                    f"{cost.quantile(99):.3g}", f"{cost.cpu_ms:.3g}", broker,
                )  # fmt: skip
                table.add_row(*row)
                print(*row, file=sys.stderr)  # noqa: T201
    Console().print(table)


if __name__ == "__main__":
    main()
