"""The work of one task: it asks for a thousand queues at a time, and takes from each its records.

A queue that was trimmed or deleted since the plan has lost what the plan saw; with
`failOnDataLoss=false` the task goes on with what is there.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from kproxy.common.errors import CannotStart, Code
from kproxy.spark import columns
from kproxy.spark.options import EARLIEST, Options, SourceError, Unreachable
from kproxy.spark.planning import Part, Span
from kproxy.tools.client import Refused, checked

_AT_ONCE = 1000
_ANSWER_BYTES, _PARTITION_BYTES = 32 << 20, 8 << 20
_WAIT_MS = 1000
_EMPTY_MAX = 5
_PATIENCE_S = 60.0
_PAUSE_S = 0.2
_MOVED = frozenset(
    (Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE, Code.REPLICA_NOT_AVAILABLE,
     Code.FENCED_LEADER_EPOCH, Code.UNKNOWN_LEADER_EPOCH, Code.UNKNOWN_TOPIC_OR_PARTITION,
     Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_SERVER_ERROR)
)  # fmt: skip
Names = Callable[[str, list[columns.Record]], list[str]]
"""The queue of each record of a queue."""


class _Place(NamedTuple):
    """A partition, as a Fetch names it."""

    queue: UUID
    partition: int


class _Reading:
    """A span that is being read."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.next = span.start
        self.empty = 0
        self.leader = -1
        self.queue: UUID | None = None


def read(options: Options, spans: Iterable[Span], names: Names) -> Iterator[pa.RecordBatch]:
    """Yield the records of spans. Raises SourceError, Malformed."""
    left = iter(spans)
    rows = columns.Columns()
    task = _Task(options, rows, names)
    try:
        while (more := list(islice(left, _AT_ONCE - len(task)))) or len(task):
            task.take(more)
            for _ in task.answers():
                if rows.full():
                    yield rows.taken()
        if len(rows):
            yield rows.taken()
    finally:
        task.close()


