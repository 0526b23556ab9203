"""What is measured: names, units and targets; and what was measured, run by run."""

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

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


def ratio_most(at_most: float) -> Target:
    return Target(RATIO, at_most, at_least=False)


def more(at_most: float) -> Target:
    return Target(DIFFERENCE, at_most, at_least=False)


def least(bound: float) -> Target:
    return Target(VALUE, bound, at_least=True)


def most(bound: float) -> Target:
    return Target(VALUE, bound, at_least=False)


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    key: str
    title: str
    unit: str
    targets: dict[str, Target] = field(default_factory=dict)


def _both(on_kafka: Target, embedded: Target) -> dict[str, Target]:
    return {ON_KAFKA: on_kafka, EMBEDDED: embedded}


def _same(target: Target) -> dict[str, Target]:
    return _both(target, target)


def _cpu(key: str, unit: str, targets: dict[str, Target] | None = None) -> list[Figure]:
    return [
        Figure(f"cpu_{key}", "CPU of the server", unit, targets or {}),
        Figure(f"client_{key}", "CPU of the client", unit),
    ]


_GB, _RECORD = "s/GB", "µs a record"
FIGURES = [
    Figure("produce_16k", "produce, batches of 16 KiB", "records/s", _both(ratio(0.9), ratio(1.2))),
    *_cpu("16k", _GB, _both(ratio_most(0.5), ratio_most(1.0))),
    Figure("produce_256k", "produce, 256 KiB", "records/s", _both(ratio(0.85), ratio(1.2))),
    *_cpu("256k", _GB, _both(ratio_most(1.0), ratio_most(1.5))),
    Figure("consume", "consume a backlog", "records/s", _same(ratio(1.0))),
    Figure("p50", "latency at 500 records/s, p50", "ms", _both(more(0.5), more(0))),
    Figure("p99", "latency at 500 records/s, p99", "ms", _both(more(0.5), more(0))),
    Figure("new", "a record to each of many new queues, Java", "records/s",
           _both(least(20_000), least(45_000))),
    *_cpu("new", _RECORD),
    Figure("again", "and again, Java", "records/s", _both(least(60_000), least(80_000))),
    *_cpu("again", _RECORD),
    Figure("new_librdkafka", "new queues, librdkafka", "records/s",
           _both(least(8_000), least(10_000))),
    *_cpu("new_librdkafka", _RECORD),
    Figure("again_librdkafka", "and again, librdkafka", "records/s",
           _both(least(20_000), least(25_000))),
    *_cpu("again_librdkafka", _RECORD),
    Figure("back", "read all queues back, one consumer", "records/s", _same(least(200_000))),
    *_cpu("back", _RECORD),
    Figure("follow", "10 records/s in 10,000 queues, one consumer", "% of a core", _same(most(5))),
    Figure("memory", "a million queues: memory", "MB", _same(most(280))),
    Figure("restart", "a million queues: restart", "s", _same(most(0.7))),
    Figure("rebuild", "a million queues: rebuild from the log", "envelopes/s",
           {ON_KAFKA: least(200_000)}),
    Figure("cost", "CPU of a produce, a million queues against 1,000", "×", _same(most(1.1))),
]  # fmt: skip

Samples = dict[str, dict[str, list[float]]]
"""By figure and server, a value for each run."""


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
    """A server's value, or its ratio or difference to Kafka in the same run."""
    mine, kafka = found[figure.key].get(server), found[figure.key].get(KAFKA)
    if not mine or (of != VALUE and not kafka):
        return None
    if of == VALUE:
        return middle(mine)
    pairs = list(zip(mine, kafka or (), strict=True))
    return middle([a / b if of == RATIO else a - b for a, b in pairs])
