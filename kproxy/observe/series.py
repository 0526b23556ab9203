"""A worker's series for Prometheus, made of plain numbers when they are asked for.

A series is declared once, with how it is read: a counter in `common.counters`, a gauge here, one of
single queues and groups in `observe.selected`. docs/metrics.md follows. Every label has few values,
by code and not by data, but for queues and groups that were asked for by name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
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
from kproxy.common.counters import TIMED, Counters, Histogram, Series, counted
from kproxy.common.errors import Code
from kproxy.observe.health import Health
from kproxy.observe.selected import Selected
from kproxy.protocol.api_keys import ApiKey
from kproxy.shard.shard import Shard
from kproxy.worker.standing import PHASES, Standing
from kproxy.worker.worker import Worker

_APIS = {int(key): "".join(part.title() for part in key.name.split("_")) for key in ApiKey}
_CODES = {int(code): code.name for code in Code}
_ENDED = {
    "connection_refused": "limit", "connection_idle": "idle", "client_does_not_read": "stalled",
    "client_stopped_inside_a_request": "stalled", "request_refused": "malformed",
    "request_failed": "failed", "certificate_refused": "login", "login_timed_out": "login",
    "login_pushed_out": "login", "connection_pushed_out": "limit",
    "client_left": "stalled", "request_superseded": "superseded",
    "batch_damaged": "failed",
}  # fmt: skip
"""Outcomes of connections by the event that is logged."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_FAMILIES = {
    "counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily
}  # fmt: skip


