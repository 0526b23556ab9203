"""A cutter of records out of batches that weigh much more than what a member is given.

A member's records lie scattered over many batches when lanes take turns. They are put into one
batch with gaps between their offsets, as compaction leaves them; every client reads such.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import NamedTuple

from kproxy.protocol.batch import BatchHeader, read_header
from kproxy.protocol.made_batches import Cut, gapped_batch
from kproxy.protocol.record_starts import record_starts
from kproxy.protocol.records import unpacked
from kproxy.protocol.varint import read_varlong
from kproxy.shares.lanes.reading import NotAtOnce
from kproxy.shares.taking import Range
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import StoredBatch

Span = tuple[StoredBatch, int]
"""A batch and its last offset."""
_TIMES = 2
"""Whole batches may weigh so many times what is given of them."""
CUT_BYTES_MAX = 8 << 20
"""The bytes of one answer's records that are cut out, unpacked: one record more at most."""
PACKED_BYTES_MAX = 128 << 10
_ENTRY_BYTES = 500
_HEAD_BYTES = 16  # before the key of a record, about


class Opened(NamedTuple):
    """A batch unpacked: where each of its records begins, and where the last one ends.

    `deltas`: None where none is missing.
    """

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
    starts.append(len(data))
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
        """Return a batch, from the disk where need be. Raise Malformed, OSError."""
        found = self.get(segments, batch)
        if found is not None:
            return found
        _, segment, position, length = batch
        found = opened(memoryview(segments.batch(segment, position, length) or b""))
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


class Piece(NamedTuple):
    """A part of an answer: records that are cut out of batches, or one batch as it lies.

    `whole`: the batch; then `spans` has it, too.
    """

    spans: list[Span]
    ranges: list[Range]
    whole: StoredBatch | None = None


def pieces_of(spans: Sequence[Span], ranges: Sequence[Range]) -> list[Piece] | None:
    """Return the pieces of an answer with these records, ascending.

    None: all batches are sent as they lie, as they weigh at most twice what is given of them.
    """
    before = [0, *accumulate([last - first + 1 for first, last, _ in ranges])]
    if sum([last - batch[0] + 1 for batch, last in spans]) == before[-1]:
        return None
    firsts = [first for first, _, _ in ranges]
    whole, given = 0, 0.0
    end = 0
    pieces = [Piece([], [])]
    for span in spans:
        (base, _, _, length), last = span
        begin = bisect_left(firsts, base, end)
        end = bisect_right(firsts, last, begin)
        count = before[end] - before[begin]
        if begin and (reaches := ranges[begin - 1][1]) >= base:
            count += min(reaches, last) - base + 1
        if end > begin and (reaches := ranges[end - 1][1]) > last:
            count -= reaches - last
        whole += length
        given += length * count / (last - base + 1)
        if _TIMES * count >= last - base + 1:
            pieces += Piece([span], [], span[0]), Piece([], [])
        else:
            pieces[-1].spans.append(span)
    if whole <= _TIMES * given:
        return None
    _deal(ranges, pieces)
    return [piece for piece in pieces if piece.ranges]


def _deal(ranges: Sequence[Range], pieces: Sequence[Piece]) -> None:
    """Put each range, or its parts, into its piece."""
    at = 0
    wholes = [piece for piece in pieces if piece.whole is not None]
    ends: list[int] = []  # behind the last offset of each piece
    for piece in pieces:
        if piece.whole is not None:
            ends.append(piece.spans[0][1] + 1)
        else:
            number = len(ends) // 2
            ends.append(
                wholes[number].spans[0][0][0] if number < len(wholes) else ranges[-1][1] + 1
            )
    for first, last, deliveries in ranges:
        while first <= last:
            while ends[at] <= first:
                at += 1
            upto = min(last, ends[at] - 1)
            pieces[at].ranges.append(Range(first, upto, deliveries))
            first = upto + 1


class CutOut(NamedTuple):
    """A batch of records. `missing`: there are none any more; `left`: no room was left for them."""

    batch: bytes
    missing: list[int]
    left: list[int]


def in_memory(
    segments: Segments, cache: OpenedBatches, spans: Sequence[Span]
) -> list[Opened] | None:
    """Return the batches of spans, if all of them are unpacked already."""
    found: list[Opened] = []
    for batch, _ in spans:
        one = cache.get(segments, batch)
        if one is None:
            return None
        found.append(one)
    return found


def offsets_of(ranges: Sequence[Range]) -> list[int]:
    return [offset for first, last, _ in ranges for offset in range(first, last + 1)]


def cut_out(
    segments: Segments, cache: OpenedBatches, spans: Sequence[Span], ranges: Sequence[Range],
    bytes_max: int, known: Sequence[Opened] | None = None, *, at_once: bool = False,
) -> CutOut:  # fmt: skip
    """Return the records of ascending ranges. Raise Malformed, OSError.

    `known`: the spans' batches, if they are in memory. Raise NotAtOnce, if it is to be `at_once`:
    they are more than is packed in some milliseconds.
    """
    cuts: list[Cut] = []
    most = bytes_max
    offsets = offsets_of(ranges)
    missing: list[int] = []
    codec = at = 0
    for number, (batch, last) in enumerate(spans):
        begin = bisect_left(offsets, batch[0], at)
        missing += offsets[at:begin]
        at = bisect_right(offsets, last, begin)
        if begin == at:
            continue
        found = cache.read(segments, batch) if known is None else known[number]
        codec = codec or found.header.codec
        bytes_max -= _cut(found, batch[0], offsets[begin:at], cuts, missing)
        if bytes_max < 0:
            break
    missing += offsets[at:] if bytes_max >= 0 else ()
    left: list[int] = offsets[at:] if bytes_max < 0 else []
    while bytes_max < 0 and len(cuts) > 1:
        offset, _, body = cuts.pop()
        bytes_max += len(body) + _HEAD_BYTES
        left.insert(0, offset)
    if at_once and codec and most - bytes_max > PACKED_BYTES_MAX:
        raise NotAtOnce
    return CutOut(gapped_batch(cuts, codec) if cuts else b"", missing, left)


def _cut(
    batch: Opened, base: int, offsets: Sequence[int], cuts: list[Cut], missing: list[int]
) -> int:
    """Cut records out of one batch; return how many bytes they take, about."""
    header, data, starts, deltas = batch
    base_ms, of_batch = header.base_timestamp, header.is_log_append_time
    size = 0
    for offset in offsets:
        number = offset - base
        if deltas is not None:
            number = bisect_left(deltas, offset - base)
            if number == len(deltas) or deltas[number] != offset - base:
                missing.append(offset)
                continue
        at, after = starts[number], starts[number + 1]
        while data[at] > 0x7F:  # the length
            at += 1
        at += 2
        time = data[at]
        if time < 0x80:
            time_ms, at = (time >> 1) ^ -(time & 1), at + 1
        else:
            time_ms, at = read_varlong(data, at, after)
        while data[at] > 0x7F:  # the offset
            at += 1
        body = data[at + 1 : after]
        size += len(body) + _HEAD_BYTES
        cuts.append((offset, header.max_timestamp if of_batch else base_ms + time_ms, body))
    return size


def cut_record(batch: Opened, base: int, offset: int) -> Cut | None:
    """Return the offset, the time and the bytes of a record from its key on."""
    found: list[Cut] = []
    _cut(batch, base, [offset], found, [])
    return found[0] if found else None
