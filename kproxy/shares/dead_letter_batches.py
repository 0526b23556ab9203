"""Batches of dead letters: which records they are of, and what they say (KIP-1191).

A dead letter has the record's key, value and headers where the group wants a copy of it, and says
in headers of its own where the record is from, and why it is here. A record that is not there any
more, or that is larger than the target takes, leaves only the latter. In a compacted queue one
without a key would be dropped: there it gets a key of its own, which says where it is from.

A plan says on the loop which stored batches are to be read; the batch is made on a thread.
"""

from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kproxy.metadata.demands import Demands, Fault
from kproxy.metadata.lane_settings import LaneRules
from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.protocol.made_batches import Content, batch, body_of, content_of_body, header, record
from kproxy.protocol.record_runs import body_runs
from kproxy.protocol.records import repacked
from kproxy.protocol.varint import Malformed
from kproxy.shard.shard import Shard
from kproxy.shares.lanes.reading import LaneReader
from kproxy.store.segments import Segments
from kproxy.virtual.commands.shares import Cause
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.shares import Owed, Position
from kproxy.virtual.types import QueueId

OFFSETS_MAX = 5000
"""Offsets in one batch."""
BATCH_BYTES = 1 << 20
_LANE_BYTES = 1000  # a longer lane is not named
_READ_BYTES = 1 << 20  # stored bytes that are read for one batch of dead letters
_KEPT_BYTES = 8 << 20  # bytes of records that are read ahead, of one batch and of all
_ROWS_MAX = 500  # rows of owed records, and of stored batches

CAUSES = {
    Cause.REJECTED: "rejected", Cause.DELIVERY_LIMIT: "delivery limit", Cause.EXPIRED: "expired",
}  # fmt: skip
"""The texts of the header `kproxy.dlq.cause`."""
_MESSAGES = {
    Cause.REJECTED: "Offset rejected by client.",
    Cause.DELIVERY_LIMIT: "Offset delivery count exceeded the threshold.",
    Cause.EXPIRED: "Offset expired.",
}  # as Kafka 4.4, but for the last one

_KEY_IS_MADE = header("kproxy.dlq.key", "made")

Place = tuple[int, int]
"""(log offset, number) of an owed row."""


class Run(NamedTuple):
    """Records that are owed, or the rest of them."""

    place: Place
    owed: Owed
    first: int

    @property
    def last(self) -> int:
        return self.owed.first + self.owed.records - 1


class BatchPlan(NamedTuple):
    """Offsets in the order of the rows, and the stored batches that have records of them."""

    runs: list[tuple[Run, int]]  # and up to where it is planned
    stored: list[tuple[int, Batch]]  # by last offset
    log_start: int


class Made(NamedTuple):
    """A batch, how many records it has, and the positions from and to which it goes.

    `batch` is empty where none of these offsets has a record.
    """

    batch: bytes
    records: int
    first: Position
    last: Position


class Words(NamedTuple):
    """The settings that all records of a batch are made with."""

    topic: str
    copies: bool
    demands: Demands
    """The demands of the dead-letter queue."""
    bytes_max: int
    record_bytes_max: int
    time_ms: int
    lanes: LaneRules | None = None
    """The rules by which records have lanes, where their letters name these."""


def plan(shard: Shard, runs: Iterable[Run]) -> BatchPlan | None:
    """Return what to read for these runs, or the first of them; None: their queue is gone."""
    planned: list[tuple[Run, int]] = []
    reading = _Reading(shard)
    left, row = OFFSETS_MAX, None
    for run in runs:
        row = row or shard.state.partition(run.owed.key)
        if row is None:
            return None
        until = reading.upto(run, min(run.last, run.first + left - 1), row)
        if until >= run.first:
            planned.append((run, until))
            left -= until - run.first + 1
        if left <= 0 or until < run.last or len(planned) >= _ROWS_MAX:
            break
    return (
        None if row is None else BatchPlan(planned, sorted(reading.stored.items()), row.log_start)
    )


