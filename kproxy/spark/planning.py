"""The plan of a read: which queues, from where to where, in as few tasks as asked.

Queues are listed in pages, and what is kept of each is its name and three numbers, so that a driver
holds some 100 bytes a queue. A long queue is cut, short ones are gathered.
"""

import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from kproxy.protocol.name_search import NameSearch
from kproxy.spark.options import EARLIEST, LATEST, Bound, Options, SourceError
from kproxy.tools.client import Client, chunks

_QUEUE_COSTS = 20
"""The records that take as long as it takes to ask for one more queue."""
_NAMES_AT_ONCE = 1000
_TRIES = 20
Part = tuple[str, int]


class Span(NamedTuple):
    """Some records of a partition: from `start` on, before `end`."""

    queue: str
    partition: int
    start: int
    end: int


class Spans:
    """Spans, packed: names in one text, numbers in arrays."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._partitions = array("i")
        self._bounds = array("q")

    def add(self, span: Span) -> None:
        if self._partitions:
            self._names += b"\n"
        self._names += span.queue.encode()
        self._partitions.append(span.partition)
        self._bounds.extend((span.start, span.end))

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Span]:
        at = 0
        for number, partition in enumerate(self._partitions):
            end = self._names.find(b"\n", at)
            name = self._names[at : end if end >= 0 else len(self._names)].decode()
            at = end + 1
            yield Span(name, partition, self._bounds[2 * number], self._bounds[2 * number + 1])

    @property
    def cost(self) -> int:
        """The work, in records."""
        records = sum(self._bounds[1::2]) - sum(self._bounds[::2])
        return records + _QUEUE_COSTS * len(self)

    def packed(self) -> bytes:
        return zlib.compress(
            b"".join(
                (len(self).to_bytes(4, "big"), self._partitions.tobytes(), self._bounds.tobytes(),
                 self._names)
            ), 1,
        )  # fmt: skip

    @classmethod
    def unpacked(cls, data: bytes) -> "Spans":
        data, spans = zlib.decompress(data), cls()
        count = int.from_bytes(data[:4], "big")
        spans._partitions.frombytes(data[4 : 4 + 4 * count])
        spans._bounds.frombytes(data[4 + 4 * count : 4 + 20 * count])
        spans._names += data[4 + 20 * count :]
        return spans


class Task(InputPartition):
    """The spans that one task of Spark reads."""

    def __init__(self, spans: Spans) -> None:
        super().__init__(spans.packed())

    def spans(self) -> Spans:
        return Spans.unpacked(self.value)


def tasks(spans: Spans, most: int) -> Sequence[Task]:
    """Share spans out to so many tasks at most, each with about as much to do; in their order."""
    share = max(1, -(-spans.cost // most))
    found: list[Task] = []
    now, left = Spans(), share
    for queue, partition, start, end in spans:
        while start < end:
            cut = end if len(found) == most - 1 else min(end, start + max(1, left - _QUEUE_COSTS))
            now.add(Span(queue, partition, start, cut))
            left -= cut - start + _QUEUE_COSTS
            start = cut
            if left <= 0 and len(found) < most - 1:
                found.append(Task(now))
                now, left = Spans(), share
    return [*found, Task(now)] if len(now) else found


def batch(client: Client, options: Options) -> Sequence[Task]:
    """Return the tasks of a batch query. Raises SourceError."""
    spans = Spans()
    there = False
    for leaders in _queues(client, options):
        there = there or bool(leaders)
        for span in bounded(client, options, leaders):
            spans.add(span)
    if not there and options.prefix is None and options.pattern is None:
        raise SourceError(f"there is no queue {', '.join(options.names)}")
    return tasks(spans, options.partitions)


def _queues(client: Client, options: Options) -> Iterator[dict[Part, int]]:
    """Yield some partitions at a time, each with its leader."""
    if options.names:
        for some in chunks(options.names, _NAMES_AT_ONCE):
            yield named(client, some)
        return
    pattern = re.compile(options.pattern or ".*", re.S)
    for page in client.pages(NameSearch(options.prefix or "")):
        yield _leaders(
            topic for topic in page
            if pattern.fullmatch(topic.name) and not topic.is_internal
        )  # fmt: skip


def named(client: Client, names: Sequence[str]) -> dict[Part, int]:
    """Return the partitions of queues with these names. Raises SourceError."""
    topics = list(client.metadata(names))
    for topic in topics:
        if topic.error_code:
            raise SourceError(f"queue {topic.name} cannot be read: {topic.error_code.name.upper()}")
    return _leaders(topics)


def _leaders(topics: Iterable[Any]) -> dict[Part, int]:
    return {(t.name, p.partition_index): p.leader_id for t in topics for p in t.partitions}


def bounded(client: Client, options: Options, leaders: dict[Part, int]) -> Iterator[Span]:
    """Yield what to read of partitions, without those that have nothing."""
    starts = offsets(client, leaders, EARLIEST, options)
    ends = offsets(client, leaders, LATEST, options)
    first = _resolved(client, leaders, options, options.start, starts, ends)
    last = _resolved(client, leaders, options, options.end, starts, ends)
    for part, low in starts.items():
        start, end = max(low, first[part]), min(ends[part], last[part])
        if start < end:
            yield Span(*part, start, end)


def at(
    client: Client, leaders: dict[Part, int], options: Options, bound: Bound
) -> Mapping[Part, int]:
    """Return the place in each partition that a bound means."""
    starts = offsets(client, leaders, EARLIEST, options)
    ends = offsets(client, leaders, LATEST, options)
    return _resolved(client, leaders, options, bound, starts, ends)


def _resolved(
    client: Client, leaders: dict[Part, int], options: Options, bound: Bound,
    starts: Mapping[Part, int], ends: Mapping[Part, int],
) -> Mapping[Part, int]:  # fmt: skip
    if bound.time_ms is not None:
        at = offsets(client, leaders, bound.time_ms, options)
        return {part: at[part] if at[part] >= 0 else end for part, end in ends.items()}
    found = {}
    for part in leaders:
        said = bound.by_queue.get(part[0], {}).get(str(part[1]), bound.offset)
        found[part] = {EARLIEST: starts[part], LATEST: ends[part]}.get(said or 0, said or 0)
    return found


def offsets(
    client: Client, leaders: dict[Part, int], timestamp: int, options: Options
) -> dict[Part, int]:
    """Return an offset of each partition. Raises SourceError where a leader cannot be found."""
    found: dict[Part, int] = {}
    left = leaders
    for _ in range(_TRIES):
        found |= client.offsets(left, timestamp, committed=options.committed)
        left = {part: node for part, node in leaders.items() if part not in found}
        if not left:
            return found
        left = named(client, sorted({name for name, _ in left}))
        left = {part: node for part, node in left.items() if part in leaders and part not in found}
    raise SourceError(f"{next(iter(left))[0]} has no leader that tells its offsets")
