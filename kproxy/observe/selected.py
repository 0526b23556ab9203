"""Series of single queues and groups, where `--metrics-queues` or `--metrics-groups` names them.

The event loop gathers them in slices, when a scrape asks; the scraping thread waits for that, for a
while. A loop that is stuck leaves them out. Names that the expressions (RE2) match are looked for
every 30 s, among names that begin as the expression does: `orders-.*` costs a million other queues
nothing. At most `series_max` series are given; the number left out is counted.

Each worker tells its own part: it has the ends of partitions that it serves, and the commits of
groups that it coordinates. Lag is given where it has both; the dashboard joins what several workers
tell.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from kproxy.common.errors import KafkaError
from kproxy.groups.assigning.regex import compiled
from kproxy.loop.pace import Pace, lots
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
_QUEUE = (("queue_start_offset", "first offset"), ("queue_end_offset", "next offset"),
          ("queue_bytes", "of its batches, about"))  # fmt: skip
_GROUP = (("group_lag_sum", "records behind, where this worker serves all it has committed on"),
          ("group_lag_max", "of the partition that is furthest behind, where it does"),
          ("group_members", "members"))  # fmt: skip
_PREFIX_MAX = 64


class Line(NamedTuple):
    """One series: its name, its labels' values, its value."""

    name: str
    labels: tuple[str, ...]
    value: float


class Selected:
    """The selected series of one worker. `collect` is called on the scraping thread."""

    def __init__(self, queues: str | None, groups: str | None, series_max: int) -> None:
        """Compile the expressions. Raises KafkaError: an expression is not one."""
        self._queues: Any = None if queues is None else compiled(queues)
        self._groups: Any = None if groups is None else compiled(groups)
        self._series_max = series_max
        self._loop: asyncio.AbstractEventLoop | None = None
        self._names: tuple[float, list[str]] = (-NAMES_S, [])
        self._of_groups: tuple[float, list[str]] = (-NAMES_S, [])
        self._left = 0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the worker's loop: the rows are read there."""
        self._loop = loop

    def collect(self, worker: Worker) -> Iterator[Metric]:
        assert self._loop is not None
        gathering = asyncio.run_coroutine_threadsafe(self.gather(worker), self._loop)
        lines: list[Line] = []
        whole = False
        try:
            lines = gathering.result(_WAIT_S)
            whole = True
        except TooLate:
            gathering.cancel()
        except (KafkaError, RuntimeError):
            pass  # a shard was given up meanwhile, or the loop has ended
        yield from _families(lines)
        dropped = max(0, self._left)
        yield GaugeMetricFamily("kproxy_selected_complete", "1 where none is left out",
                                float(whole and not dropped))  # fmt: skip
        yield GaugeMetricFamily("kproxy_selected_series_dropped", "as there are too many", dropped)

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


_LABELS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (text, ("queue", "partition")) for name, text in _QUEUE},
    **{name: (text, ("group",)) for name, text in _GROUP},
    "group_lag": ("records behind", ("group", "queue", "partition")),
    "group_committed_offset": ("committed offset", ("group", "queue", "partition")),
}


def _families(lines: list[Line]) -> Iterator[Metric]:
    families = {
        name: GaugeMetricFamily(f"kproxy_{name}", text, labels=labels)
        for name, (text, labels) in _LABELS.items()
    }
    for line in lines:
        families[line.name].add_metric(line.labels, line.value)
    yield from (family for family in families.values() if family.samples)
