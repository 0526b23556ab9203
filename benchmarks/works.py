"""The works: each loads servers in turn, run after run, and says what it saw."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from benchmarks import loads
from benchmarks.figures import Samples
from benchmarks.servers import EMBEDDED, KAFKA, ON_KAFKA, SYNCED, Server

ALL = (KAFKA, ON_KAFKA, EMBEDDED, SYNCED)
QUEUES = (ON_KAFKA, EMBEDDED)
_ROUNDS = ("new", "again")
# Java's producer and librdkafka keep data of each topic, which makes each new one dearer.
QUEUES_A_PRODUCER = 1_000

_names = itertools.count()


@dataclass(frozen=True)
class Sizes:
    """The size of each work."""

    runs: int
    produce: int
    consume: int
    latency: int
    queues: int
    queues_librdkafka: int
    records_each: int
    follow: int
    follow_s: int
    million: int
    hot_rounds: int
    idle_s: int


FULL = Sizes(
    runs=5, produce=2_000_000, consume=5_000_000, latency=5_000, queues=100_000,
    queues_librdkafka=100_000, records_each=10, follow=10_000, follow_s=20, million=1_000_000,
    hot_rounds=40, idle_s=20,
)  # fmt: skip
QUICK = Sizes(
    runs=1, produce=300_000, consume=300_000, latency=1_000, queues=10_000,
    queues_librdkafka=4_000, records_each=5, follow=2_000, follow_s=5, million=10_000,
    hot_rounds=10, idle_s=3,
)  # fmt: skip


def _turns(runs: int, names: tuple[str, ...]) -> Iterator[str]:
    """Yield servers in turn, each run beginning with another."""
    for run in range(runs):
        shift = run % len(names)
        yield from names[shift:] + names[:shift]


def _name() -> str:
    return f"bench-{next(_names)}-"


class Used:
    """Seconds of CPU that a load costs a server, and the Kafka behind it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = server.cpu(), server.broker_cpu()

    def note(self, found: Samples, key: str, client: float, units: float) -> None:
        """Note a sample of each since the last one, for so many units of work; with the
        client's.
        """
        server = self._server
        now = server.cpu(), server.broker_cpu()
        own, broker = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        found[f"cpu_{key}"][server.name].append(own / units)
        found[f"client_{key}"][server.name].append(client / units)
        if server.broker:
            found[f"broker_{key}"][server.name].append(broker / units)


def produce(servers: dict[str, Server], sizes: Sizes, found: Samples, size: int) -> None:
    """Run Kafka's own tool into one new topic: how fast, and what CPU the server had."""
    key = f"{size >> 10}k"
    for name in (*ALL, KAFKA):  # not counted: what Java compiles while it runs for the first time
        queue = _new(servers[name])
        loads.produce(servers[name].address, queue, sizes.produce, size)
        loads.drop(servers[name].address, queue)
    for name in _turns(sizes.runs, ALL):
        server = servers[name]
        counted = server.counters() if server.served else {}
        queue, used = _new(server), Used(server)
        rate, client_cpu = loads.produce(server.address, queue, sizes.produce, size)
        used.note(found, key, client_cpu, sizes.produce * loads.RECORD_BYTES / 1e9)
        loads.drop(server.address, queue)
        found[f"produce_{key}"][name].append(rate)
        if counted:
            now = server.counters()
            requests, writes = (now[what] - counted[what] for what in ("requests", "writes"))
            found[f"turn_{key}"][name].append(requests / writes)


def _new(server: Server) -> str:
    """Return a new topic's name."""
    queue = _name()
    loads.make_queue(server.address, queue)
    return queue


def produce_16k(servers: dict[str, Server], sizes: Sizes, found: Samples) -> None:
    produce(servers, sizes, found, 16 << 10)


def produce_256k(servers: dict[str, Server], sizes: Sizes, found: Samples) -> None:
    produce(servers, sizes, found, 256 << 10)


def consume(servers: dict[str, Server], sizes: Sizes, found: Samples) -> None:
    """Read with Kafka's own tool the records that Kafka's own tool wrote."""
    queue, names = _name(), (KAFKA, ON_KAFKA, EMBEDDED)
    for name in names:
        loads.make_queue(servers[name].address, queue)
        loads.produce(servers[name].address, queue, sizes.consume, 16 << 10)
        loads.consume(servers[name].address, queue, sizes.consume // 5)
    for name in _turns(sizes.runs, names):
        found["consume"][name].append(loads.consume(servers[name].address, queue, sizes.consume))
    for name in names:
        loads.drop(servers[name].address, queue)


def latency(servers: dict[str, Server], sizes: Sizes, found: Samples) -> None:
    """Measure from send() to the answer, of a Java producer."""
    queue = _name()
    for name in ALL:
        loads.make_queue(servers[name].address, queue)
    for name in _turns(sizes.runs, ALL):
        (said,) = loads.java("latency", servers[name].address, queue, sizes.latency, 500, 1_000)
        for key in ("p50", "p99"):
            found[key][name].append(said[f"{key}_ms"])
    for name in ALL:
        loads.drop(servers[name].address, queue)


def wide(servers: dict[str, Server], sizes: Sizes, found: Samples) -> None:
    """Write to new queues, then the same again, then read all of them with one consumer."""
    count = sizes.queues
    for name in _turns(sizes.runs, QUEUES):
        server, prefix = servers[name], _name()
        more = sizes.records_each - len(_ROUNDS)
        told = loads.wide(server.address, prefix, count, len(_ROUNDS), QUEUES_A_PRODUCER, more)
        _rounds(server, told, count, found, "")
        records, used = count * sizes.records_each, Used(server)
        (read,) = loads.java("back", server.address, prefix, count, records)
        if read["records"] != records:
            raise RuntimeError(f"{read['records']} of {records} records were read")
        found["back"][name].append(records / read["seconds"])
        used.note(found, "back", read["cpu"], records / 1e6)


def _rounds(
    server: Server, told: Iterator[loads.Round], count: int, found: Samples, client: str
) -> None:
    used = Used(server)
    for name, round_ in zip_longest(_ROUNDS, told):
        if name is not None:
            key = name + client
            found[key][server.name].append(count / round_.seconds)
            used.note(found, key, round_.cpu, count / 1e6)


def wide_librdkafka(servers: dict[str, Server], sizes: Sizes, found: Samples) -> None:
    """Do the same with a client that sends a request for each partition."""
    count = sizes.queues_librdkafka
    for name in _turns(sizes.runs, QUEUES):
        told = loads.librdkafka(servers[name].address, _name(), count, 2, QUEUES_A_PRODUCER)
        _rounds(servers[name], told, count, found, "_librdkafka")


def follow(servers: dict[str, Server], sizes: Sizes, found: Samples) -> None:
    """Measure the CPU of a worker with a consumer of many queues of which few have news."""
    queues, rate, prefix = sizes.follow, 10, _name()
    for name in QUEUES:
        list(loads.wide(servers[name].address, prefix, queues, 1, QUEUES_A_PRODUCER))
    for name in _turns(sizes.runs, QUEUES):
        server, seconds = servers[name], sizes.follow_s
        with loads.following(server.address, prefix, queues, seconds, rate) as said:
            before = server.cpu()
            time.sleep(seconds)
            used = server.cpu() - before
        if said["read"] != said["sent"]:
            raise RuntimeError(f"{said}")
        found["follow"][name].append(100 * used / seconds)
