"""The figures: names, units and targets; and the measured values, run by run."""

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from benchmarks.loads import RECORD_BYTES
from benchmarks.servers import EMBEDDED, KAFKA, ON_KAFKA

RATIO, DIFFERENCE, VALUE = "ratio", "difference", "value"


@dataclass(frozen=True)
class Target:
    """A bound, on a server's value or on what it is against Kafka's of the same run."""

    of: str  # RATIO, DIFFERENCE, VALUE
    bound: float
    at_least: bool

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        if self.of == RATIO:
            return f"{sign} {self.bound:g} ×"
        if self.of == DIFFERENCE:
            return f"{sign} Kafka {self.bound:+g}" if self.bound else f"{sign} Kafka"
        return f"{sign} {self.bound:,g}"


def ratio(at_least: float) -> Target:
    return Target(RATIO, at_least, at_least=True)


def more(at_most: float) -> Target:
    return Target(DIFFERENCE, at_most, at_least=False)


def least(bound: float) -> Target:
    return Target(VALUE, bound, at_least=True)


def most(bound: float) -> Target:
    return Target(VALUE, bound, at_least=False)


@dataclass(frozen=True)
class Limit:
    """The limit of a rate here: the CPU that the client and the broker need themselves."""

    cpu: str  # the key of the figures of CPU
    records: float  # for which those figures hold; seconds
    threads: int = 2  # that client and broker have between them: the machine's cores


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    key: str
    title: str
    unit: str
    targets: dict[str, Target] = field(default_factory=dict)
    limit: Limit | None = None


def _both(on_kafka: Target, embedded: Target) -> dict[str, Target]:
    return {ON_KAFKA: on_kafka, EMBEDDED: embedded}


def _same(target: Target) -> dict[str, Target]:
    return _both(target, target)


def _cpu(key: str, unit: str, targets: dict[str, Target] | None = None) -> list[Figure]:
    return [
        Figure(f"cpu_{key}", "CPU of the server", unit, targets or {}),
        Figure(f"client_{key}", "CPU of the client", unit),
        Figure(f"broker_{key}", "CPU of the Kafka behind it", unit),
    ]


def _of_gb(key: str) -> Limit:
    return Limit(key, 1e9 / RECORD_BYTES)


def _of_records(key: str, threads: int = 2) -> Limit:
    return Limit(key, 1e6, threads)


_GB, _RECORD = "s/GB", "µs a record"
FIGURES = [
    Figure("produce_16k", "produce, batches of 16 KiB", "records/s",
           _both(ratio(0.9), ratio(1.2)), _of_gb("16k")),
    *_cpu("16k", _GB, _both(most(16), most(7))),
    Figure("turn_16k", "batches answered in a turn of the loop", "each"),
    Figure("produce_256k", "produce, 256 KiB", "records/s",
           _both(ratio(0.85), ratio(1.2)), _of_gb("256k")),
    *_cpu("256k", _GB, _both(most(5.5), most(2.3))),
    Figure("turn_256k", "batches answered in a turn of the loop", "each"),
    Figure("consume", "consume a backlog", "records/s", _same(ratio(1.0))),
    Figure("p50", "latency at 500 records/s, p50", "ms", _both(more(0.4), more(0.05))),
    Figure("p99", "latency at 500 records/s, p99", "ms", _both(more(0.5), more(0))),
    Figure("new", "a record to each of many new queues, Java", "records/s",
           _both(least(20_000), least(45_000)), _of_records("new")),
    *_cpu("new", _RECORD, _both(most(220), most(75))),
    Figure("again", "and again, Java", "records/s",
           _both(least(60_000), least(80_000)), _of_records("again")),
    *_cpu("again", _RECORD, _both(most(65), most(30))),
    Figure("new_librdkafka", "new queues, librdkafka", "records/s",
           _both(least(8_000), least(10_000)), _of_records("new_librdkafka")),
    *_cpu("new_librdkafka", _RECORD),
    Figure("again_librdkafka", "and again, librdkafka", "records/s",
           _both(least(20_000), least(25_000)), _of_records("again_librdkafka")),
    *_cpu("again_librdkafka", _RECORD),
    Figure("back", "read all queues back, one consumer", "records/s",
           _same(least(200_000)), _of_records("back", threads=1)),
    *_cpu("back", _RECORD, _both(most(8), most(7))),
    Figure("follow", "10 records/s in 10,000 queues, one consumer", "% of a core",
           _both(most(3), most(2))),
    Figure("idle", "an idle worker, of 32 shards on Kafka", "% of a core",
           _both(most(1), most(0.5))),
    Figure("memory", "a million queues: memory", "MB", _same(most(280))),
    Figure("restart", "a million queues: restart", "s", _same(most(0.7))),
    Figure("rebuild", "a million queues: rebuild from the log", "envelopes/s",
           {ON_KAFKA: least(60_000)}),
    Figure("cost", "CPU of a produce, a million queues against 1,000", "×", _same(most(1.1))),
]  # fmt: skip

Samples = dict[str, dict[str, list[float]]]
"""The values of each run, by figure and server."""


def samples() -> Samples:
    return defaultdict(lambda: defaultdict(list))


@dataclass(frozen=True)
class Middle:
    """A median and between what the runs lay."""

    value: float
    low: float
    high: float


def middle(values: list[float]) -> Middle:
    return Middle(median(values), min(values), max(values))


def against(found: Samples, figure: Figure, server: str, of: str) -> Middle | None:
    """Return a server's value, or its ratio or difference to Kafka in the same run."""
    mine, kafka = found[figure.key].get(server), found[figure.key].get(KAFKA)
    if not mine or (of != VALUE and not kafka):
        return None
    if of == VALUE:
        return middle(mine)
    pairs = list(zip(mine, kafka or (), strict=True))
    return middle([a / b if of == RATIO else a - b for a, b in pairs])


def reachable(found: Samples, figure: Figure, server: str) -> float | None:
    """Return the value that a server without any CPU of its own would reach; medians."""
    limit, target = figure.limit, figure.targets.get(server)
    if limit is None or target is None:
        return None
    used = sum(
        median(values)
        for who in ("client", "broker")
        if (values := found.get(f"{who}_{limit.cpu}", {}).get(server))
    )
    if not used:
        return None
    rate = limit.threads / used * limit.records
    kafka = found.get(figure.key, {}).get(KAFKA)
    return rate / median(kafka) if target.of == RATIO and kafka else rate
