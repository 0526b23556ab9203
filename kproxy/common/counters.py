"""The counters of a worker. To count is one addition to a plain integer: 0.05 µs.

A counter is one line of `Counters`, and an addition where the thing happens. `kproxy.observe`
reads them for `/metrics`, on another thread, SIGUSR1 has them logged, and docs/metrics.md follows.
"""

# ruff: noqa: RUF009 - _told and its like return fields
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

APIS = 100
"""More than the highest API key."""
REQUEST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
APPEND_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TIMED = {0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit",
         9: "OffsetFetch", 78: "ShareFetch", 79: "ShareAcknowledge"}  # fmt: skip
"""The hot APIs, by key: how long their requests take is counted."""
TIMED_EVERY = 17
"""The number of requests of which one Produce is timed: two looks at the clock are 1 % of one.

A prime, for clients whose requests come in some rhythm.
"""
WAITED: ContextVar[list[float] | None] = ContextVar("waited", default=None)
"""The seconds that a request waits for records: they are no part of how long it takes."""


class Histogram:
    """The numbers of values below each bound. `observe` is 0.2 µs."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = REQUEST_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Busiest:
    """The approximate amounts of the names that there was most of: for a look, not for a bill.

    Bounded: if there are too many names, the half with the least goes.
    """

    __slots__ = ("_names_max", "amounts")

    def __init__(self, names_max: int = 500) -> None:
        self._names_max = names_max
        self.amounts: dict[str | bytes, int] = {}

    def add(self, name: str | bytes, amount: int) -> None:
        amounts = self.amounts
        amounts[name] = amounts.get(name, 0) + amount
        if len(amounts) > self._names_max:
            self.amounts = dict(self.top(self._names_max // 2))

    def top(self, count: int) -> list[tuple[str | bytes, int]]:
        """Return the names with most, most first."""
        return sorted(self.amounts.items(), key=lambda item: -item[1])[:count]


class Series(NamedTuple):
    """A series of `/metrics`, without its values."""

    name: str
    kind: str
    """One of counter, gauge and histogram."""
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name as Prometheus has it."""
        return f"kproxy_{self.name}" + ("_total" if self.kind == "counter" else "")


def _told(made: Any, meaning: str, name: str = "", kind: str = "counter", *labels: str) -> Any:
    """Return a field of `Counters` that is a series; `name`: where it is not the field's own."""
    return field(default_factory=made, metadata={"series": Series(name, kind, meaning, labels)})


def _total(meaning: str, name: str = "") -> Any:
    return _told(int, meaning, name)


def _by(labels: str, meaning: str, name: str = "") -> Any:
    return _told(Counter, meaning, name, "counter", *labels.split())


def _seconds(name: str, bounds: tuple[float, ...], meaning: str) -> Any:
    return _told(lambda: Histogram(bounds), meaning, name, "histogram")


