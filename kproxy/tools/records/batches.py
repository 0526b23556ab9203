"""Records by offset, read with Fetch: some of a partition, without a consumer and its threads.

Committed ones alone, as a consumer with read_committed sees them. A batch that is damaged, or
unpacks to very much, is left out and said.
"""

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from kproxy.common.errors import Code
from kproxy.protocol.batch import (
    CRC_FROM,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
)
from kproxy.protocol.made_batches import content_of_body
from kproxy.protocol.records import Body, parse_run, unpacked
from kproxy.protocol.varint import Malformed, read_varlong
from kproxy.tools.client import Client, Refused, checked
from kproxy.tools.records.text import Record

_FETCH_BYTES_MAX = 1 << 20
_UNPACKED_BYTES_MAX = 16 << 20
_LOOKED_BYTES_MAX, LOOKED_S = 16 << 20, 2.0
_NOTES_MAX = 10
_READ_COMMITTED = 1

Wanted = Callable[[Body], bool]


class Budget:
    """The most that looks go through together: each says where it stopped."""

    def __init__(self) -> None:
        self._bytes, self._until = _LOOKED_BYTES_MAX, time.monotonic() + LOOKED_S

    def spend(self, count: int) -> None:
        self._bytes -= count

    @property
    def is_left(self) -> bool:
        return self._bytes > 0 and time.monotonic() < self._until


@dataclass(slots=True)
class Looked:
    """The outcome of a look. `next_offset`: the place to go on; `end`: where committed ones end."""

    next_offset: int
    start: int = 0
    end: int = 0
    records: list[Record] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """Each record's bytes from its key on."""
    left_out: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        if len(self.left_out) < _NOTES_MAX:
            self.left_out.append(line)


def look(
    client: Client, part: tuple[str, int], leader: int, offset: int, count: int, *,
    wanted: Wanted | None = None, names: frozenset[bytes] = frozenset(),
    budget: Budget | None = None, last: bool = False,
) -> Looked:  # fmt: skip
    """Return at most so many records from an offset on. Raises Refused.

    `wanted`: only these; `names`: the headers that it looks at. `last`: all are looked at, and the
    last ones kept.
    """
    found, budget = Looked(offset), budget or Budget()
    while (last or len(found.records) < count) and budget.is_left:
        answer = _fetched(client, part, leader, found.next_offset)
        if answer.error_code == Code.OFFSET_OUT_OF_RANGE:
            found.start, found.end = _bounds(client, part, leader)
            if found.next_offset < found.start:
                found.next_offset = found.start
                continue
            break
        checked(answer.error_code, f"{part[0]}-{part[1]}")
        found.start, found.end = answer.log_start_offset, answer.last_stable_offset
        data = bytes(answer.records or b"")
        before = found.next_offset
        budget.spend(len(data))
        _add(found, part, data, _aborted(answer), count, wanted, names, last=last)
        if found.next_offset == before or found.next_offset >= found.end:
            break
    return found


def _fetched(client: Client, part: tuple[str, int], leader: int, offset: int) -> Any:
    asked = {
        "partition": part[1], "fetch_offset": offset, "current_leader_epoch": -1,
        "partition_max_bytes": _FETCH_BYTES_MAX, "log_start_offset": -1, "last_fetched_epoch": -1,
    }  # fmt: skip
    values = {
        "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": _FETCH_BYTES_MAX,
        "isolation_level": _READ_COMMITTED, "session_id": 0, "session_epoch": -1,
        "topics": [{"topic": part[0], "partitions": [asked]}], "forgotten_topics_data": (),
        "rack_id": "",
    }  # fmt: skip
    answer = client.call(1, 12, values, leader)
    checked(answer.error_code, part[0])
    for topic in answer.responses:
        for one in topic.partitions:
            return one
    raise Refused(f"{part[0]}-{part[1]}: no answer")


def _bounds(client: Client, part: tuple[str, int], leader: int) -> tuple[int, int]:
    starts, ends = client.offsets({part: leader}, -2), client.offsets({part: leader}, -1)
    if part not in starts or part not in ends:
        raise Refused(f"{part[0]}-{part[1]} is served by another worker now: ask again")
    return starts[part], ends[part]


class _Aborted:
    """The aborted transactions of an answer: a producer's batches from the first offset on, up to
    its marker, are to be left out.
    """

    def __init__(self, told: list[tuple[int, int]]) -> None:
        self._coming = told
        heapq.heapify(self._coming)
        self._open: set[int] = set()

    def has(self, header: BatchHeader) -> bool:
        while self._coming and self._coming[0][0] <= header.base_offset + header.last_offset_delta:
            self._open.add(heapq.heappop(self._coming)[1])
        if header.is_control:
            self._open.discard(header.producer_id)
        return header.is_transactional and header.producer_id in self._open


def _aborted(answer: Any) -> _Aborted:
    told = answer.aborted_transactions or ()
    return _Aborted([(one.first_offset, one.producer_id) for one in told])


def _batches(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield whole batches."""
    at = 0
    while len(data) - at >= HEADER_BYTES:
        header = read_header(data, at)
        after = at + LOG_OVERHEAD_BYTES + header.length
        if header.magic != MAGIC or not at + HEADER_BYTES <= after <= len(data):
            return
        yield header, data[at:after]
        at = after


def _add(
    found: Looked, part: tuple[str, int], data: bytes, aborted: _Aborted, count: int,
    wanted: Wanted | None, names: frozenset[bytes], *, last: bool,
) -> None:  # fmt: skip
    """Add the records of batches, until there are enough."""
    for header, batch in _batches(data):
        after = header.base_offset + header.last_offset_delta + 1
        left_out = aborted.has(header) or header.is_control
        if after <= found.next_offset:
            continue
        if not left_out:
            for body in _read(found, header, batch, names):
                offset = header.base_offset + body[0]
                if offset < found.next_offset or (wanted is not None and not wanted(body)):
                    continue
                found.records.append(_record(body, part, offset))
                found.bodies.append(body[3])
                if last:
                    del found.records[:-count], found.bodies[:-count]
                elif len(found.records) >= count:
                    found.next_offset = offset + 1
                    return
        found.next_offset = after


def _read(found: Looked, header: BatchHeader, batch: bytes, names: frozenset[bytes]) -> list[Body]:
    """Return the records of a batch; none where it cannot be read, which is noted."""
    try:
        if crc32c(memoryview(batch)[CRC_FROM:]) != header.crc & 0xFFFF_FFFF:
            raise Malformed("its CRC does not match")
        whole = unpacked(batch, _UNPACKED_BYTES_MAX)
        return parse_run(header, whole, 0, header.record_count, names or False)[0]
    except Malformed as error:
        last = header.base_offset + header.last_offset_delta
        found.note(f"offsets {header.base_offset} to {last} are left out: {error}")
        return []


def _record(body: Body, part: tuple[str, int], offset: int) -> Record:
    """Return a record with its value and all its headers, in their order."""
    content = content_of_body(body[3])
    data, end, at = content.header_bytes, len(content.header_bytes), 0
    headers = []
    for _ in range(content.headers):
        size, at = read_varlong(data, at, end)
        name, at = data[at : at + size].decode(errors="backslashreplace"), at + size
        size, at = read_varlong(data, at, end)
        headers.append((name, data[at : at + size] if size >= 0 else None))
        at += max(0, size)
    return Record(body[2], content.value, headers, body[1], part[1], offset, part[0])
