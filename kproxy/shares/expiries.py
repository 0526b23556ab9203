"""The times at which records expire: a header says it, where `kproxy.ttl=header`.

A share group is given no record that has expired: it is archived, with the cause `expired`.
`kproxy.expires-at` is in milliseconds since 1970; `kproxy.ttl-ms` counts from the record's own
timestamp. The first one counts if a record has both, and one that is no number says nothing.
Batches are read on a thread when a share partition looks at them first; what they say is remembered
within a bound.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

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
_NONE: Sequence[tuple[int, int]] = ()

Times = Sequence[tuple[int, int]]
"""(offset, when it expires) of the records of a batch that do, ascending by offset."""


def read_times(segments: Segments, batches: Sequence[StoredBatch]) -> dict[int, Times]:
    """Return the times of each batch by its base offset. Runs on a thread."""
    found: dict[int, Times] = {}
    for base, *place in batches:
        with suppress(DamagedBatch):  # the next look says so
            found[base] = list(_times(base, bytes(segments.batch(*place) or b"")))
    return found


def _times(base: int, data: bytes) -> Iterator[tuple[int, int]]:
    header = read_header(data)
    if not may_expire(header, data):
        return
    try:
        for run in body_runs(header, data, headers=NAMES):
            yield from times_in(base, run)
    except Malformed:
        return  # a record that cannot be read does not expire


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

    __slots__ = ("_by_base", "_count", "unread")

    def __init__(self) -> None:
        self._by_base: dict[int, Times] = {}
        self._count = 0
        self.unread: list[StoredBatch] = []
        """Batches that are to be read before it is known what of them has expired."""

    def add(self, found: dict[int, Times]) -> None:
        if self._count > _TIMES_MAX or len(self._by_base) > _BATCHES_MAX:
            self._by_base.clear()
            self._count = 0
        self._by_base |= found
        self._count += sum(map(len, found.values()))

    def cut(self, first: int, last: int, batch: StoredBatch, now_ms: int) -> Iterator[Stretch]:
        """Yield a batch's stretches: what has expired by now, and what has not."""
        times = self._by_base.get(batch[0])
        if times is None:
            self.unread.append(batch)
            times = _NONE
        at = first
        for offset, at_ms in times:
            if at_ms > now_ms or not at <= offset <= last:
                continue
            if offset > at:
                yield at, offset - 1, batch
            yield offset, offset, EXPIRED
            at = offset + 1
        if at <= last:
            yield at, last, batch