@dataclass(slots=True)
class Counters:
    """Totals since the start of the process. A field without a meaning is no series."""

    requests: int = 0
    writes: int = 0
    """The writes to clients: a connection's answers of a turn of the loop are one."""
    routes_held_back: int = 0
    """Times that a route had to wait."""
    answered: list[int] = field(default_factory=lambda: [0] * APIS)
    """Requests answered without an error, by API key."""
    busy_in: Busiest = field(default_factory=Busiest)
    """Bytes by queue, of one Produce in `TIMED_EVERY` requests."""
    busy_out: Busiest = field(default_factory=Busiest)
    """The same of Fetch."""
    busy_groups: Busiest = field(default_factory=Busiest)
    """Commits by group."""
    failed: Counter[tuple[int, int]] = _by(
        "api code",
        "requests answered, by API and the first error in the answer, NONE without one",
        "requests",
    )
    """The requests that are not in `answered`, by API key and first error."""
    request_seconds: dict[int, Histogram] = _told(
        lambda: {key: Histogram() for key in TIMED},
        "time of requests of the eight hot APIs, without waits for records; of Produce every 17th"
        " request is timed",
        "request_seconds",
        "histogram",
        "api",
    )
    request_bytes: int = _total("bytes of requests")
    response_bytes: int = _total("bytes of answers")
    produced_bytes: int = _total("bytes of batches that were taken for the log")
    produced_records: int = _total("records in batches that were taken for the log")
    fetched_bytes: int = _total("bytes of batches in answers to Fetch and ShareFetch")
    fetched_records: int = _total(
        "records in answers: offsets of Fetch, acquired records of ShareFetch"
    )
    connections_open: int = _told(int, "connections that are open", "connections", "gauge")
    connections: int = _total("connections ever", "connections_accepted")
    connections_ended: Counter[str] = _by(
        "outcome",
        "connections that kproxy ended or refused: limit, idle, stalled, malformed, login, failed,"
        " superseded",
    )
    """The keys are events that say why."""
    logins: Counter[tuple[str, str]] = _by(
        "mechanism outcome", "logins of clients: in, again, failed"
    )
    throttled: Counter[str] = _by("quota", "times that a client was to wait, by the quota's name")
    handshakes: Counter[str] = _by(
        "protocol", "TLS handshakes by protocol, or failed", "tls_handshakes"
    )
    certificates: dict[str, float] = _told(
        dict,
        "end of a listener's certificate, in seconds since 1970",
        "certificate_expires_seconds",
        "gauge",
        "listener",
    )
    loop_lag: Histogram = _seconds(
        "loop_lag_seconds",
        (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        "seconds by which the event loop is late, looked at twice a second",
    )
    takeover_seconds: Histogram = _seconds(
        "takeover_seconds",
        (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800),
        "seconds from the assignment of a shard, or its loss, until it is served",
    )
    log_lost: Counter[str] = _by(
        "shard", "log offsets of the data topic that the cluster has lost: the event log_lost"
    )
    records_lost: Counter[str] = _by(
        "shard", "offsets of queues that the cluster has lost: the event records_lost has them"
    )
    dead_letters: int = _total("records that went into dead-letter queues")
    dead_letters_blocked: int = _total("times that dead letters had to wait for their queue")
    dead_letters_dropped: int = _total("dead letters whose queue, or that it gets any, is gone")
    dead_letters_refused: int = _total("records archived without a dead letter: too many wait")
    share_delivered: int = _total(
        "records given to members of share groups, each time that they were"
    )
    share_accepted: int = _total("records that members of share groups accepted")
    share_released: int = _total("records that members of share groups gave back")
    share_rejected: int = _total("records that members of share groups rejected")
    share_timed_out: int = _total("records that members of share groups held for too long")
    share_lookaheads_shortened: int = _total(
        "share partitions where lanes were looked for among fewer records than the group wants, as"
        " share_lanes_bytes_max was reached; the order within a lane stays"
    )
    share_lanes_unread: int = _total(
        "records of batches that could not be read: all in the lane of records that say none"
    )
    share_archived: Counter[str] = _by(
        "cause",
        "records that nobody is given any more: rejected; delivery_limit, given as often as may be;"
        " expired, as a header said; gap, a member found nothing there; hole, compacted away or"
        " aborted",
    )
    routed: int = _total("records that were passed on to other queues, unroutable ones among them")
    redriven: int = _total(
        "records that redrives have passed on once more; `kproxy_routed_total` counts them, too"
    )
    route_passed_over: int = _total(
        "records that a route could not look at, that no log takes, or that have no key where the"
        " queue that they go to is compacted: the event route_passed_over says which"
    )
    unroutable: int = _total("records that had no queue to go to")
    garbage_looks: int = _total("looks at old objects for reference cycles")
    garbage_found: int = _total(
        "objects that such looks freed: if it grows steadily, kproxy leaves cycles, which is a"
        " fault of ours"
    )
    compaction_passes: int = _total("passes of compaction")
    batches_not_compacted: int = _total(
        "batches that passes of compaction left as they are: they would not fit into the log with"
        " fewer records, or hold too many"
    )
    queues_expired: int = _total("queues that were deleted as nobody used them")
    appends_refused: int = _total(
        "batches that were not appended, as their partition did not end where kproxy.if-end-offset"
        " said"
    )
    expired_at_once: int = _total(
        "records that were taken and are older than their queue's retention.ms keeps them:"
        " retention takes them at its next look"
    )
    batches_damaged: int = _total(
        "reads of a batch, or of rows, that were not what had been written, or that the disk did"
        " not give"
    )
    not_compacted: int = _total("partitions with a batch that cannot be read")
    producers_forgotten: int = _total(
        "idempotent producers that a queue forgot, as nobody had used them for"
        " --producer-id-expiration-ms"
    )
    producers_forgotten_early: int = _total(
        "the same of those that were too many: below level 8 a partition remembers some 1,000, and"
        " does not know a retry of the others"
    )

    def answer(self, key: int, code: int) -> None:
        """Count an answer to a request of an API; `code`: the first error in the answer, or 0."""
        if code:
            self.failed[key, code] += 1
        else:
            self.answered[key] += 1

    def values(self) -> dict[str, int]:
        """Return each counter that is one number by its name."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, int)}


def counted() -> Iterator[tuple[str, Series]]:
    """Yield each field of `Counters` that is a series."""
    for one in fields(Counters):
        if (series := one.metadata.get("series")) is not None:
            yield one.name, series._replace(name=series.name or one.name)
