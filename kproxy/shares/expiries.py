"""The times at which records expire: a header says it, where `kproxy.ttl=header`.

A share group is given no record that has expired: it is archived, with the cause `expired`.
`kproxy.expires-at` is in milliseconds since 1970; `kproxy.ttl-ms` counts from the record's own
timestamp. The first one counts if a record has both, and one that is no number says nothing.
Batches are read on a thread when a share partition looks at them first; what they say is remembered
within a bound.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from kproxy.protocol.batch import BatchHeader, read_header
from kproxy.protocol.record_runs import body_runs
from kproxy.protocol.records import Body
from kproxy.protocol.varint import Malformed
from kproxy.shares.taking import EXPIRED, Stretch
from kproxy.store.damage import DamagedBatch
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import StoredBatch

EXPIRES_AT, TTL_MS = b"kproxy.expires-at", b"kproxy.ttl-ms"
NAMES = frozenset((EXPIRES_AT, TTL_MS))
_NUMBER = re.compile(rb"[+-]?\d{1,18}")
_TIMES_MAX = 100_000
_BATCHES_MAX = 2000
_OF_BATCH_MAX = 100_000  # more than any look wants of one: a window is less
_FAR = 1 << 63  # an offset behind all others


class Times(NamedTuple):
    """The times at which records of a batch expire, of offsets from `first` through `through`.

    `offsets`: of the records that do, ascending.
    """

    first: int
    through: int
    offsets: "array[int]"
    at_ms: "array[int]"


_NONE = Times(0, _FAR, array("q"), array("q"))


def read_times(
    segments: Segments, wanted: Sequence[tuple[StoredBatch, int]]
) -> dict[int, Times]:  # fmt: skip
    """Return the times of batches, each from an offset on, by its base offset. On a thread."""
    found: dict[int, Times] = {}
    for (base, *place), first in wanted:
        with suppress(DamagedBatch):  # the next look says so
            found[base] = _times(base, bytes(segments.batch(*place) or b""), first)
    return found


def _times(base: int, data: bytes, first: int) -> Times:
    header = read_header(data)
    found = Times(first, _FAR, array("q"), array("q"))
    if not may_expire(header, data):
        return found
    with suppress(Malformed):  # a record that cannot be read does not expire
        for run in body_runs(header, data, headers=NAMES):
            for offset, at_ms in times_in(base, run):
                if offset < first:
                    continue
                if len(found.offsets) == _OF_BATCH_MAX:
                    return found._replace(through=offset - 1)
                found.offsets.append(offset)
                found.at_ms.append(at_ms)
    return found


def may_expire(header: BatchHeader, data: bytes | memoryview) -> bool:
    """Return whether a batch may have records that say when they expire."""
    if header.codec:
        return True
    data = bytes(data)
    return EXPIRES_AT in data or TTL_MS in data


def times_in(base: int, run: Sequence[Body]) -> Iterator[tuple[int, int]]:
    """Yield the times of records of a batch, of which `NAMES` were looked at."""
    for delta, time_ms, _, _, headers in run:
        if headers and (at_ms := _expires_at(time_ms, headers)) is not None:
            yield base + delta, at_ms


def _expires_at(time_ms: int, headers: dict[bytes, bytes | None]) -> int | None:
    for name, from_ms in ((EXPIRES_AT, 0), (TTL_MS, time_ms)):
        value = headers.get(name) or b""
        if _NUMBER.fullmatch(value):
            return from_ms + int(value)
    return None


class Expiries:
    """The times of the batches that a share partition has looked at."""

    __slots__ = ("_by_base", "_grown", "_looked", "unread")

    def __init__(self) -> None:
        self._by_base: dict[int, Times] = {}
        self._grown = False
        self._looked: list[int] = []
        self.unread: list[tuple[StoredBatch, int]] = []
        """Batches that are to be read before it is known what has expired, from an offset on."""

    def begin(self) -> None:
        """Begin a look."""
        self.unread.clear()
        self._looked.clear()

    def settle(self) -> None:
        """End a look that knows all: if too much is known, what it looked at stays alone.

        Before that nothing is forgotten, or a look could want more than is kept for ever.
        """
        known = self._by_base
        if self._grown:
            self._grown = False
            count = sum(len(one.offsets) for one in known.values())
            if len(known) > _BATCHES_MAX or count > _TIMES_MAX:
                self._by_base = {base: known[base] for base in self._looked}

    def add(self, found: dict[int, Times]) -> None:
        self._by_base |= found
        self._grown = True

    def cut(self, first: int, last: int, batch: StoredBatch, now_ms: int) -> Iterator[Stretch]:
        """Yield a batch's stretches: what has expired by now, and what has not."""
        times = self._by_base.get(batch[0])
        if times is None or first < times.first or last > times.through:
            self.unread.append((batch, first))
            times = _NONE
        else:
            self._looked.append(batch[0])
        gone = at = first  # from the one to before the other all has expired
        offsets, at_ms = times.offsets, times.at_ms
        for number in range(bisect_left(offsets, first), bisect_right(offsets, last)):
            offset = offsets[number]
            if at_ms[number] > now_ms:
                continue
            if offset > at:
                if at > gone:
                    yield gone, at - 1, EXPIRED
                yield at, offset - 1, batch
                gone = offset
            at = offset + 1
        if at > gone:
            yield gone, at - 1, EXPIRED
        if at <= last:
            yield at, last, batch
