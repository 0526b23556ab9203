"""The cost of delays: CPU of the server a record, from its Produce until readers can have it.

    python -m benchmarks.delays [--quick] [--rounds N] [--on-kafka]

prints a table after some minutes: the same records without a delay, with a fixed one, and with
headers that say when each is due. Requests are made beforehand and sent from one connection, eight
at a time, each with one batch; records have 100 bytes beside their headers. kproxy is embedded
(without fsync), or one worker on a Kafka; all works take turns on one server. Medians of the
rounds; the first round is not counted.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import loads
from benchmarks.servers import Server, embedded, kafka, on_kafka
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from tests.harness import eventually
from tests.wire import Wire, produce_values

_IN_FLIGHT = 8
_DELAY_MS = 500
_TARGET = 3.0  # for records that do not wait
_UNDELAYED, _FIXED, _ONE_TIME, _MANY_TIMES = (
    "no delay", "fixed delay", "header, one time in a batch", "header, each its own time",
)  # fmt: skip
_CONFIGS = {
    _UNDELAYED: {},
    _FIXED: {"kproxy.delay.ms": str(_DELAY_MS)},
    _ONE_TIME: {"kproxy.delay": "header"},
    _MANY_TIMES: {"kproxy.delay": "header"},
}


class Sizes(NamedTuple):
    """The number of batches to send by records of a batch, and how often all of it is done."""

    batches: dict[int, int]
    rounds: int


_FULL = Sizes({1: 10_000, 10: 6_000, 100: 2_000, 500: 600}, 3)
_QUICK = Sizes({1: 1_500, 100: 300}, 1)


class Measured(NamedTuple):
    """µs of CPU a record, of the server and of the Kafka behind it; records a second taken."""

    cpu_us: float
    broker_us: float
    rate: float


def _batch(work: str, records: int, rng: random.Random) -> bytes:
    now_ms = int(time.time() * 1000)
    one_ms = rng.randrange(_DELAY_MS, 2 * _DELAY_MS)
    pieces = []
    for number in range(records):
        headers = []
        if work in (_ONE_TIME, _MANY_TIMES):
            wait_ms = one_ms if work == _ONE_TIME else rng.randrange(_DELAY_MS, 4 * _DELAY_MS)
            headers = [header("kproxy.delay-ms", str(wait_ms))]
        content = Content(b"%d" % number, b"x" * loads.RECORD_BYTES)
        pieces.append((body_of(content, headers), now_ms))
    return batch_of_bodies(pieces)


class Bench:
    """One server, with a queue for each measurement."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._queues = 0
        host, port = server.address.split(",")[0].rsplit(":", 1)
        self._place = host, int(port)

    def measure(self, work: str, records: int, batches: int) -> Measured:
        self._queues += 1
        name, rng = f"delays-{self._queues}", random.Random(self._queues)
        with Wire(*self._place, seconds=120) as wire:
            configs = {key.replace(".", "_"): value for key, value in _CONFIGS[work].items()}
            assert wire.create(name, 1, **configs).error_code == 0
            eventually(lambda: wire.list_offset(name, -1).error_code == 0, 30)
            some = [_batch(work, records, rng) for _ in range(min(batches, 500))]
            frames = [
                encode_request(ApiKey.PRODUCE, 9, 1, produce_values(name, data)) for data in some
            ]
            cpu, broker = self.server.cpu(), self.server.broker_cpu()
            seconds = self._send(wire, frames, batches)
            count = records * batches
            eventually(lambda: wire.list_offset(name, -1).offset == count, 120)
            cpu, broker = self.server.cpu() - cpu, self.server.broker_cpu() - broker
        return Measured(cpu / count * 1e6, broker / count * 1e6, count / seconds)

    def _send(self, wire: Wire, frames: list[bytes], batches: int) -> float:
        began, waiting = time.perf_counter(), 0
        for number in range(batches):
            wire.socket.sendall(frames[number % len(frames)])
            waiting += 1
            if waiting == _IN_FLIGHT:
                self._answered(wire)
                waiting -= 1
        for _ in range(waiting):
            self._answered(wire)
        return time.perf_counter() - began

    def _answered(self, wire: Wire) -> None:
        part = wire.receive(0, 9)[1].responses[0].partition_responses[0]
        assert part.error_code == 0, part


def main() -> None:
    """Measure all works in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few records, in a minute")
    parser.add_argument("--rounds", type=int, help="medians are of these")
    parser.add_argument("--on-kafka", action="store_true", help="a worker on a Kafka")
    arguments = parser.parse_args()
    sizes = _QUICK if arguments.quick else _FULL
    if arguments.rounds:
        sizes = sizes._replace(rounds=arguments.rounds)
    found: dict[tuple[int, str], list[Measured]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kproxy-bench-")))
        if arguments.on_kafka:
            broker = stack.enter_context(kafka(directory / "kafka"))
            server = stack.enter_context(on_kafka(broker, directory / "worker", "bench", 1))
        else:
            server = stack.enter_context(embedded(directory / "data", "never"))
        bench = Bench(server)
        for number in range(sizes.rounds + 1):  # the first one warms up
            for records, batches in sizes.batches.items():
                for work in _CONFIGS:
                    measured = bench.measure(work, records, batches)
                    print(number, records, work, *measured, file=sys.stderr)  # noqa: T201
                    if number:
                        found.setdefault((records, work), []).append(measured)
    table = Table(
        "records of a batch", "", "CPU of a record, µs", "of no delay's",
        "of the Kafka behind, µs", "taken, records/s",
    )  # fmt: skip
    for (records, work), some in found.items():
        it = Measured(*map(statistics.median, zip(*some, strict=True)))
        base = statistics.median(one.cpu_us for one in found[records, _UNDELAYED])
        ratio = it.cpu_us / base
        mark = "" if work == _UNDELAYED else " ✓" if ratio <= _TARGET else " ✗"
        table.add_row(
            str(records) if work == _UNDELAYED else "", work, f"{it.cpu_us:.3g}",
            f"{ratio:.2f} ×{mark}", f"{it.broker_us:.3g}" if it.broker_us else "",
            f"{it.rate:,.0f}",
        )  # fmt: skip
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
