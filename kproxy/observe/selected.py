"""Series of single queues and groups, where `--metrics-queues` or `--metrics-groups` names them.

The event loop gathers them in slices, when a scrape asks; the scraping thread waits for that, for a
while. A loop that is stuck leaves them out. Names that the expressions (RE2) match are looked for
every 30 s, among names that begin as the expression does: `orders-.*` costs a million other queues
nothing. At most `series_max` series are given; the number left out is counted.

Each worker tells its own part: it has the ends of partitions that it serves, and the commits of
groups that it coordinates. Lag is given where it has both; the dashboard joins what several workers
tell.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from kproxy.common.counters import Series
from kproxy.groups.assigning.regex import compiled
from kproxy.loop.pace import Pace, lots
from kproxy.observe.on_loop import OnLoop
from kproxy.shard.shard import Shard
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.groups import decode_group
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Queue
from kproxy.worker.worker import Worker

NAMES_S = 30.0
_WAIT_S = 8.0
_LOT = 100
_OF_QUEUE = ("queue", "partition")
_LINES = (
    Series("queue_start_offset", "gauge", "first offset", _OF_QUEUE),
    Series("queue_end_offset", "gauge", "next offset", _OF_QUEUE),
    Series("queue_bytes", "gauge",
           "bytes of its batches, about: what compaction took counts as there", _OF_QUEUE),
    Series("group_committed_offset", "gauge", "committed offset", ("group", *_OF_QUEUE)),
    Series("group_lag", "gauge", "records behind, where this worker serves both",
           ("group", *_OF_QUEUE)),
    Series("group_lag_sum", "gauge",
           "the sum of those, where this worker serves all that it has committed on", ("group",)),
    Series("group_lag_max", "gauge", "the largest of those, where it does", ("group",)),
    Series("group_members", "gauge", "members", ("group",)),
)  # fmt: skip
_COMPLETE = Series("selected_complete", "gauge", "1 where no series is left out")
_DROPPED = Series("selected_series_dropped", "gauge",
                  "series left out, as there are more than --metrics-series-max")  # fmt: skip
SELECTED = (*_LINES, _COMPLETE, _DROPPED)
_PREFIX_MAX = 64


class Line(NamedTuple):
    """One series: its name, its labels' values, its value."""

    name: str
    labels: tuple[str, ...]
    value: float


class Selected(OnLoop):
    """The selected series of one worker. `collect` is called on the scraping thread."""

    def __init__(self, queues: str | None, groups: str | None, series_max: int) -> None:
        """Compile the expressions. Raises KafkaError: an expression is not one."""
        super().__init__()
        self._queues: Any = None if queues is None else compiled(queues)
        self._groups: Any = None if groups is None else compiled(groups)
        self._series_max = series_max
        self._names: tuple[float, list[str]] = (-NAMES_S, [])
        self._of_groups: tuple[float, list[str]] = (-NAMES_S, [])
        self._left = 0

    def collect(self, worker: Worker) -> Iterator[Metric]:
        lines = self.gathered(lambda: self.gather(worker), _WAIT_S)
        yield from _families(lines or [])
        dropped = max(0, self._left)
        yield _gauge(_COMPLETE, [((), float(lines is not None and not dropped))])
        yield _gauge(_DROPPED, [((), dropped)])

    # -- on the worker's loop

    async def gather(self, worker: Worker) -> list[Line]:
        """Return all series, at most so many. `_left`: how many more there are."""
        lines: list[Line] = []
        pace = Pace()
        self._left = 0
        if self._queues is not None:
            for name in await self._queue_names(worker, pace):
                await self._add_queue(worker, name, lines, pace)
        if self._groups is not None:
            for group in await self._group_names(worker, pace):
                for line in await group_lines(worker, group, pace, self._series_max):
                    self._add(lines, line)
                await pace.step()
        return lines

    async def _add_queue(self, worker: Worker, name: str, lines: list[Line], pace: Pace) -> None:
        """Add this worker's partitions of a queue, of which there may be very many."""
        await pace.step()
        queue = worker.catalogue.find(name)
        if queue is None:
            return
        for index in range(queue.partitions):
            for line in _partition_lines(worker, queue, index):
                self._add(lines, line)
            await pace.step()

    def _add(self, lines: list[Line], line: Line) -> None:
        if len(lines) < self._series_max:
            lines.append(line)
        else:
            self._left += 1

    async def _queue_names(self, worker: Worker, pace: Pace) -> list[str]:
        if monotonic() - self._names[0] >= NAMES_S:
            low, high = bounds(self._queues)
            found: list[str] = []
            for number, queue in enumerate(worker.catalogue.all(low)):
                if high is not None and queue.name.encode() > high:
                    break
                if self._queues.fullmatch(queue.name) and len(found) < self._series_max:
                    found.append(queue.name)
                if number % 64 == 0 and pace.due:
                    await pace.rest()
            self._names = monotonic(), found
        return self._names[1]

    async def _group_names(self, worker: Worker, pace: Pace) -> list[str]:
        if monotonic() - self._of_groups[0] >= NAMES_S:
            low, high = bounds(self._groups)
            found: list[str] = []
            for shard in worker.routes.all():
                end = RowKind.GROUP.range()[1] if high is None else RowKind.GROUP + high
                start = RowKind.GROUP + low.encode()
                for some in lots(shard.kv.scan, start, end + b"\0", _LOT):
                    names = [
                        name for key, _ in some if self._groups.fullmatch(name := rows.name_of(key))
                    ]
                    found += names[: self._series_max - len(found)]
                    await pace.step()
            self._of_groups = monotonic(), found
        return self._of_groups[1]


