"""A cutter of records out of batches that weigh much more than what a member is given.

A member's records lie scattered over many batches when lanes take turns. They are put into one
batch with gaps between their offsets, as compaction leaves them; every client reads such.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from kproxy.protocol.batch import BatchHeader, read_header
from kproxy.protocol.made_batches import Cut, gapped_batch
from kproxy.protocol.records import record_starts, unpacked
from kproxy.protocol.varint import read_varlong
from kproxy.shares.taking import Range
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import StoredBatch

Span = tuple[StoredBatch, int]
"""A batch and its last offset."""
_TIMES = 2
"""Whole batches may weigh so many times what is given of them."""
CUT_BYTES_MAX = 8 << 20
"""The bytes of one answer's records that are cut out, unpacked: one record more at most."""
_ENTRY_BYTES = 500


class Opened(NamedTuple):
    """A batch unpacked: where each of its records begins. `deltas`: None where none is missing."""

    header: BatchHeader
    data: bytes
    starts: "array[int]"
    deltas: "array[int] | None"

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        numbers = len(self.starts) * (4 if self.deltas is None else 8)
        return _ENTRY_BYTES + len(self.data) + numbers


def opened(batch: bytes | memoryview) -> Opened:
    """Return a batch unpacked. Raise Malformed."""
    header = read_header(batch)
    data = unpacked(batch)
    starts, deltas = record_starts(header, data)
    is_dense = len(deltas) == header.last_offset_delta + 1
    return Opened(header, data, starts, None if is_dense else deltas)


class OpenedBatches:
    """The batches that records were cut out of last, as many as fit. For any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._batches: OrderedDict[tuple[Segments, int, int], Opened] = OrderedDict()
        self.used = 0

    def get(self, segments: Segments, batch: StoredBatch) -> Opened | None:
        key = segments, batch[1], batch[2]
        with self._lock:
            found = self._batches.get(key)
            if found is not None:
                self._batches.move_to_end(key)
            return found

    def read(self, segments: Segments, batch: StoredBatch) -> Opened:
        """Return a batch, from the disk where need be. Raise Malformed, OSError, EOFError."""
        found = self.get(segments, batch)
        if found is not None:
            return found
        _, segment, position, length = batch
        data = memoryview(bytearray(length))
        segments.read_into(data, segment, position, True)
        found = opened(data)
        if found.size > self._bytes_max:
            return found
        with self._lock:
            key = segments, segment, position
            if key not in self._batches:
                self._batches[key] = found
                self.used += found.size
            while self.used > self._bytes_max:
                _, gone = self._batches.popitem(last=False)
                self.used -= gone.size
        return found


def is_worthwhile(spans: Sequence[Span], ranges: Sequence[Range]) -> bool:
    """Return whether whole batches weigh much more than what is given of them."""
    whole, given = 0, 0.0
    at = 0
    for (base, _, _, length), last in spans:
        count = 0
        while at < len(ranges) and ranges[at].first <= last:
            count += min(ranges[at].last, last) - max(ranges[at].first, base) + 1
            if ranges[at].last > last:
                break
            at += 1
        whole += length
        given += length * count / (last - base + 1)
    return whole > _TIMES * given


class CutOut(NamedTuple):
    """A batch of records. `missing`: there are none any more; `left`: no room was left for them."""

    batch: bytes
    missing: list[int]
    left: list[int]


def cut_out(
    segments: Segments, cache: OpenedBatches, spans: Sequence[Span], ranges: Sequence[Range],
    bytes_max: int,
) -> CutOut:  # fmt: skip
    """Return the records of ascending ranges. Raise Malformed, OSError, EOFError."""
    cuts: list[Cut] = []
    missing: list[int] = []
    size, codec = 0, 0
    spans = list(spans)
    at = 0
    batch: Opened | None = None
    offsets = [offset for first, last, _ in ranges for offset in range(first, last + 1)]
    for number, offset in enumerate(offsets):
        while at < len(spans) and spans[at][1] < offset:
            at, batch = at + 1, None
        if at == len(spans) or spans[at][0][0] > offset:
            missing.append(offset)
            continue
        if batch is None:
            batch = cache.read(segments, spans[at][0])
            codec = codec or batch.header.codec
        found = cut_record(batch, spans[at][0][0], offset)
        if found is None:
            missing.append(offset)
            continue
        size += len(found[2]) + 16
        if cuts and size > bytes_max:
            return CutOut(gapped_batch(cuts, codec), missing, offsets[number:])
        cuts.append(found)
    return CutOut(gapped_batch(cuts, codec) if cuts else b"", missing, [])


def cut_record(batch: Opened, base: int, offset: int) -> Cut | None:
    """Return the offset, the time and the bytes of a record from its key on."""
    header, data, starts, deltas = batch
    delta = number = offset - base
    if deltas is not None:
        number = bisect_left(deltas, delta)
        if number == len(deltas) or deltas[number] != delta:
            return None
    start, end = starts[number], len(data)
    length, at = read_varlong(data, start, end)
    after = at + length
    time_delta, at = read_varlong(data, at + 1, after)
    _, at = read_varlong(data, at, after)
    time_ms = header.base_timestamp + time_delta
    if header.is_log_append_time:
        time_ms = header.max_timestamp
    return offset, time_ms, data[at:after]
