"""A reader of the lanes of records in their batches, some at a time, mostly on a thread."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from kproxy.metadata.lane_settings import LaneRules
from kproxy.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from kproxy.protocol.record_runs import body_runs
from kproxy.protocol.record_starts import dense_keys, record_keys
from kproxy.protocol.records import Body
from kproxy.protocol.varint import Malformed
from kproxy.shares.expiries import NAMES, may_expire, times_in
from kproxy.shares.lanes.table import hash_of
from kproxy.shares.taking import Stretch
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import NO_TRANSACTION, StoredBatch, transaction_of

_RUN_MAX = 4096  # offsets of a batch that cannot be read, told at a time
_JOINED_MAX = 500  # records of small batches that are told together
_WHOLE_BYTES = 64 << 10  # a batch up to this size, as it is, is looked at in one go
_NEAR_BYTES = 256 << 10  # read in one go, of batches that lie near each other
LEVEL = 4
"""The level of a record that says none."""
Expiring = tuple[tuple[int, int], ...]
"""(offset, when it expires) of the records that do."""
_Names = list[Any]
"""The lanes' names, or numbers where levels are the lanes."""
_Run = tuple[Sequence[int], _Names, list[int] | None, Expiring]
_LEVELS = {b"%d" % level: level for level in range(10)}


class Part(NamedTuple):
    """The records from `first` to `end`: their offsets, the hashes of their lanes, their levels.

    `base`: the base offset of their batch, `transaction`: the one that it is part of. The records
    of a batch that is not readable are all in the lane of those that say none.
    """

    first: int
    end: int
    offsets: Sequence[int] = ()
    hashes: Sequence[int] = ()
    levels: Sequence[int] | None = None
    base: int = -1
    transaction: int = NO_TRANSACTION
    expiring: Expiring = ()
    is_readable: bool = True
    names: Sequence[bytes | None] = ()
    """The names of the lanes instead of their hashes, where a record lies at each offset."""


class NotAtOnce(Exception):
    """A batch is not in memory, or packed: it is to be read on a thread."""


class LaneReader:
    """A reader of lanes by a group's rules. It keeps a batch of which not all was told.

    `expires`: headers say when records expire.
    """

    def __init__(self, rules: LaneRules, *, expires: bool = False) -> None:
        self._expires = expires
        self._header = rules.header.encode()
        self._level = rules.priority.encode()
        self._by_level = rules.by_level
        self._named = rules.alike
        names = frozenset(filter(None, (self._header, self._level)))
        self.names: Literal[False] | frozenset[bytes] = names or False
        """The headers that are looked at; False: none."""
        self._open: tuple[int, int, Iterator[Part]] | None = None
        """The base of a batch, up to which offset it was told, and the rest."""

    def lane(self, key: bytes | None, headers: dict[bytes, bytes | None]) -> bytes:
        """Return the name of a record's lane; empty: it says none."""
        if self._by_level:
            return b"%d" % self.level(headers)
        return (headers.get(self._header) if self._header else key) or b""

    def level(self, headers: dict[bytes, bytes | None]) -> int:
        return _LEVELS.get(headers.get(self._level) or b"", LEVEL) if self._level else LEVEL

    def read(
        self, segments: Segments, stretches: Sequence[Stretch], records_max: int, *, wait: bool
    ) -> list[Part]:
        """Return what lies in some stretches, or in the first of them: about so many records.

        It ends before a batch that cannot be read. Without `wait`: only what is in memory. Raise
        NotAtOnce; OSError: it is the first.
        """
        found: list[Part] = []
        left = records_max
        lying = _Lying(segments, [batch for _, _, batch in stretches if batch is not None], wait)
        for first, last, batch in stretches:
            if batch is None:
                found.append(Part(first, last + 1))
                continue
            try:
                parts = self._parts_of(lying, batch, first, last, wait)
            except OSError:
                if found:
                    break
                raise
            for part in parts:
                if found and (joined := _joined(found[-1], part)) is not None:
                    found[-1] = joined
                else:
                    found.append(part)
                left -= part.end - part.first
                if left <= 0 and part.end <= last:
                    self._open = batch[0], part.end, parts
                    return found
            if left <= 0:
                break
        return found

    def _parts_of(
        self, lying: "_Lying", batch: StoredBatch, first: int, last: int, wait: bool
    ) -> Iterator[Part]:
        """Return what a batch has from `first` on, also where that was told to somebody who went
        without it."""
        kept, base = self._open, batch[0]
        if kept is not None and kept[0] == base and kept[1] <= first:
            if not wait:
                raise NotAtOnce
            self._open = None
            lying.pass_by()
            return kept[2]
        self._open = None
        data = lying.next()
        head = read_header(data)
        if not wait and head.codec:
            raise NotAtOnce
        return self._told(head, base, last, data)

    def _told(self, head: BatchHeader, base: int, last: int, data: memoryview) -> Iterator[Part]:
        if head.is_control:
            yield Part(base, last + 1)
            return
        transaction, told = transaction_of(head), base
        try:
            for offsets, names, levels, expiring in self._runs(head, base, data):
                end = offsets[-1] + 1
                if not self._named:
                    hashes = self._hashes_of(names)
                    yield Part(told, end, offsets, hashes, levels, base, transaction, expiring)
                elif expiring or end - told != len(offsets):
                    hashes = list(map(hash_of, names))
                    yield Part(told, end, offsets, hashes, None, base, transaction, expiring)
                else:
                    yield Part(told, end, base=base, transaction=transaction, names=names)
                told = end
            if told <= last:
                yield Part(told, last + 1, base=base, transaction=transaction)
        except Malformed:
            while told <= last:
                end = min(last + 1, told + _RUN_MAX)
                levels = [LEVEL] * (end - told) if self._level else None
                hashes = [hash_of(b"")] * (end - told)
                yield Part(
                    told, end, range(told, end), hashes, levels, base, transaction,
                    is_readable=False,
                )  # fmt: skip
                told = end

    def _runs(self, head: BatchHeader, base: int, data: memoryview) -> Iterator[_Run]:
        """Yield the offsets, the lanes and the levels of records, and when they expire. Raise
        Malformed."""
        expires = self._expires and may_expire(head, data)
        is_whole = not head.codec and len(data) <= _WHOLE_BYTES
        if is_whole and not self.names and not expires:
            body = bytes(data[HEADER_BYTES:])
            dense = dense_keys(head, body)
            if dense is not None:
                yield range(base, base + len(dense)), dense, None, ()
                return
            deltas, keys = record_keys(head, body)
            if deltas:
                yield [base + delta for delta in deltas], keys, None, ()
            return
        names = self.names
        if expires:
            names = NAMES | (names or frozenset())
        for run in body_runs(head, data, headers=names):
            expiring = tuple(times_in(base, run)) if expires else ()
            yield [base + one[0] for one in run], *self._lanes_of(run), expiring

    def _lanes_of(self, run: list[Body]) -> tuple[_Names, list[int] | None]:
        """Return the names of lanes, or the levels where these are the lanes; and the levels."""
        levels = None
        if self._level:
            name, known = self._level, _LEVELS.get
            levels = [known(one[4].get(name) or b"", LEVEL) for one in run]
            if self._by_level:
                return levels, levels
        if self._header:
            name = self._header
            return [one[4].get(name) for one in run], levels
        return [one[2] for one in run], levels

    def _hashes_of(self, names: _Names) -> list[int]:
        return list(names) if self._by_level else list(map(hash_of, names))


