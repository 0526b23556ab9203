"""The cost of share groups: to acquire records of 100 bytes and accept them.

    python -m benchmarks.shares [--quick] [--rounds N]

prints a table after some minutes: Kafka's share groups, kproxy on that Kafka, and kproxy embedded,
in turn on one machine. The members' requests are encoded by hand and sent from one thread
(`benchmarks.shares.client`), as stock clients take more CPU than the servers. A member asks for 500
records of a queue whose batches have 500, or for one where each batch has one; it accepts them with
its next fetch. It asks for 1 MB, or 2 KB for one record: Kafka looks at all requested batches each
time, which costs it milliseconds a record with the 50 MB of Java's consumer. How long a record
takes is from its Produce until a ShareAcknowledge is answered, of a member that waits for it. The
last rows are Kafka's own ShareConsumerPerformance, a Java consumer. Medians of the rounds; the
first round is not counted.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import loads
from benchmarks.servers import EMBEDDED, KAFKA, ON_KAFKA, Server, all_servers
from benchmarks.shares.client import Place, drive, fill, from_the_start, members, place
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from tests.wire import batch, produce_values

_MANY = 500  # records of a batch, and what a member asks for
_SETTLED_S = 0.003  # a fetch that was sent waits at the server by then
_TARGETS = {ON_KAFKA: 0.8, EMBEDDED: 1.0}  # parts of Kafka's rate


class Sizes(NamedTuple):
    """The number of records that each work takes, and how many of them are first taken
    uncounted.
    """

    batched: int
    single: int
    timed: int
    rounds: int


_FULL = Sizes(500_000, 10_000, 300, 3)
_QUICK = Sizes(50_000, 2_000, 50, 1)


class Measured(NamedTuple):
    """Records a second, or the p50 and p99 of milliseconds; µs of CPU a record."""

    rate: float
    cpu_us: float
    broker_us: float
    p50_ms: float = 0
    p99_ms: float = 0


class Bench:
    """One server, its queues, and a group for each work."""

    def __init__(self, server: Server, sizes: Sizes) -> None:
        self.server, self.sizes = server, sizes
        self._groups = 0
        self._queues = {
            each: self._queue(f"shares-{each}", records, each)
            for each, records in ((_MANY, sizes.batched), (1, sizes.single))
        }

    def _queue(self, name: str, records: int, each: int) -> Place:
        loads.make_queue(self.server.address, name)
        at = place(self.server.address, name)
        fill(at, records, each, loads.RECORD_BYTES)
        return at

    def _group(self) -> str:
        self._groups += 1
        return f"shares-{self._groups}"

    def _cost(self, records: int, work: Callable[[], float]) -> Measured:
        """Measure a work; `work` returns how many seconds it took."""
        server = self.server
        cpu, broker = server.cpu(), server.broker_cpu()
        seconds = work()
        cpu, broker = server.cpu() - cpu, server.broker_cpu() - broker
        return Measured(records / seconds, cpu / records * 1e6, broker / records * 1e6)

    def taken(self, count: int, each: int) -> Measured:
        """Measure so many members that take so many records at once."""
        records = self.sizes.batched if each == _MANY else self.sizes.single
        with members(self._queues[each], self._group(), count, each) as some:
            return self._cost(records, lambda: drive(some, records))

    def timed(self) -> Measured:
        """Measure one record after another, from its Produce until it is acknowledged."""
        name = f"shares-timed-{self._group()}"
        loads.make_queue(self.server.address, name)
        at, milliseconds = place(self.server.address, name), []
        frame = encode_request(
            ApiKey.PRODUCE, 9, 1, produce_values(name, batch(b"x" * loads.RECORD_BYTES))
        )
        with members(at, self._group(), 1, 1) as (member,), at.wire() as wire:

            def one() -> None:
                member.fetch(wait_ms=10_000)
                time.sleep(_SETTLED_S)
                began = time.perf_counter()
                wire.socket.sendall(frame)
                held = member.acquired()
                member.accept(held)
                member.accepted()
                milliseconds.append((time.perf_counter() - began) * 1000)
                assert len(held) == 1
                wire.receive_frame()

            def all_of_them() -> float:
                for _ in range(self.sizes.timed):
                    one()
                return sum(milliseconds) / 1000

            cost = self._cost(self.sizes.timed, all_of_them)
        cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
        return cost._replace(p50_ms=cuts[49], p99_ms=cuts[98])

    def java(self) -> Measured:
        """Measure Kafka's own tool, with its consumer as it comes."""
        at, group = self._queues[_MANY], self._group()
        with at.wire() as wire:
            from_the_start(wire, group)
        records = self.sizes.batched
        return self._cost(
            records,
            lambda: records / loads.share_consume(self.server.address, at.queue, group, records),
        )


_WORKS: dict[str, Callable[[Bench], Measured]] = {
    "one member, by 500": lambda bench: bench.taken(1, _MANY),
    "ten members, by 500": lambda bench: bench.taken(10, _MANY),
    "one member, one by one": lambda bench: bench.taken(1, 1),
    "ten members, one by one": lambda bench: bench.taken(10, 1),
    "one record, produced to acknowledged": Bench.timed,
    "Java's consumer": Bench.java,
}


def _measure(servers: dict[str, Server], sizes: Sizes) -> dict[tuple[str, str], list[Measured]]:
    """Return the measurements of each round, by work and server."""
    benches = {name: Bench(server, sizes) for name, server in servers.items()}
    found: dict[tuple[str, str], list[Measured]] = {}
    for number in range(sizes.rounds + 1):  # the first one warms up
        for work, measure in _WORKS.items():
            for name, bench in benches.items():
                measured = measure(bench)
                print(number, work, name, *measured, file=sys.stderr)  # noqa: T201
                if number:
                    found.setdefault((work, name), []).append(measured)
    return found


def _median(some: list[Measured]) -> Measured:
    return Measured(*map(statistics.median, zip(*some, strict=True)))


def _shown(work: str, name: str, found: dict[tuple[str, str], list[Measured]]) -> list[str]:
    """Return a row: the figure, its ratio to Kafka's, CPU of a record."""
    it, kafka = _median(found[work, name]), _median(found[work, KAFKA])
    if it.p50_ms:
        figure = f"p50 {it.p50_ms:.3g} ms, p99 {it.p99_ms:.3g} ms"
        ratio = it.p50_ms / kafka.p50_ms
    else:
        figure = f"{it.rate:,.0f} records/s"
        ratio = it.rate / kafka.rate
    behind = f"{it.broker_us:.3g}" if it.broker_us else ""
    if name == KAFKA:
        return [work, name, figure, "", f"{it.cpu_us:.3g}", behind]
    mark = ""
    if not it.p50_ms and name in _TARGETS:
        mark = " ✓" if ratio >= _TARGETS[name] else " ✗"
    return ["", name, figure, f"{ratio:.3g} ×{mark}", f"{it.cpu_us:.3g}", behind]


def main() -> None:
    """Measure all, one server after another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few records, in a minute")
    parser.add_argument("--rounds", type=int, help="medians are of these")
    arguments = parser.parse_args()
    sizes = _QUICK if arguments.quick else _FULL
    if arguments.rounds:
        sizes = sizes._replace(rounds=arguments.rounds)
    table = Table(
        "", "server", "figure", "of Kafka's", "CPU of a record, µs", "of the Kafka behind, µs"
    )
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kproxy-bench-")))
        servers = stack.enter_context(all_servers(directory))
        found = _measure(servers, sizes)
        for work, name in found:
            table.add_row(*_shown(work, name, found))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
