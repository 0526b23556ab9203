"""The plan of a read: which queues, from where to where, in as few tasks as asked.

Queues are listed in pages, and what is kept of each is its name and three numbers, so that a driver
holds some 100 bytes a queue. A long queue is cut, short ones are gathered.
"""

import re
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from kproxy.common.errors import Code
from kproxy.protocol.name_search import NameSearch
from kproxy.spark.options import (
    EARLIEST,
    LATEST,
    PATIENCE_S,
    PAUSE_S,
    Bound,
    Options,
    SourceError,
)
from kproxy.tools.client import Client, chunks

_QUEUE_COSTS = 20
"""The records that take as long as it takes to ask for one more queue."""
_NAMES_AT_ONCE = 1000
Part = tuple[str, int]
Asked = Callable[[Client, dict[Part, int], Options], Mapping[Part, int]]
"""A place in each partition, given its leader."""


class Span(NamedTuple):
    """Some records of a partition: from `start` on, before `end`."""

    queue: str
    partition: int
    start: int
    end: int
    made: int = 0
    """The mark of the queue's id, which is another where it was made again; 0: not known."""


class Spans:
    """Spans, packed: names in one text, numbers in arrays."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._partitions = array("i")
        self._bounds = array("q")
        self._made = array("I")

    def add(self, span: Span) -> None:
        if self._partitions:
            self._names += b"\n"
        self._names += span.queue.encode()
        self._partitions.append(span.partition)
        self._bounds.extend((span.start, span.end))
        self._made.append(span.made)

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Span]:
        at = 0
        for number, partition in enumerate(self._partitions):
            end = self._names.find(b"\n", at)
            name = self._names[at : end if end >= 0 else len(self._names)].decode()
            at = end + 1
            start, end = self._bounds[2 * number : 2 * number + 2]
            yield Span(name, partition, start, end, self._made[number])

    @property
    def cost(self) -> int:
        """The work, in records."""
        records = sum(self._bounds[1::2]) - sum(self._bounds[::2])
        return records + _QUEUE_COSTS * len(self)

    def packed(self) -> bytes:
        return zlib.compress(
            b"".join(
                (len(self).to_bytes(4, "big"), self._partitions.tobytes(), self._made.tobytes(),
                 self._bounds.tobytes(), self._names)
            ), 1,
        )  # fmt: skip

    @classmethod
    def unpacked(cls, data: bytes) -> "Spans":
        data, spans = zlib.decompress(data), cls()
        count = int.from_bytes(data[:4], "big")
        spans._partitions.frombytes(data[4 : 4 + 4 * count])
        spans._made.frombytes(data[4 + 4 * count : 4 + 8 * count])
        spans._bounds.frombytes(data[4 + 8 * count : 4 + 24 * count])
        spans._names += data[4 + 24 * count :]
        return spans


class Task(InputPartition):
    """The spans that one task of Spark reads."""

    def __init__(self, spans: Spans) -> None:
        super().__init__(spans.packed())

    def spans(self) -> Spans:
        return Spans.unpacked(self.value)


def tasks(spans: Spans, most: int) -> Sequence[Task]:
    """Share spans out to so many tasks at most, each with about as much to do; in their order."""
    share = -(-spans.cost // most) + _QUEUE_COSTS  # a cut is one more to ask for
    found: list[Task] = []
    now, left = Spans(), share
    for queue, partition, start, end, made in spans:
        while start < end:
            cut = end if len(found) == most - 1 else min(end, start + max(1, left - _QUEUE_COSTS))
            now.add(Span(queue, partition, start, cut, made))
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
    for topics in _queues(client, options):
        there = there or bool(topics)
        made = marks(topics)
        for span in bounded(client, options, leaders_of(topics)):
            spans.add(span._replace(made=made[span.queue]))
    if not there and options.prefix is None and options.pattern is None:
        raise SourceError(f"there is no queue {', '.join(options.names)}")
    return tasks(spans, options.partitions)


def _queues(client: Client, options: Options) -> Iterator[list[Any]]:
    """Yield some queues at a time, and of one with very many partitions some of these."""
    if options.names:
        for some in chunks(options.names, _NAMES_AT_ONCE):
            yield named(client, some)
        return
    pattern = re.compile(options.pattern or ".*", re.S)
    for page in client.pages(NameSearch(options.prefix or "")):
        yield [one for one in page if pattern.fullmatch(one.name) and not one.is_internal]


def named(client: Client, names: Sequence[str], *, gone: bool = False) -> list[Any]:
    """Return the queues with these names. `gone`: they may be. Raises SourceError."""
    found = []
    for topic in client.metadata(names):
        if gone and topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        if topic.error_code not in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
            raise SourceError(f"queue {topic.name} cannot be read: {topic.error_code.name.upper()}")
        found.append(topic)
    return found


def mark(queue: UUID) -> int:
    """Return a short mark of a queue's id."""
    return zlib.crc32(queue.bytes) or 1


