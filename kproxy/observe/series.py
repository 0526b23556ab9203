"""A worker's series for Prometheus, made of plain numbers when they are asked for.

docs/metrics.md says what each means. Every label has few values, by code and not by data, but
for queues and groups that were asked for by name (`observe.selected`).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from platform import python_version
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kproxy import __version__
from kproxy.common.counters import APIS, TIMED, Histogram
from kproxy.common.errors import Code
from kproxy.observe.health import Health
from kproxy.observe.selected import Selected
from kproxy.protocol.api_keys import ApiKey
from kproxy.worker.standing import PHASES, ShardStanding
from kproxy.worker.worker import Worker

_APIS = {int(key): "".join(part.title() for part in key.name.split("_")) for key in ApiKey}
_CODES = {int(code): code.name for code in Code}
_ENDED = {
    "connection_refused": "limit", "connection_idle": "idle", "client_does_not_read": "stalled",
    "client_stopped_inside_a_request": "stalled", "request_refused": "malformed",
    "request_failed": "failed", "certificate_refused": "login", "login_timed_out": "login",
    "login_pushed_out": "login", "connection_pushed_out": "limit",
    "client_left": "stalled", "request_superseded": "superseded",
}  # fmt: skip
"""Outcomes of connections by the event that is logged."""
_PLAIN = {
    "request_bytes": "bytes of requests", "response_bytes": "bytes of answers",
    "produced_bytes": "bytes of batches that were taken for the log",
    "produced_records": "records of batches that were taken for the log",
    "fetched_bytes": "bytes of batches in answers to Fetch and ShareFetch",
    "fetched_records": "records in answers to Fetch and ShareFetch, as offsets",
    "dead_letters": "records that went into dead-letter queues",
    "dead_letters_blocked": "times that dead letters had to wait for their queue",
    "dead_letters_dropped": "dead letters whose queue is gone",
    "dead_letters_refused": "records archived without a dead letter: too many wait",
    "share_accepted": "records that members of share groups accepted",
    "share_delivered": "records given to members of share groups, each time that they were",
    "share_rejected": "records that members of share groups rejected",
    "share_released": "records that members of share groups gave back",
    "share_timed_out": "records that members of share groups held for too long",
    "routed": "records that were passed on to other queues",
    "route_passed_over": "records that a route could not look at or pass on",
    "unroutable": "records that have no queue to go to",
    "garbage_looks": "looks at old objects for reference cycles",
    "garbage_found": "objects that these looks found and freed",
    "compaction_passes": "passes of compaction",
    "batches_not_compacted": "batches that passes of compaction left as they are",
    "expired_at_once": "records taken that are older than their queue keeps them",
    "not_compacted": "partitions with a batch that cannot be read",
    "producers_forgotten": "idempotent producers that a queue forgot, as nobody had used them",
    "producers_forgotten_early": "producers forgotten because there were too many, below level 8",
}  # fmt: skip


_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def _of(known: tuple[str, ...], name: str) -> str:
    return name if name in known else "none"


class WorkerSeries(Collector):
    """The series of a worker, collected on the thread that asks.

    `selected`: single queues and groups.
    """

    def __init__(self, health: Health, selected: Selected | None = None) -> None:
        self._health = health
        self._selected = selected
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def page(self) -> bytes:
        """Return the series in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield _labelled(
            GaugeMetricFamily, "build_info", "1", ("version", "python"),
            {(__version__, python_version()): 1},
        )  # fmt: skip
        yield _gauge("ready", "1 where clients may be sent here", not self._health.unready())
        worker = self._health.worker
        if worker is not None:
            yield from _requests(worker)
            yield from _connections(worker)
            yield from _shards(worker)
            if self._selected is not None:
                yield from self._selected.collect(worker)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"kproxy_{name}", text, value)


