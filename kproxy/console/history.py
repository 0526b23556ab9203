"""The last hour of the workers, in rings in the console's memory: no database, no Prometheus.

Each worker's `/top` is asked every five seconds, whoever looks. Rings hold numbers alone, for the
whole and for the groups that workers call their busiest.
"""

import math
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from kproxy.tools.client import Address
from kproxy.tools.top import Page, Source, quantile, rate, url_of

EVERY_S = 5.0
_POINTS = 720
_GROUPS_MAX, _WORKERS_MAX, _AT_ONCE = 200, 64, 8
_PORT = 9644
_KEPT = ("at", "counters", "loop_lag", "produce_seconds")
TOTALS = {
    "records_in": "produced_records", "records_out": "fetched_records",
    "bytes_in": "produced_bytes", "bytes_out": "fetched_bytes",
}  # fmt: skip
_NAMES = (*TOTALS, "loop", "lag", "behind")


class Ring:
    """A number for each look of the last hour; NaN: nobody said."""

    def __init__(self) -> None:
        self._values = array("f", [math.nan]) * _POINTS
        self._last = -1

    def put(self, look: int, value: float) -> None:
        for missed in range(max(self._last + 1, look - _POINTS + 1), look):
            self._values[missed % _POINTS] = math.nan
        self._values[look % _POINTS] = value
        self._last = look

    def until(self, look: int) -> list[float]:
        """Return the values of the hour before a look, the oldest first."""
        oldest = look - _POINTS + 1
        gone = max(0, look - self._last)
        values = [self._values[one % _POINTS] for one in range(oldest, look + 1 - gone)]
        return values + [math.nan] * (_POINTS - len(values))


class Now(NamedTuple):
    """A worker as it was at the last look. None: it takes two looks to know."""

    state: str
    shards: Counter[str]
    """Its shards by phase."""
    behind: int
    clients: int
    records_in: float | None = None
    records_out: float | None = None
    requests: float | None = None
    loop: float | None = None
    produce: float | None = None


class History:
    """The rings, and each worker at the last look. `look` is called on a thread of its own."""

    def __init__(self, source: Source, addresses: Sequence[str] = ()) -> None:
        """Take the addresses of workers' `/top`; without any, they are where workers say that they
        serve, at the default port and those that follow.
        """
        self._source, self._given = source, [*map(url_of, addresses)][:_WORKERS_MAX]
        self._urls = self._given
        self._before: dict[str, Page] = {}
        self._looks = -1
        self._lock = Lock()
        self._workers: dict[str, Now] = {}
        self._rings = {name: Ring() for name in _NAMES}
        self._groups: OrderedDict[str, Ring] = OrderedDict()

    def know(self, nodes: Iterable[Address]) -> None:
        """Note where workers serve."""
        if not self._given:
            found: list[str] = []
            for host, count in Counter(host for host, _ in nodes).items():
                name = f"[{host}]" if ":" in host else host
                found += (url_of(f"{name}:{_PORT + n}") for n in range(count))
            self._urls = found[:_WORKERS_MAX]

    def look(self) -> None:
        """Ask every worker, and note what it says."""
        urls = self._urls
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            pages = dict(zip(urls, threads.map(self._source.page, urls), strict=True))
        workers: dict[str, Now] = {}
        groups: dict[str, float] = {}
        kept: dict[str, Page] = {}
        totals: dict[str, list[float]] = {name: [] for name in _NAMES}
        for url, page in pages.items():
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # it is another release
                if page is not None and "at" in page:
                    before = self._before.get(url)
                    now, figures, lags = _now(before, page), _figures(before, page), _lags(page)
                    kept[url] = {name: page[name] for name in _KEPT}
                    workers[str(page["address"])] = now
                    groups |= lags
                    for name, value in figures.items():
                        totals[name].append(value)
        with self._lock:
            self._before, self._workers = kept, workers
            self._looks += 1
            for name, ring in self._rings.items():
                told = totals[name]
                whole = max(told) if name == "loop" and told else sum(told)
                ring.put(self._looks, whole if told else math.nan)
            for group, lag in groups.items():
                self._groups.setdefault(group, Ring()).put(self._looks, lag)
                self._groups.move_to_end(group)
            while len(self._groups) > _GROUPS_MAX:
                self._groups.popitem(last=False)

    def workers(self) -> dict[str, Now]:
        """Return the workers that answered the last look, by the address they serve at."""
        return self._workers

    def total(self, name: str) -> list[float]:
        with self._lock:
            return self._rings[name].until(self._looks)

    def lag(self, group: str) -> list[float]:
        """Return a group's lag; nothing where no worker called it busy."""
        with self._lock:
            ring = self._groups.get(group)
            return ring.until(self._looks) if ring is not None else []


def _now(before: Page | None, page: Page) -> Now:
    health, shards = page["health"], page["shards"]
    now = Now(
        "ready" if health["ready"] else "; ".join(map(str, health["reasons"]))[:200],
        Counter(str(phase) for _, phase, _ in shards), sum(int(lag) for _, _, lag in shards),
        int(page["counters"]["connections_open"]),
    )  # fmt: skip
    if before is None:
        return now
    return now._replace(
        records_in=rate(before, page, "produced_records"),
        records_out=rate(before, page, "fetched_records"),
        requests=rate(before, page, "answered") + rate(before, page, "failed"),
        loop=quantile(before, page, "loop_lag", 0.99),
        produce=quantile(before, page, "produce_seconds", 0.99),
    )


def _lags(page: Page) -> dict[str, float]:
    return {str(one["group"]): float(one["lag"]) for one in page["groups"]
            if one["lag"] is not None}  # fmt: skip


def _figures(before: Page | None, page: Page) -> dict[str, float]:
    """Return what a worker adds to the whole."""
    behind = sum(int(lag) for _, _, lag in page["shards"])
    found: dict[str, float] = {"lag": sum(_lags(page).values()), "behind": behind}
    if before is not None:
        found |= {name: rate(before, page, counter) for name, counter in TOTALS.items()}
        lag = quantile(before, page, "loop_lag", 0.99)
        if lag is not None and math.isfinite(lag):
            found["loop"] = lag
    return found