def marks(topics: Iterable[Any]) -> dict[str, int]:
    """Return the mark of each queue."""
    return {topic.name: mark(topic.topic_id) for topic in topics}


def leaders_of(topics: Iterable[Any]) -> dict[Part, int]:
    """Return the leader of each partition."""
    return {(t.name, p.partition_index): p.leader_id for t in topics for p in t.partitions}


def bounded(client: Client, options: Options, leaders: dict[Part, int]) -> Iterator[Span]:
    """Yield what to read of partitions, without those that have nothing."""
    starts = offsets(client, leaders, EARLIEST, options)
    ends = offsets(client, _of(leaders, starts), LATEST, options)
    first = _resolved(client, leaders, options, options.start, starts, ends)
    last = _resolved(client, leaders, options, options.end, starts, ends)
    for part in last:
        if part not in first:
            continue  # it is gone
        start, end = max(starts[part], first[part]), min(ends[part], last[part])
        if start < end:
            yield Span(*part, start, end)


def beginning(client: Client, leaders: dict[Part, int], options: Options) -> Mapping[Part, int]:
    """Return the place in each partition that a stream begins at; LATEST: its first end."""
    starts = offsets(client, leaders, EARLIEST, options)
    last = dict.fromkeys(leaders, LATEST)
    return _resolved(client, leaders, options, options.start, starts, last)


def ends(client: Client, leaders: dict[Part, int], options: Options) -> Mapping[Part, int]:
    """Return the end of each partition."""
    return offsets(client, leaders, LATEST, options)


def _resolved(
    client: Client, leaders: dict[Part, int], options: Options, bound: Bound,
    starts: Mapping[Part, int], ends: Mapping[Part, int],
) -> Mapping[Part, int]:  # fmt: skip
    if bound.time_ms is not None:
        at = offsets(client, _of(leaders, ends), bound.time_ms, options)
        return {part: offset if offset >= 0 else ends[part] for part, offset in at.items()}
    found = {}
    for part in ends:
        said = bound.by_queue.get(part[0], {}).get(str(part[1]), bound.offset)
        found[part] = {EARLIEST: starts[part], LATEST: ends[part]}.get(said or 0, said or 0)
    return found


def offsets(
    client: Client, leaders: dict[Part, int], timestamp: int, options: Options
) -> dict[Part, int]:
    """Return an offset of each partition. Raises SourceError where a leader cannot be found.

    A queue that is not named, but was listed, may be gone since: it has none.
    """
    found: dict[Part, int] = {}
    left, until = leaders, time.monotonic() + PATIENCE_S
    while True:
        found |= client.offsets(left, timestamp, committed=options.committed)
        missing = sorted({name for name, _ in left.keys() - found.keys()})
        if not missing:
            return found
        if time.monotonic() > until:
            raise SourceError(f"{missing[0]} has no leader that tells its offsets")
        time.sleep(PAUSE_S)
        there = leaders_of(named(client, missing, gone=not options.names))
        left = {part: node for part, node in there.items() if part in left and part not in found}


def _of(leaders: Mapping[Part, int], parts: Iterable[Part]) -> dict[Part, int]:
    return {part: leaders[part] for part in parts}