class _Look:
    """A worker at the moment of a scrape. Sums are of the shards that it serves."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.assigned = [] if worker.standing is None else worker.standing.shards()
        self.served: list[Shard] = [one.shard for one in self.assigned if one.shard is not None]

    @property
    def standing(self) -> Standing:
        assert self.worker.standing is not None
        return self.worker.standing

    def total(self, name: str) -> int:
        """Return the sum of one of the fold's counts: workers sum up to all."""
        return sum(getattr(shard.state.counts, name) for shard in self.served)

    def phases(self) -> dict[str, int]:
        found = dict.fromkeys(PHASES, 0)
        for one in self.assigned:
            found[one.phase] += 1
        return found

    def groups(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for shard in self.served:
            for kind, count in shard.state.counts.groups.items():
                found[kind] = found.get(kind, 0) + count
        return found

    @cached_property
    def disk(self) -> dict[str, int]:
        log = rows = 0
        for shard in self.served:
            with suppress(Exception):  # it is being given up, or a file was just deleted
                log += shard.segments.total_bytes()
                rows += shard.kv.disk_bytes()
        return {"log": log, "rows": rows}

    def free_bytes(self) -> int:
        return self.standing.disk_space.free_bytes_seen

    def by_shard(self, name: str, phase: str = "") -> dict[str, float]:
        """Return a number of each shard that has it, and is in a phase."""
        told = {one.number: getattr(one, name) for one in self.assigned if phase in ("", one.phase)}
        return {str(number): value for number, value in told.items() if value is not None}


Value = float | Histogram | Mapping[Any, Any]
Read = Callable[[_Look], Value]
_Declared = tuple[tuple[Series, Read], ...]


def _gauge(name: str, meaning: str, read: Read, *labels: str) -> tuple[Series, Read]:
    return Series(name, "gauge", meaning, labels), read


_READY = Series("ready", "gauge", "1 where /readyz says yes")
_BUILD = Series("build_info", "gauge", "1", ("version", "python"))
_OF_WORKER: _Declared = (
    _gauge("native_lane", "1 where kernels in Rust are asked first (--native), 0: Python alone",
           lambda look: look.worker.lane.core is not None),
    _gauge("fetch_sessions", "sessions of Fetch", lambda look: look.worker.sessions.count),
    _gauge("share_sessions", "sessions of ShareFetch",
           lambda look: len(look.worker.share_sessions)),
    _gauge("long_polls", "requests that wait for records", lambda look: look.worker.long_polls),
    _gauge("request_bytes_buffered", "bytes of requests in memory",
           lambda look: look.worker.request_memory.used),
    _gauge("request_bytes_buffered_max", "their limit",
           lambda look: look.worker.request_memory.bytes_max),
    _gauge("answer_bytes_buffered", "bytes of answers in memory",
           lambda look: look.worker.answer_memory.held),
    _gauge("answer_bytes_buffered_max", "their limit",
           lambda look: look.worker.answer_memory.bytes_max),
)  # fmt: skip
_OF_SHARDS: _Declared = (
    _gauge("shards", f"shards of this worker: {', '.join(PHASES)}", _Look.phases, "state"),
    _gauge("shards_configured", "shards of all workers together",
           lambda look: look.worker.routes.shards),
    (Series("append_seconds", "histogram",
            "time until a commit is on disk, or the cluster has a record (every 17th)"),
     lambda look: look.standing.append_seconds),
    _gauge("appends_waiting",
           "appends that are not settled: requests embedded, envelopes on Kafka",
           lambda look: sum(shard.log.waiting for shard in look.served)),
    _gauge("queues", "queues, in shards served here: the sum over workers is all",
           lambda look: look.total("queues")),
    _gauge("partitions", "partitions, the same", lambda look: look.total("partitions")),
    _gauge("groups",
           "groups, the same: classic, consumer, share, and offsets for those that never had"
           " members", _Look.groups, "type"),
    _gauge("live_bytes", "bytes of batches that can be read, with what frames them",
           lambda look: look.total("bytes")),
    _gauge("delayed_records", "records that wait until they are due, in shards served here",
           lambda look: look.total("waiting")),
    _gauge("delayed_late_seconds",
           "seconds that the oldest due record has waited for delivery: 0 where nothing is late",
           lambda look: look.worker.delays.late_ms / 1000),
    _gauge("retention_overdue_seconds",
           "seconds that the partition due for longest has waited for retention",
           lambda look: max((one.retention_overdue_ms for one in look.served), default=0) / 1000),
    _gauge("disk_free_bytes", "free bytes on the data directory's disk", _Look.free_bytes),
    _gauge("disk_free_bytes_min", "free bytes below which produces are refused",
           lambda look: look.standing.disk_space.free_bytes_min),
    _gauge("disk_used_bytes", "bytes of served shards: log, rows", lambda look: look.disk, "of"),
)  # fmt: skip
_ON_KAFKA: _Declared = (
    _gauge("upstream_up", "1 where the cluster answers (on Kafka)",
           lambda look: bool(look.standing.upstream_up)),
    (Series("upstream_errors", "counter", "errors of librdkafka's clients, by name (on Kafka)",
            ("code",)),
     lambda look: look.standing.upstream_errors()),
    _gauge("shard_lag_records", "records of a shard's log that are not applied (on Kafka)",
           lambda look: look.by_shard("lag"), "shard"),
    _gauge("rebuild_ratio", "part of a rebuild that is done, 0 to 1 (on Kafka)",
           lambda look: look.by_shard("rebuilt", "rebuilding"), "shard"),
    _gauge("publication_age_seconds",
           "seconds since all rows of a shard were published, or none waited (on Kafka)",
           lambda look: look.by_shard("published_s_ago"), "shard"),
)  # fmt: skip
COUNTED = tuple(counted())
DECLARED = (
    _BUILD, _READY, *(series for _, series in COUNTED),
    *(series for series, _ in (*_OF_WORKER, *_OF_SHARDS, *_ON_KAFKA)),
)  # fmt: skip
"""Every series of a worker."""


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
        yield _family(_BUILD, {(__version__, python_version()): 1})
        yield _family(_READY, not self._health.unready())
        worker = self._health.worker
        if worker is None:
            return
        for name, series in COUNTED:
            yield _family(series, _value(worker.counters, name))
        look = _Look(worker)
        declared = _OF_WORKER
        if worker.standing is not None:
            declared += _OF_SHARDS
            if worker.standing.upstream_up is not None:
                declared += _ON_KAFKA
        for series, read in declared:
            yield _family(series, read(look))
        if self._selected is not None:
            yield from self._selected.collect(worker)


def _value(counters: Counters, name: str) -> Value:
    """Return a counter as it is told: labels have few values, whatever clients send."""
    value: Value = getattr(counters, name)
    if not isinstance(value, Mapping):
        return value
    items = list(value.items())
    match name:
        case "failed":
            told = {(_APIS[key], "NONE"): count for key, count in enumerate(counters.answered)
                    if count and key in _APIS}  # fmt: skip
            return told | {(_APIS.get(key, str(key)), _CODES.get(code, "OTHER")): count
                           for (key, code), count in items}  # fmt: skip
        case "request_seconds":
            return {TIMED[key]: histogram for key, histogram in items}
        case "connections_ended":
            ended = dict.fromkeys(_ENDED.values(), 0)
            for event, count in items:
                ended[_ENDED.get(event, "failed")] += count
            return ended
        case "logins":
            return {(mechanism if mechanism in _MECHANISMS else "none", outcome): count
                    for (mechanism, outcome), count in items}  # fmt: skip
    return dict(items)


def _family(series: Series, value: Value) -> Any:
    family: Any = _FAMILIES[series.kind](
        f"kproxy_{series.name}", series.meaning, labels=series.labels
    )
    for of, one in value.items() if isinstance(value, Mapping) else [((), value)]:
        labels = (of,) if isinstance(of, str) else of
        if isinstance(one, Histogram):
            bounds = [*map(str, map(float, one.bounds)), "+Inf"]
            told = list(zip(bounds, map(float, accumulate(one.counts)), strict=True))
            family.add_metric(labels, told, one.total)
        else:
            family.add_metric(labels, one)
    return family