class _Task:
    def __init__(self, options: Options, rows: columns.Columns, names: Names) -> None:
        self._client = options.client()
        self._options = options
        self._rows = rows
        self._names = names
        self._readings: dict[_Place, _Reading] = {}
        self._behind: dict[_Place, list[_Reading]] = {}
        self._patient_until = time.monotonic() + _PATIENCE_S

    def close(self) -> None:
        self._client.__exit__()

    def __len__(self) -> int:
        return len(self._readings) + sum(map(len, self._behind.values()))

    def take(self, spans: list[Span]) -> None:
        """Begin with more spans."""
        if spans:
            self._place([_Reading(span) for span in spans])

    def _place(self, readings: list[_Reading]) -> None:
        """Look up ids and leaders. A queue that is gone is a loss."""
        names = sorted({reading.span.queue for reading in readings})
        topics = {topic.name: topic for topic in self._client.metadata(names)}
        for reading in readings:
            topic = topics[reading.span.queue]
            if topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                self._lost(reading, "it is gone")
                continue
            if topic.error_code not in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
                raise SourceError(f"reading {topic.name}: {topic.error_code.name.upper()}")
            if reading.queue not in (None, topic.topic_id):
                self._lost(reading, "it was deleted, and made again")
                continue
            leaders = {part.partition_index: part.leader_id for part in topic.partitions}
            place = _Place(topic.topic_id, reading.span.partition)
            reading.leader, reading.queue = leaders.get(place.partition, -1), topic.topic_id
            if place in self._readings:  # another stretch of it: a Fetch names each once
                self._behind.setdefault(place, []).append(reading)
            else:
                self._readings[place] = reading

    def _lost(self, reading: _Reading, why: str, start: int | None = None) -> None:
        """Raise SourceError, unless less is as good. `start`: where it begins now."""
        if self._options.fails:
            end = reading.span.end if start is None else min(start, reading.span.end)
            raise SourceError(
                f"{reading.span.queue} has lost its records {reading.next} to"
                f" {end - 1} while it was read: {why};"
                " failOnDataLoss=false reads what is there"
            )

    def _done(self, place: _Place) -> None:
        del self._readings[place]
        if behind := self._behind.get(place):
            self._readings[place] = behind.pop(0)
            if not behind:
                del self._behind[place]

    # -- requests

    def answers(self) -> Iterator[None]:
        """Ask each leader once; yield after each partition's answer."""
        by_leader: dict[int, list[_Place]] = {}
        for place, reading in self._readings.items():
            by_leader.setdefault(reading.leader, []).append(place)
        for leader, places in by_leader.items():
            try:
                answer = self._asked(leader, places)
            except (CannotStart, KeyError):  # it is down, or nobody leads
                self._look_again(places)
                continue
            try:
                checked(answer.error_code, "reading")
            except Refused as error:
                raise SourceError(str(error)) from None
            moved = []
            first = places[0]
            for topic in answer.responses:
                for part in topic.partitions:
                    place = _Place(topic.topic_id, part.partition_index)
                    if place not in self._readings:
                        continue
                    if part.error_code in _MOVED:
                        moved.append(place)
                    else:
                        self._heard(place, part, alone=place == first)
                        yield
            if moved:
                self._look_again(moved)

    def _asked(self, leader: int, places: list[_Place]) -> Any:
        topics: dict[UUID, list[dict[str, int]]] = {}
        for place in places:
            part = {
                "partition": place.partition, "fetch_offset": self._readings[place].next,
                "partition_max_bytes": _PARTITION_BYTES,
            }  # fmt: skip
            topics.setdefault(place.queue, []).append(part)
        values = {
            "max_wait": _WAIT_MS, "min_bytes": 1, "max_bytes": _ANSWER_BYTES,
            "isolation_level": int(self._options.committed),
            "topics": [{"topic_id": queue, "partitions": parts} for queue, parts in topics.items()],
            "forgotten_topics_data": (),
        }  # fmt: skip
        return self._client.call(1, 13, values, leader)

    def _look_again(self, places: list[_Place]) -> None:
        """Find who leads now. Raises SourceError after a minute without an answer."""
        again: list[_Reading] = []
        for place in places:
            again += [self._readings.pop(place), *self._behind.pop(place, ())]
        while True:
            if time.monotonic() > self._patient_until:
                raise SourceError(f"{again[0].span.queue} has no leader that answers")
            time.sleep(_PAUSE_S)
            try:
                self._client.__exit__()
                self._client = self._options.client()
                self._place(again)
                return
            except (CannotStart, Unreachable):
                continue

    # -- answers

    def _heard(self, place: _Place, part: Any, *, alone: bool) -> None:
        reading = self._readings[place]
        if part.error_code == Code.OFFSET_OUT_OF_RANGE:
            self._trimmed(place, reading)
            return
        try:
            checked(part.error_code, f"reading {reading.span.queue}")
        except Refused as error:
            raise SourceError(str(error)) from None
        before = reading.next
        if part.records:
            self._rows_of(reading, part)
        if reading.next > before:
            reading.empty = 0
            self._patient_until = time.monotonic() + _PATIENCE_S
        elif alone:
            reading.empty += 1
        if reading.next >= reading.span.end:
            self._done(place)
        elif reading.empty > _EMPTY_MAX:
            self._lost(reading, "it has nothing there")
            self._done(place)
        elif alone and len(self._readings) > 1:  # the others come first now
            self._readings[place] = self._readings.pop(place)

    def _trimmed(self, place: _Place, reading: _Reading) -> None:
        part: Part = (reading.span.queue, reading.span.partition)
        start = self._client.offsets({part: reading.leader}, EARLIEST).get(part)
        self._lost(reading, "it was trimmed", start)
        if start is not None and reading.next < start < reading.span.end:
            reading.next = start
        else:
            self._done(place)

    def _rows_of(self, reading: _Reading, part: Any) -> None:
        """Keep what a partition's answer has, without transactions that were aborted."""
        span = reading.span
        aborted = sorted((t.first_offset, t.producer_id) for t in part.aborted_transactions or ())
        void: set[int] = set()
        for header, batch in columns.batches(bytes(part.records)):
            if header.base_offset >= span.end:
                reading.next = span.end
                return
            last = header.base_offset + header.last_offset_delta
            while aborted and aborted[0][0] <= last:
                void.add(aborted.pop(0)[1])
            if header.is_control:
                if header.producer_id in void and columns.aborts(batch):
                    void.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in void):
                found = columns.records(header, batch, reading.next, span.end)
                self._rows.add(header, found, self._names(span.queue, found), span.partition)
            reading.next = max(reading.next, last + 1)
