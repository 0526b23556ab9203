"""The cost for others of many queues that expire: `kproxy.expire.idle.ms`.

    python -m benchmarks.life.expiry [--queues N] [--idle-s S] [--plain N] [--on-kafka]

So many queues are made, and all of them expire when nobody has used them for `--idle-s`; how fast
they are made is how fast they go. Meanwhile a producer writes to another queue. Said are its p50
and p99, the longest turn of the loop by CPU (`benchmarks.life.turns`) and memory: before, while the
queues are idle, and while they go. Before that, the CPU of a server with `--plain` queues that have
no such setting, and with none: an idle queue costs nothing.
"""

import argparse
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks.life import turns
from benchmarks.servers import AS_SHIPPED, counters_of, kafka
from kproxy.loop.pace import slices
from kproxy.protocol.api_keys import ApiKey
from tests.bodies import creation
from tests.harness import Served, served
from tests.wire import batch
from tests.workers import Site, Workers

_MADE_AT_ONCE = 1000
_WINDOW_S, _LOOK_S, _RATE = 20.0, 5.0, 50
_LIVE = "live"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Traffic(threading.Thread):
    """A producer of some records a second, until it is told to stop. Latencies in ms."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self._site, self.stopping = site, False
        self._took: list[float] = []

    def run(self) -> None:
        with self._site.wire(_LIVE) as wire:
            wire.socket.settimeout(120)
            at = time.monotonic()
            while not self.stopping:
                began = time.monotonic()
                assert wire.produce(_LIVE, batch(b"x" * 100)).error_code == 0
                self._took.append((time.monotonic() - began) * 1000)
                at = max(at + 1 / _RATE, time.monotonic())
                time.sleep(at - time.monotonic() if at > time.monotonic() else 0)

    def window(self) -> str:
        """Return the p50 and the p99 since the last window."""
        some, self._took = sorted(self._took), []
        if not some:
            return "took longer than all of it"
        p50, p99 = (some[int(len(some) * part)] for part in (0.5, 0.99))
        return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms of {len(some)}"


class Bench:
    """The servers, and where their turns are told."""

    def __init__(self, site: Site, told: Path) -> None:
        self._site, self._told = site, told
        self._servers: list[Served] = site.workers if isinstance(site, Workers) else [site]
        self._processes = [psutil.Process(one.process.pid) for one in self._servers]

    def cpu(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self._processes)

    def _rss(self) -> int:
        return max(one.rss() for one in self._servers) >> 20

    def _expired(self) -> int:
        return sum(counters_of(one)["queues_expired"] for one in self._servers)

    def make(self, prefix: str, count: int, **configs: str) -> None:
        with self._site.wire(_LIVE) as wire:
            wire.socket.settimeout(300)
            for some in slices((f"{prefix}-{number}" for number in range(count)), _MADE_AT_ONCE):
                values = creation(*some, configs=configs)
                answer = wire.call(ApiKey.CREATE_TOPICS, 7, values)
                assert not any(one.error_code for one in answer.topics)

    def idle(self, what: str) -> None:
        """Say what the servers compute while nobody asks."""
        time.sleep(_WINDOW_S)  # for the flush of new rows
        before = self.cpu()
        time.sleep(_WINDOW_S)
        _say(f"{what}: {100 * (self.cpu() - before) / _WINDOW_S:.2f} % of a core while idle")

    def _told_of(self, what: str, traffic: Traffic, since: float) -> None:
        turn = turns.longest(self._told, since, time.time())
        _say(f"{what}: produce {traffic.window()}; longest turn {turn * 1000:.0f} ms,"
             f" {self._rss()} MiB resident")  # fmt: skip

    def expire(self, count: int, idle_s: int) -> None:
        traffic = Traffic(self._site)
        traffic.start()
        since = time.time()
        time.sleep(_WINDOW_S)
        self._told_of("before", traffic, since)
        since = time.time()
        self.make("going", count, kproxy_expire_idle_ms=str(idle_s * 1000))
        _say(f"{count} made in {time.time() - since:.0f} s")
        self._told_of("while they are made", traffic, since)
        first, since = since + idle_s, time.time()
        if first > since + _LOOK_S:
            time.sleep(first - since)
            self._told_of("while all are idle", traffic, since)
        since, cpu = time.time(), self.cpu()
        while (gone := self._expired()) < count:
            assert time.time() < since + 10 * idle_s, f"only {gone} went"
            time.sleep(_LOOK_S)
        _say(f"{count} went in {time.time() - since:.0f} s, CPU {self.cpu() - cpu:.0f} s")
        self._told_of("while they go", traffic, since)
        traffic.stopping = True
        traffic.join(30)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--plain", type=int, default=100_000)
    parser.add_argument("--idle-s", type=int, default=600)
    parser.add_argument("--on-kafka", action="store_true", help="two workers on a Kafka")
    asked = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kproxy-bench-")))
        env = turns.environment(directory / "told")
        site: Site
        if asked.on_kafka:
            broker = stack.enter_context(kafka(directory / "kafka"))
            own = directory / "workers"
            site = Workers(broker, own, *AS_SHIPPED, prefix="expiry", env=env)
            stack.enter_context(site.running(120))
        else:
            data = directory / "data"
            site = stack.enter_context(served(data, *AS_SHIPPED, by_exec=True, env=env))
        bench = Bench(site, directory / "told")
        with site.wire(_LIVE) as wire:
            assert wire.create(_LIVE).error_code == 0
        bench.idle("no queues")
        bench.make("plain", asked.plain)
        bench.idle(f"{asked.plain} queues without the setting")
        bench.expire(asked.queues, asked.idle_s)


if __name__ == "__main__":
    main()
