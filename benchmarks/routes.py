"""An entrance: one producer, very many queues, and one consumer of all that goes through.

    python -m benchmarks.routes [--queues N] [--rounds N]

prints a table in some eight minutes. Each record goes to a queue of its own: at first all queues
are new, then all are known. A rate is that of the whole way: from the first record sent to the last
one that has landed in its queue; the CPU is kproxy's. The entrance is read by Kafka's own
ConsumerPerformance while other records pass, and so is a queue that has as many.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import loads
from benchmarks.servers import Server, embedded, kafka, on_kafka

VALUE = b"x" * loads.RECORD_BYTES
_LOOK_S, _PATIENCE_S = 0.1, 600.0
_READ = 300_000

Write = Callable[[str, str, int], None]
"""write(address, entrance, queues): one record to each queue."""


def librdkafka(address: str, entrance: str, queues: int) -> None:
    """Write in a process of its own: its callbacks would share this one's interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.routes", "--write", address, entrance, str(queues)],
        check=False, capture_output=True, text=True, timeout=_PATIENCE_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])


def write_numbered(address: str, entrance: str, first: int, end: int, queues: int) -> None:
    """Write a record for each number, to the queue that is its remainder. Raises RuntimeError."""
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 5, "log_level": 2, "enable.idempotence": True,
         "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    for number in range(first, end):
        while True:
            try:
                producer.produce(
                    entrance, VALUE, b"%d" % (number % queues),
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )  # fmt: skip
            except BufferError:
                producer.poll(0.05)
            else:
                break
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(_PATIENCE_S) or failed:
        raise RuntimeError(f"not delivered: {failed[:1]}")


def java(address: str, entrance: str, queues: int) -> None:
    for _ in loads.java("keyed", address, entrance, queues):
        pass


CLIENTS: dict[str, Write] = {"librdkafka": librdkafka, "Java": java}


def make(address: str, name: str, **configs: str) -> None:
    """Make a queue with these settings."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    made = [NewTopic(name, 1, 1, config={k.replace("_", "."): v for k, v in configs.items()})]
    admin.create_topics(made)[name].result(60)


def entrance(address: str, name: str) -> None:
    """Make an entrance to queues that begin with its name."""
    make(address, name, kproxy_route_to=name + "-{key}", kproxy_route_unroutable=name + ".lost")


def through(server: Server, write: Write, name: str, queues: int) -> tuple[float, float]:
    """Return (records a second, kproxy's CPU in µs a record) for one record to each queue."""
    before, cpu = server.counters()["routed"], server.cpu()
    began = time.monotonic()
    write(server.address, name, queues)
    while server.counters()["routed"] - before < queues:
        if time.monotonic() - began > _PATIENCE_S:
            raise TimeoutError(f"{name}: not all has landed")
        time.sleep(_LOOK_S)
    seconds = time.monotonic() - began
    return queues / seconds, (server.cpu() - cpu) / queues * 1e6


def reading(server: Server, name: str) -> tuple[float, float]:
    """Return records a second of a plain queue, and of an entrance while records pass through
    it.
    """
    make(server.address, f"{name}-plain")
    entrance(server.address, f"{name}-in")
    for queue in (f"{name}-plain", f"{name}-in"):
        librdkafka(server.address, queue, _READ)
    plain = loads.consume(server.address, f"{name}-plain", _READ)
    before = server.counters()["routed"]
    passing = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.routes", "--write", server.address, f"{name}-in",
         str(_READ)]
    )  # fmt: skip
    time.sleep(1)
    read = loads.consume(server.address, f"{name}-in", _READ)
    passing.wait(_PATIENCE_S)
    assert server.counters()["routed"] >= before
    return plain, read


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--queues", type=int, default=100_000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    arguments = asked.parse_args()
    if arguments.write:
        address, name, queues = arguments.write
        write_numbered(address, name, 0, int(queues), int(queues))
        return
    table = Table("server", "client", "what", "records/s", "kproxy's CPU, µs a record")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(kafka(directory / "kafka"))
        servers = [
            stack.enter_context(embedded(directory / "embedded", "never")),
            stack.enter_context(on_kafka(broker, directory / "worker", "bench")),
        ]
        for server in servers:
            for client, write in CLIENTS.items():
                _rows(table, server, client, write, arguments.queues, arguments.rounds)
            plain, read = reading(server, "read")
            table.add_row(server.name, "Java", "a queue's backlog", f"{plain:,.0f}", "")
            table.add_row(server.name, "Java", "the entrance's", f"{read:,.0f}", "")
    Console(width=100).print(table)


def _rows(
    table: Table, server: Server, client: str, write: Write, queues: int, rounds: int
) -> None:
    name = f"in-{client.lower()}"
    entrance(server.address, name)
    new = through(server, write, name, queues)
    known = [through(server, write, name, queues) for _ in range(rounds)]
    table.add_row(server.name, client, f"{queues:,} new queues", f"{new[0]:,.0f}", f"{new[1]:.1f}")
    rate, cpu = (median(one[i] for one in known) for i in (0, 1))
    table.add_row(server.name, client, "known ones", f"{rate:,.0f}", f"{cpu:.1f}")


if __name__ == "__main__":
    main()