def bounds(pattern: Any) -> tuple[str, bytes | None]:
    """Return the first name that may match, and the one that none lies behind, if there is such."""
    with suppress(Exception):  # re2 says so where an expression begins with anything
        low, high = pattern.possiblematchrange(_PREFIX_MAX)
        return low.decode(errors="ignore"), high or None
    return "", None


def _partition_lines(worker: Worker, queue: Queue, index: int) -> tuple[Line, ...]:
    shard = _served(worker, queue, index)
    key, labels = (queue.queue_id, index), (queue.name, str(index))
    row = None if shard is None else shard.state.partition(key)
    if shard is None or row is None:
        return ()
    return (
        Line("queue_start_offset", labels, row.log_start),
        Line("queue_end_offset", labels, row.next_offset),
        Line("queue_bytes", labels, shard.state.live_size_about(key)),
    )


def _served(worker: Worker, queue: Queue, index: int) -> Shard | None:
    return worker.routes.serving(shard_of(queue.name, worker.routes.shards, index))


async def group_lines(worker: Worker, group: str, pace: Pace, partitions_max: int) -> list[Line]:
    """Return this worker's lines on a group that it coordinates; on its loop.

    A group that has committed on more than `partitions_max` has no sum and no maximum.
    """
    shard = worker.routes.serving(shard_of(group, worker.routes.shards))
    head = None if shard is None else shard.state.get(RowKind.GROUP + group.encode())
    if shard is None or head is None:
        return []
    lines = [Line("group_members", (group,), decode_group(head).members)]
    lags: list[int | None] = []
    seen = 0
    for some in lots(shard.kv.scan, *offset_rows.offset_range(group), _LOT):
        for key, data in some:
            lags.append(_offset_lines(worker, group, key, data, lines))
        seen += len(some)
        await pace.step()
        if seen >= partitions_max:
            return lines
    known = [lag for lag in lags if lag is not None]
    if known and len(known) == len(lags):
        lines.append(Line("group_lag_sum", (group,), sum(known)))
        lines.append(Line("group_lag_max", (group,), max(known)))
    return lines


def _offset_lines(
    worker: Worker, group: str, key: bytes, data: bytes, lines: list[Line]
) -> int | None:
    """Add what a committed offset says; its lag, where its partition is served here."""
    queue_id, index = offset_rows.partition_of_offset(key)
    queue = worker.catalogue.find_id(queue_id)
    if queue is None:  # deleted
        return 0
    committed, labels = offset_rows.decode_committed(data).offset, (group, queue.name, str(index))
    lines.append(Line("group_committed_offset", labels, committed))
    owner = _served(worker, queue, index)
    row = None if owner is None else owner.state.partition((queue_id, index))
    if row is None:
        return None
    lag = max(0, row.next_offset - max(committed, row.log_start))
    lines.append(Line("group_lag", labels, lag))
    return lag


def _families(lines: list[Line]) -> Iterator[Metric]:
    told: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for line in lines:
        told.setdefault(line.name, []).append((line.labels, line.value))
    yield from (_gauge(series, told[series.name]) for series in _LINES if series.name in told)


def _gauge(series: Series, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(f"kproxy_{series.name}", series.meaning, labels=series.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