def _joined(before: Part, part: Part) -> Part | None:
    """Return plain records that follow plain records, together; None where they are told apart."""
    if before.end != part.first:
        return None
    if before.names and part.names:
        if before.transaction != part.transaction or len(before.names) >= _JOINED_MAX:
            return None
        if before.transaction != NO_TRANSACTION or not isinstance(before.names, list):
            return None
        before.names.extend(part.names)
        return before._replace(end=part.end)
    if (
        not (before.hashes and part.hashes)
        or len(before.hashes) + len(part.hashes) > _JOINED_MAX
        or not (before.is_readable and part.is_readable)
        or not before.transaction == part.transaction == NO_TRANSACTION
    ):
        return None
    levels = None
    if before.levels is not None and part.levels is not None:
        levels = [*before.levels, *part.levels]
    offsets, hashes = before.offsets, before.hashes
    if not isinstance(offsets, list) or not isinstance(hashes, list):
        return None
    offsets += part.offsets
    hashes += part.hashes
    expiring = before.expiring + part.expiring
    return Part(before.first, part.end, offsets, hashes, levels, before.base, expiring=expiring)


class _Lying:
    """Batches as they lie in segments: those that lie near each other are read in one go."""

    def __init__(self, segments: Segments, batches: list[StoredBatch], wait: bool) -> None:
        self._segments, self._batches, self._wait = segments, batches, wait
        self._at = 0
        self._data = memoryview(b"")
        self._from, self._upto = 0, 0  # positions, and up to which batch they are of

    def pass_by(self) -> None:
        self._at += 1

    def next(self) -> memoryview:
        """Return the next batch. Raise NotAtOnce, OSError."""
        at = self._at
        if at >= self._upto:
            self._read(at)
        self._at += 1
        _, segment, position, length = self._batches[at]
        begin = position - self._from
        batch = self._data[begin : begin + length]
        self._segments.check(batch, segment, position)
        return batch

    def _read(self, first: int) -> None:
        batches = self._batches
        _, segment, begin, size = batches[first]
        end, upto = begin + size, first + 1
        while upto < len(batches):
            _, other, position, length = batches[upto]
            size += length
            if (
                other != segment
                or position < end
                or position + length - begin > min(_NEAR_BYTES, 2 * size)
            ):
                break
            end, upto = position + length, upto + 1
        data = memoryview(bytearray(end - begin))
        try:
            if not self._segments.read_into(data, segment, begin, self._wait):
                raise NotAtOnce
        except (OSError, EOFError):
            found = self._segments.batch(*batches[first][1:], wait=self._wait)
            if found is None:
                raise NotAtOnce from None
            data, upto = memoryview(found), first + 1
        self._data, self._from, self._upto = data, begin, upto