class _Reading:
    """The stored batches that a plan has read."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.stored: dict[int, Batch] = {}
        self._size = 0
        self._found = -1, -1  # offsets of the last one

    def upto(self, run: Run, until: int, row: Partition) -> int:
        """Note the batches of a run; up to which offset, `until` at most."""
        first = max(run.first, row.log_start)
        if self._found[0] <= first and until <= self._found[1]:
            return until
        for last_offset, found in self._shard.state.batches(run.owed.key, first, row.next_offset):
            base_offset = last_offset - found.last_delta
            if base_offset > until:
                break
            self._found = base_offset, last_offset
            if last_offset in self.stored:
                continue
            full = self._size + found.length > _READ_BYTES or len(self.stored) >= _ROWS_MAX
            if self.stored and full:
                return base_offset - 1
            self.stored[last_offset] = found
            self._size += found.length
        return until


class _Loaded(NamedTuple):
    """Records of a stored batch, from their keys on, by offset.

    Before `through` those are all that were wanted. One without bytes cannot be read: it is sent
    without what it holds.
    """

    bodies: dict[int, bytes]
    through: int


class _Records:
    """Records of a plan, read as they are asked for. On a thread."""

    def __init__(self, segments: Segments, planned: BatchPlan, words: Words) -> None:
        self._segments = segments
        self._stored = planned.stored
        self._bytes_max = words.record_bytes_max if words.copies else 0
        self._keyed = words.demands.keyed
        self._lanes = None if words.lanes is None else LaneReader(words.lanes)
        self.lanes: dict[int, bytes] = {}
        """The lanes of records that were loaded, by offset."""
        self._wanted = Counter(  # more than once where a record was archived again after a rewind
            offset for run, until in planned.runs for offset in range(run.first, until + 1)
        )
        self._loaded: dict[int, _Loaded | None] = {}  # by last offset; None: none to send
        self._kept = 0

    def stored_at(self, offset: int) -> tuple[int, Batch] | None:
        low, high = 0, len(self._stored)
        while low < high:
            middle = (low + high) // 2
            if self._stored[middle][0] < offset:
                low = middle + 1
            else:
                high = middle
        if low == len(self._stored):
            return None
        last_offset, found = self._stored[low]
        return self._stored[low] if last_offset - found.last_delta <= offset else None

    def of(self, last_offset: int, stored: Batch, offset: int) -> tuple[bool, bytes | None]:
        """Return whether a batch is one of records, and the record at an offset; None: a gap."""
        known = self._loaded.get(last_offset, _NOT_LOADED)
        if known is not None and offset not in known.bodies and offset >= known.through:
            if self._kept > _KEPT_BYTES:
                self._loaded.clear()
                self._kept = 0
            known = self._loaded[last_offset] = self._load(last_offset, stored, offset)
        self._wanted[offset] -= 1
        return known is not None, None if known is None else known.bodies.get(offset)

    def _load(self, last_offset: int, stored: Batch, asked: int) -> _Loaded | None:
        """Read what is wanted of a batch, as much as is kept at a time, and what is asked for."""
        place = stored.segment, stored.position, stored.length
        data = memoryview(self._segments.batch(*place) or b"")
        head = read_header(data)
        if head.is_control:
            return None
        base_offset, through, room = last_offset - stored.last_delta, last_offset + 1, _KEPT_BYTES
        found: dict[int, bytes] = {}
        told = base_offset
        try:
            names = False if self._lanes is None else self._lanes.names
            for run in body_runs(head, data, headers=names):
                for delta, _, key, body, headers in run:
                    offset = base_offset + delta
                    if offset != asked and self._wanted[offset] <= 0:
                        continue
                    if room < 0 and offset != asked:
                        through = min(through, offset)
                        continue
                    found[offset] = body if len(body) <= self._bytes_max else self._bare(key)
                    room -= len(found[offset])
                    if self._lanes is not None:
                        lane = self._lanes.lane(key, headers)
                        if len(lane) <= _LANE_BYTES:
                            self.lanes[offset] = lane
                told = base_offset + run[-1][0] + 1
                if through <= told and asked < told:
                    break
        except Malformed:
            wanted, end = self._wanted.items(), min(through, last_offset + 1)
            found |= {offset: b"" for offset, left in wanted if left > 0 and told <= offset < end}
        self._kept += _KEPT_BYTES - room
        return _Loaded(found, through)

    def _bare(self, key: bytes | None) -> bytes:
        """Return what is left of a record that is larger than its queue takes."""
        if key is None or not self._keyed or len(key) > self._bytes_max:
            return b""
        return body_of(Content(key), ())


_NOT_LOADED = _Loaded({}, -1)


def make(segments: Segments, planned: BatchPlan, words: Words) -> Made:
    """Return the batch of a plan, or of its beginning. On a thread. Raise OSError."""
    source = _Records(segments, planned, words)
    first_run = planned.runs[0][0]
    first = last = Position(*first_run.place, first_run.first)
    made: list[bytes] = []
    size = HEADER_BYTES
    for run, offset in _offsets(planned):
        content = _content(source, run, offset, planned.log_start, copies=words.copies)
        if content is not None:
            one = _letter(len(made), content, run.owed, offset, words, source.lanes.get(offset))
            if made and size + len(one) > words.bytes_max:
                break
            made.append(one)
            size += len(one)
        last = Position(*run.place, offset)
    if not made:
        return Made(b"", 0, first, last)
    return Made(_batch(made, words), len(made), first, last)


def _letter(
    number: int, content: Content, owed: Owed, offset: int, words: Words, lane: bytes | None
) -> bytes:
    """Return the record of a dead letter: as much of its content as its queue takes."""
    headers = _headers(owed, offset, words.topic)
    if lane is not None:
        headers.append(header("kproxy.dlq.lane", lane))
    only_key = Content(content.key if words.demands.keyed else None)
    for some in (content, only_key, Content()):
        more = headers
        if words.demands.fault_of(some.key, words.time_ms, words.time_ms) is Fault.NO_KEY:
            key = f"{words.topic}/{owed.key[1]}/{offset}/{owed.group}"
            some, more = some._replace(key=key.encode()), [*headers, _KEY_IS_MADE]
        one = record(number, some, more)
        if HEADER_BYTES + len(one) <= words.record_bytes_max:
            break
    return one


def _batch(made: list[bytes], words: Words) -> bytes:
    """Return the batch of some records, packed as its queue has it, unless that makes it larger."""
    demands = words.demands
    plain = batch(made, words.time_ms, log_append_time=demands.log_append_time)
    if not demands.codec:
        return plain
    body, level = plain[HEADER_BYTES:], demands.compression_level
    return min(repacked(read_header(plain), body, demands.codec, level), plain, key=len)


def _offsets(planned: BatchPlan) -> Iterator[tuple[Run, int]]:
    for run, until in planned.runs:
        for offset in range(run.first, until + 1):
            yield run, offset


def _content(
    source: _Records, run: Run, offset: int, log_start: int, *, copies: bool
) -> Content | None:
    """Return what a dead letter has of its record; None: there never was one.

    A member that rejects a record has seen it. A record that was given too often may be a gap that
    compaction left.
    """
    if offset < log_start:
        return Content()
    seen = run.owed.cause == Cause.REJECTED
    stored = source.stored_at(offset)
    if stored is None:
        return Content() if seen else None
    of_records, body = source.of(*stored, offset)
    if not of_records:
        return None
    if body is None:
        return Content() if seen else None
    try:
        return content_of_body(body) if copies else Content()
    except Malformed:
        return Content()


def _headers(owed: Owed, offset: int, topic: str) -> list[bytes]:
    cause = Cause(owed.cause)
    return [
        header("__dlq.errors.topic", topic),
        header("__dlq.errors.partition", str(owed.key[1])),
        header("__dlq.errors.offset", str(offset)),
        header("__dlq.errors.group", owed.group),
        header("__dlq.errors.delivery.count", str(owed.deliveries)),
        header("__dlq.errors.message", _MESSAGES[cause]),
        header("kproxy.dlq.cause", CAUSES[cause]),
    ]


def name_of_lost(queue_id: QueueId) -> str:
    """Return a queue's id as the name of a queue that nobody knows any more, as Kafka does."""
    return urlsafe_b64encode(queue_id).decode().rstrip("=")
