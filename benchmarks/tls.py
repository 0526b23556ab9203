"""The cost of TLS: produce over TLS beside produce without, on one embedded kproxy (no fsync).

    python -m benchmarks.tls [--quick] [--rounds N]

prints a table after some minutes. *By hand* is one connection that sends requests which were made
beforehand, five at a time, each with one batch: its own CPU is little more than that of TLS.
*librdkafka* sends records of 1,000 bytes, *Java* is Kafka's ProducerPerformance with 100, both with
linger.ms=5. Plaintext and TLS take turns; a ratio is of two runs behind each other, and medians are
of these. CPU is of user and kernel, in seconds a GB.
"""

import argparse
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks import loads
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from tests.harness import free_port, served
from tests.securing import Authority
from tests.wire import Wire, batch, produce_values

_IN_FLIGHT = 5
_TARGET = 0.9
_PLAIN, _TLS = "plaintext", "TLS"
_SIZES = (16 << 10, 256 << 10)
_BY_HAND, _LIBRDKAFKA, _JAVA = "by hand", "librdkafka", "Java"
_WORKS = _BY_HAND, _LIBRDKAFKA, _JAVA
# Bytes of a record: with smaller ones confluent-kafka's own CPU is most there is
_LARGE_BYTES = 1000
_WAITING_MAX = 50_000


class Measured(NamedTuple):
    """MB a second; seconds of CPU a GB, of the server and of the client."""

    rate: float
    server: float
    client: float


class Bench:
    """A kproxy with a listener of each kind."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "certificates")
        first = free_port(2)
        self.ports = {_PLAIN: first, _TLS: first + 1}
        text = ""
        for name, port in self.ports.items():
            text += f'[[listeners]]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\n'
            text += f'advertise = "localhost:{port}"\n'
        text += f'protocol = "SSL"\ncertificate = "{self.authority.server}"\n'
        self.config = directory / "kproxy.toml"
        self.config.write_text(text)
        self._queues = 0

    def measure(self, server: psutil.Process, work: str, kind: str, size: int, mb: int) -> Measured:
        self._queues += 1
        name = f"tls-{self._queues}"
        with Wire("127.0.0.1", self.ports[_PLAIN]) as wire:
            assert wire.create(name).error_code == 0
        before = _cpu(server)
        how = {_JAVA: self._java, _LIBRDKAFKA: self._librdkafka, _BY_HAND: self._by_hand}[work]
        rate, client = how(name, kind, size, mb)
        used = _cpu(server) - before
        with Wire("127.0.0.1", self.ports[_PLAIN]) as wire:
            wire.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": (name,), "timeout": 5000})
        return Measured(rate, used * 1000 / mb, client * 1000 / mb)

    def _java(self, name: str, kind: str, size: int, mb: int) -> tuple[float, float]:
        more = () if kind == _PLAIN else (
            "security.protocol=SSL", "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.authority.ca}",
        )  # fmt: skip
        records = mb * 1_000_000 // loads.RECORD_BYTES
        rate, cpu = loads.produce(f"localhost:{self.ports[kind]}", name, records, size, *more)
        return rate * loads.RECORD_BYTES / 1e6, cpu

    def _librdkafka(self, name: str, kind: str, size: int, mb: int) -> tuple[float, float]:
        settings: dict[str, Any] = {
            "bootstrap.servers": f"localhost:{self.ports[kind]}", "linger.ms": 5,
            "batch.size": size, "acks": 1, "queue.buffering.max.messages": 1_000_000,
        }  # fmt: skip
        if kind == _TLS:
            settings |= {"security.protocol": "SSL", "ssl.ca.location": str(self.authority.ca)}
        producer = Producer(settings)
        count, value = mb * 1_000_000 // _LARGE_BYTES, b"x" * _LARGE_BYTES
        before, began = _cpu(psutil.Process()), time.perf_counter()
        for number in range(count):
            while number % 1000 == 0 and len(producer) > _WAITING_MAX:
                producer.poll(0.01)
            producer.produce(name, value)
        assert not producer.flush(120)
        seconds = time.perf_counter() - began
        return count * _LARGE_BYTES / 1e6 / seconds, _cpu(psutil.Process()) - before

    def _by_hand(self, name: str, kind: str, size: int, mb: int) -> tuple[float, float]:
        data = batch(*[b"x" * loads.RECORD_BYTES] * (size // (loads.RECORD_BYTES + 8)))
        frame = encode_request(ApiKey.PRODUCE, 9, 1, produce_values(name, data))
        count = mb * 1_000_000 // len(data)
        with Wire("127.0.0.1", self.ports[kind], seconds=120) as wire:
            if kind == _TLS:
                context: ssl.SSLContext = self.authority.context()
                wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
            before, began = _cpu(psutil.Process()), time.perf_counter()
            for number in range(count + _IN_FLIGHT):
                if number < count:
                    wire.socket.sendall(frame)
                if number >= _IN_FLIGHT:
                    answer = wire.receive(ApiKey.PRODUCE, 9)[1]
                    assert answer.responses[0].partition_responses[0].error_code == 0
            seconds = time.perf_counter() - began
            return count * len(data) / 1e6 / seconds, _cpu(psutil.Process()) - before


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure all works in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="little, in a minute")
    parser.add_argument("--rounds", type=int, default=5, help="medians are of these")
    parser.add_argument("--work", choices=_WORKS, action="append")
    arguments = parser.parse_args()
    rounds, mb = (1, 200) if arguments.quick else (arguments.rounds, 500)
    found: dict[tuple[str, int, str], list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="kproxy-bench-") as directory:
        bench = Bench(Path(directory))
        flags = ("--config", str(bench.config), "--sync", "never")
        with served(Path(directory) / "data", *flags, by_exec=True) as server:
            process = psutil.Process(server.process.pid)
            for number in range(rounds + 1):  # the first one warms up
                for work in arguments.work or _WORKS:
                    for size in _SIZES:
                        for kind in (_PLAIN, _TLS):
                            it = bench.measure(process, work, kind, size, mb)
                            print(number, work, size, kind, *it, file=sys.stderr)  # noqa: T201
                            if number:
                                found.setdefault((work, size, kind), []).append(it)
    table = Table(
        "", "batches, KiB", "", "MB/s", "of plaintext", "CPU of the server, s/GB",
        "of the client, s/GB",
    )  # fmt: skip
    for (work, size, kind), some in found.items():
        it = Measured(*map(statistics.median, zip(*some, strict=True)))
        plain = found[work, size, _PLAIN]
        ratio = statistics.median(a.rate / b.rate for a, b in zip(some, plain, strict=True))
        shown = "" if kind == _PLAIN else f"{ratio:.2f} × {'✓' if ratio >= _TARGET else '✗'}"
        table.add_row(
            work, str(size >> 10), kind, f"{it.rate:.3g}", shown, f"{it.server:.3g}",
            f"{it.client:.3g}",
        )  # fmt: skip
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
