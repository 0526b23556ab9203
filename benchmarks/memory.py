"""Memory of kproxy while very much goes through it: what is gone takes none.

    python -m benchmarks.memory entrance [--records N] [--queues N] [--on-kafka]
    python -m benchmarks.memory queues [--queues N]
    python -m benchmarks.memory logins [--logins N]

`entrance` writes records through an entrance, round robin over queues that are new at first, and
prints resident memory after 200,000 records and at the end. `queues` makes queues through an
entrance on a real Kafka with two workers, restarts a worker, kills the other, and reads a sample
back. `logins` logs in by SCRAM on one connection after another. Each prints a line at each step.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition

from benchmarks.routes import VALUE, entrance, write_numbered
from benchmarks.servers import AS_SHIPPED, counters_of, kafka
from tests.harness import Served, eventually, served
from tests.securing import PASSWORD, log_in
from tests.securing import Site as Secured
from tests.workers import Site, Workers

_EARLY = 200_000
_STEP = 500_000
_PATIENCE_S = 3_600.0
_READY_S = 1_800.0
_SAMPLE = 1_000
_began = time.monotonic()


def _say(line: str) -> None:
    sys.stdout.write(f"{time.monotonic() - _began:8.1f} s  {line}\n")
    sys.stdout.flush()


def _workers(site: Site) -> list[Served]:
    return site.workers if isinstance(site, Workers) else [site]


def _rss(site: Site) -> list[int]:
    """Return each worker's resident memory in MB (10**6 bytes)."""
    alive = [one for one in _workers(site) if one.process.poll() is None]
    return [round(psutil.Process(one.process.pid).memory_info().rss / 1e6) for one in alive]


def _passed(site: Site, records: int) -> bool:
    return _routed(site) >= records


def _routed(site: Site) -> int:
    """Return how many records the living workers have passed on."""
    return sum(counters_of(one)["routed"] for one in _workers(site) if one.process.poll() is None)


def _through(site: Site, name: str, records: int, queues: int) -> Iterator[tuple[int, list[int]]]:
    """Yield how many records have passed and the memory, at some places."""
    steps = sorted({_EARLY, records, *range(_STEP, records, _STEP)})
    for first, end in zip([0, *steps], steps, strict=False):
        began = time.monotonic()
        asked = [sys.executable, "-m", "benchmarks.memory", "--write", site.address, name]
        numbers = (str(number) for number in (first, end, queues))
        subprocess.run([*asked, *numbers], check=True, timeout=_PATIENCE_S)
        eventually(partial(_passed, site, end), _PATIENCE_S, 1)
        taken = (end - first) / (time.monotonic() - began)
        memory = _rss(site)
        _say(f"{name}: {end:,} records, RSS {memory} MB, {taken:,.0f} records/s")
        yield end, memory


@contextmanager
def _embedded(directory: Path) -> Iterator[Site]:
    with served(directory, "--sync", "never", *AS_SHIPPED, by_exec=True) as server:
        yield server


@contextmanager
def _on_kafka(directory: Path) -> Iterator[Workers]:
    with kafka(directory / "kafka") as broker:
        workers = Workers(broker, directory, *AS_SHIPPED, count=2, shards=8, prefix="memory")
        with workers.running(_READY_S):
            yield workers


def through_entrances(directory: Path, records: int, queues: int, *, on_kafka: bool) -> None:
    """Print memory for an entrance to very many queues, and one to 8,000."""
    for name, targets in (("many", queues), ("few", 8_000)):
        site = _on_kafka if on_kafka else _embedded
        with site(directory / name) as serving:
            entrance(serving.address, name)
            found = dict(_through(serving, name, records, targets))
            before, after = max(found[min(_EARLY, records)]), max(found[records])
            where = "two workers on Kafka" if on_kafka else "embedded"
            _say(f"{where}, {targets:,} queues: {before} -> {after} MB, {after / before - 1:+.1%}")


def many_queues(directory: Path, queues: int) -> None:
    """Print what very many queues cost two workers: to make, restart, take over and read."""
    with _on_kafka(directory) as workers:
        entrance(workers.address, "q")
        for _ in _through(workers, "q", queues, queues):
            pass
        began = time.monotonic()
        assert workers.workers[1].stop() == 0
        workers.again(1).wait_ready(_READY_S)
        workers.wait_balanced(_READY_S)
        _say(f"a worker stopped, restarted and balanced in {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        workers.workers[1].kill()
        workers.wait_served(_READY_S)
        _say(f"all shards taken over in {time.monotonic() - began:.1f} s, RSS {_rss(workers)} MB")
        began = time.monotonic()
        _read_sample(workers, queues)
        _say(f"{_SAMPLE} queues read back in {time.monotonic() - began:.1f} s")
        workers.again(1).wait_ready(_READY_S)


def _read_sample(site: Site, queues: int) -> None:
    """Read the record of some queues. Raises AssertionError where one is lost."""
    names = [f"q-{number}" for number in random.Random(1).sample(range(queues), _SAMPLE)]
    consumer = Consumer({"bootstrap.servers": site.address, "group.id": "sample"})
    consumer.assign([TopicPartition(name, 0, 0) for name in names])
    seen: list[str | None] = []
    eventually(lambda: _take(consumer, seen) >= _SAMPLE, 600)
    consumer.close()
    assert sorted(map(str, seen)) == sorted(names)


def _take(consumer: Consumer, seen: list[str | None]) -> int:
    for message in consumer.consume(_SAMPLE, 1):
        assert message.error() is None
        assert message.value() == VALUE
        seen.append(message.topic())
    return len(seen)


def many_logins(directory: Path, logins: int) -> None:
    """Print memory after one login after another, each on a connection of its own."""
    with Secured(directory).running() as site:
        site.add_user("alice")
        for number in range(1, logins + 1):
            mechanism = ("PLAIN", "SCRAM-SHA-256")[number % 2]
            with site.wire("SASL") as wire:
                assert log_in(wire, mechanism, password=PASSWORD).error_code == 0
            if number in (logins // 50, logins) or number % (logins // 5) == 0:
                _say(f"{number:,} logins, RSS {_rss(site.server)} MB")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("what", nargs="?", choices=("entrance", "queues", "logins"))
    asked.add_argument("--records", type=int, default=5_000_000)
    asked.add_argument("--queues", type=int, default=0)
    asked.add_argument("--logins", type=int, default=100_000)
    asked.add_argument("--on-kafka", action="store_true")
    asked.add_argument("--write", nargs=5, help=argparse.SUPPRESS)
    arguments = asked.parse_args()
    if arguments.write:
        address, name, *numbers = arguments.write
        write_numbered(address, name, *map(int, numbers))
        return
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if arguments.what == "entrance":
            queues = arguments.queues or 1_000_000
            through_entrances(directory, arguments.records, queues, on_kafka=arguments.on_kafka)
        elif arguments.what == "queues":
            many_queues(directory, arguments.queues or 10_000_000)
        else:
            many_logins(directory, arguments.logins)


if __name__ == "__main__":
    main()
