"""The rate of a redrive, beside that of a route that passes on the same records.

    python -m benchmarks.life.redrives [--letters N] [--queues N] [--rounds N] [--on-kafka]

A queue holds letters of some queues. All go to one queue, by a filter that begins at the start and
by a redrive; and each to its own, by a redrive to origins and by an entrance. The
entrance's CPU is counted without that of a plain queue. Half of a route's rate is asked for.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from benchmarks import loads
from benchmarks.routes import make
from benchmarks.servers import Server, embedded, kafka, on_kafka
from tests.clients.calls import alter

_LOOK_S, _PATIENCE_S = 0.5, 900.0
_VALUE = b"x" * loads.RECORD_BYTES
_FILTER, _REDRIVE, _ORIGINS, _ENTRANCE = (
    "a filter from the start", "a redrive to one queue", "a redrive to origins", "an entrance",
)  # fmt: skip


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def fill(address: str, name: str, letters: int, queues: int) -> None:
    """Write the letters of some queues, `work-0` and so on."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 2})
    for number in range(letters):
        key = str(number % queues)
        headers: list[tuple[str, str | bytes | None]] = [
            ("__dlq.errors.topic", f"work-{key}"), ("kproxy.dlq.cause", "rejected")
        ]  # fmt: skip
        while True:
            try:
                producer.produce(name, _VALUE, key, partition=0, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(_PATIENCE_S):
        raise TimeoutError("not all was written")


class Bench:
    """One server, and what its works took: (records a second, µs of CPU a record)."""

    def __init__(self, server: Server, letters: int, queues: int) -> None:
        self._server, self._letters, self._queues = server, letters, queues
        self.took: dict[str, list[tuple[float, float]]] = {}

    def _timed(self, what: str, counter: str, begin: Callable[[], None]) -> tuple[float, float]:
        """Measure until so many have been passed on; `counter`: "": until it has begun."""
        before = self._server.counters()
        cpu, began = self._server.cpu(), time.monotonic()
        begin()
        while counter and self._server.counters()[counter] - before[counter] < self._letters:
            if time.monotonic() - began > _PATIENCE_S:
                raise TimeoutError(what)
            time.sleep(_LOOK_S)
        seconds, cpu = time.monotonic() - began, self._server.cpu() - cpu
        return self._letters / seconds, cpu / self._letters * 1e6

    def round(self, number: int) -> None:
        address = self._server.address
        letters, one, dead = self._letters, f"one-{number}", f"dlq-{number}"
        make(address, dead)
        plain = self._timed("", "", lambda: fill(address, dead, letters, self._queues))
        found = {}

        def passed(what: str, begin: Callable[[], None]) -> None:
            found[what] = self._timed(what, "routed", begin)

        from_start = {"kproxy_route_from": dead, "kproxy_route_from_start": "true"}
        passed(_FILTER, lambda: make(address, f"all-{number}", **from_start))
        make(address, one)
        passed(_REDRIVE, lambda: alter(address, dead, kproxy_redrive_to=one))
        again = partial(alter, address, dead, kproxy_redrive_to="*", kproxy_redrive_job="origins")
        passed(_ORIGINS, again)
        make(address, f"in-{number}", kproxy_route_to="work-{key}", kproxy_route_unroutable="lost")
        passed(_ENTRANCE, lambda: fill(address, f"in-{number}", letters, self._queues))
        rate, cpu = found[_ENTRANCE]
        found[_ENTRANCE] = rate, cpu - plain[1]
        for what, took in found.items():
            self.took.setdefault(what, []).append(took)
            _say(f"  {what}: {took[0]:,.0f} records/s, {took[1]:.1f} us of CPU a record")

    def ratio(self, redrive: str, route: str) -> None:
        rates, cpus = (
            [median(one[index] for one in self.took[what]) for what in (redrive, route)]
            for index in (0, 1)
        )
        _say(f"{redrive}: {rates[0] / rates[1]:.2f} of {route}'s rate,"
             f" {cpus[1] / cpus[0]:.2f} by CPU")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--letters", type=int, default=300_000)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--on-kafka", action="store_true")
    asked = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kproxy-bench-")))
        if asked.on_kafka:
            broker = stack.enter_context(kafka(directory / "kafka"))
            server = stack.enter_context(on_kafka(broker, directory / "worker", "redrives", 1))
        else:
            server = stack.enter_context(embedded(directory / "data", "never"))
        bench = Bench(server, asked.letters, asked.queues)
        for number in range(asked.rounds):
            bench.round(number)
        bench.ratio(_REDRIVE, _FILTER)
        bench.ratio(_ORIGINS, _ENTRANCE)


if __name__ == "__main__":
    main()