def _labelled(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str,
    labels: tuple[str, ...], values: Mapping[Any, float],
) -> Metric:  # fmt: skip
    family = kind(f"kproxy_{name}", text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _histogram(
    name: str, text: str, histograms: Mapping[Any, Histogram], labels: tuple[str, ...] = ()
) -> Metric:
    family = HistogramMetricFamily(f"kproxy_{name}", text, labels=labels)
    for of, histogram in histograms.items():
        buckets, total = [], 0
        bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(of, buckets, histogram.total)
    return family


def _requests(worker: Worker) -> Iterator[Metric]:
    counters = worker.counters
    answered = dict(enumerate(counters.answered))
    requests = {(_APIS[k], "NONE"): n for k, n in answered.items() if n and k < APIS and k in _APIS}
    for (key, code), count in list(counters.failed.items()):
        requests[_APIS.get(key, str(key)), _CODES.get(code, "OTHER")] = count
    yield _labelled(
        CounterMetricFamily, "requests",
        "requests answered, by API and the first error in the answer",
        ("api", "code"), requests,
    )  # fmt: skip
    timed = {(TIMED[key],): one for key, one in counters.request_seconds.items()}
    yield _histogram(
        "request_seconds", "seconds of requests, without waits for records", timed, ("api",)
    )
    for name, text in _PLAIN.items():
        yield CounterMetricFamily(f"kproxy_{name}", text, getattr(counters, name))
    yield _histogram(
        "loop_lag_seconds", "seconds by which the event loop is late", {(): counters.loop_lag}
    )
    yield _gauge("fetch_sessions", "sessions of Fetch", worker.sessions.count)
    yield _gauge("share_sessions", "sessions of ShareFetch", len(worker.share_sessions))
    yield _gauge("long_polls", "requests that wait for records", worker.long_polls)
    received, made = worker.request_memory, worker.answer_memory
    for what, memory, held in (("request", received, received.used), ("answer", made, made.held)):
        yield _gauge(f"{what}_bytes_buffered", "bytes held in memory", held)
        yield _gauge(
            f"{what}_bytes_buffered_max", "bytes above which nothing is begun", memory.bytes_max
        )


def _connections(worker: Worker) -> Iterator[Metric]:
    counters = worker.counters
    ended = dict.fromkeys([(outcome,) for outcome in _ENDED.values()], 0.0)
    for event, count in list(counters.connections_ended.items()):
        ended[_ENDED.get(event, "failed"),] += count
    yield CounterMetricFamily(
        "kproxy_connections_accepted", "connections accepted", counters.connections
    )
    yield _labelled(
        CounterMetricFamily, "throttled", "times that a client was to wait", ("quota",),
        {(quota,): count for quota, count in list(counters.throttled.items())},
    )  # fmt: skip
    yield _labelled(
        CounterMetricFamily, "share_archived", "records that nobody is given any more", ("cause",),
        {(cause,): count for cause, count in list(counters.share_archived.items())},
    )  # fmt: skip
    yield _labelled(
        CounterMetricFamily,
        "connections_ended",
        "connections that kproxy ended, by outcome",
        ("outcome",),
        ended,
    )
    yield _gauge("connections", "connections open now", counters.connections_open)
    yield _labelled(
        CounterMetricFamily, "logins", "logins of clients", ("mechanism", "outcome"),
        {(_of(_MECHANISMS, name), outcome): count
         for (name, outcome), count in list(counters.logins.items())},
    )  # fmt: skip
    yield _labelled(
        CounterMetricFamily, "tls_handshakes", "handshakes of clients", ("protocol",),
        {(protocol,): count for protocol, count in list(counters.handshakes.items())},
    )  # fmt: skip
    yield _labelled(
        GaugeMetricFamily, "certificate_expires_seconds",
        "end of the certificate, in seconds since 1970", ("listener",),
        {(name,): at for name, at in counters.certificates.items()},
    )  # fmt: skip


def _shards(worker: Worker) -> Iterator[Metric]:
    standing = worker.standing
    if standing is None:
        return
    shards = standing.shards()
    phases: dict[tuple[str], float] = {(phase,): 0 for phase in PHASES}
    for one in shards:
        phases[one.phase,] += 1
    yield _labelled(
        GaugeMetricFamily, "shards", "shards of this worker, by state", ("state",), phases
    )
    yield _gauge("shards_configured", "shards of all workers together", worker.routes.shards)
    yield _histogram(
        "takeover_seconds", "seconds from a shard's assignment until it is served",
        {(): worker.counters.takeover_seconds},
    )  # fmt: skip
    yield _histogram(
        "append_seconds", "seconds until a commit is on disk, or the cluster has a record",
        {(): standing.append_seconds},
    )  # fmt: skip
    if standing.upstream_up is not None:
        yield from _upstream(worker, shards)
    yield from _counted([one for one in shards if one.shard is not None])
    late_s = worker.delays.late_ms / 1000
    yield _gauge(
        "delayed_late_seconds", "seconds that the oldest due record has waited for delivery", late_s
    )
    yield from _disk(worker, [one for one in shards if one.shard is not None])


def _upstream(worker: Worker, shards: list[ShardStanding]) -> Iterator[Metric]:
    standing = worker.standing
    assert standing is not None
    yield _gauge("upstream_up", "1 where the cluster answers", bool(standing.upstream_up))
    errors = {(name,): float(count) for name, count in standing.upstream_errors().items()}
    yield _labelled(
        CounterMetricFamily,
        "upstream_errors",
        "errors that clients of the cluster reported",
        ("code",),
        errors,
    )
    by_shard = {(str(one.number),): one for one in shards}
    lag = {key: float(one.lag) for key, one in by_shard.items()}
    yield _labelled(
        GaugeMetricFamily,
        "shard_lag_records",
        "records of the log that are not applied",
        ("shard",),
        lag,
    )
    rebuilt = {key: one.rebuilt for key, one in by_shard.items() if one.phase == "rebuilding"}
    yield _labelled(
        GaugeMetricFamily,
        "rebuild_ratio",
        "part of a rebuild that is done, 0 to 1",
        ("shard",),
        rebuilt,
    )
    publishing = [(key, one.published_s_ago) for key, one in by_shard.items()]
    ages = {key: age for key, age in publishing if age is not None}
    yield _labelled(
        GaugeMetricFamily, "publication_age_seconds", "seconds since all rows were published",
        ("shard",), ages,
    )  # fmt: skip


def _counted(shards: list[ShardStanding]) -> Iterator[Metric]:
    """Yield the counts of the fold, of the shards that are served here: workers sum up to all."""
    queues = partitions = live = waiting = delayed = overdue_ms = 0
    groups: dict[tuple[str], float] = {}
    for one in shards:
        assert one.shard is not None
        counts = one.shard.state.counts
        queues, partitions, live = (
            queues + counts.queues, partitions + counts.partitions, live + counts.bytes
        )  # fmt: skip
        waiting += one.shard.log.waiting
        delayed += counts.waiting
        overdue_ms = max(overdue_ms, one.shard.retention_overdue_ms)
        for kind, count in counts.groups.items():
            groups[kind,] = groups.get((kind,), 0) + count
    yield _gauge("queues", "queues in shards served here", queues)
    yield _gauge("partitions", "partitions in shards served here", partitions)
    yield _labelled(GaugeMetricFamily, "groups", "groups in shards served here", ("type",), groups)
    yield _gauge("live_bytes", "bytes of batches that can be read, in shards served here", live)
    yield _gauge("appends_waiting", "appends that are not settled", waiting)
    yield _gauge("delayed_records", "records that are not due yet, in shards served here", delayed)
    yield _gauge(
        "retention_overdue_seconds",
        "seconds that the partition due for longest has been due",
        overdue_ms / 1000,
    )


def _disk(worker: Worker, shards: list[ShardStanding]) -> Iterator[Metric]:
    assert worker.standing is not None
    disk, log, rows = worker.standing.disk_space, 0, 0
    for one in shards:
        assert one.shard is not None
        with suppress(Exception):  # it is being given up, or a file was just deleted
            log += one.shard.segments.total_bytes()
            rows += one.shard.kv.disk_bytes()
    free = 0
    with suppress(OSError):
        free = disk.free_bytes()
    yield _gauge("disk_free_bytes", "free bytes on the data directory's disk", free)
    yield _gauge(
        "disk_free_bytes_min", "free bytes below which produces are refused", disk.free_bytes_min
    )
    used: dict[tuple[str], float] = {("log",): log, ("rows",): rows}
    yield _labelled(
        GaugeMetricFamily, "disk_used_bytes", "bytes on disk of served shards", ("of",), used
    )
