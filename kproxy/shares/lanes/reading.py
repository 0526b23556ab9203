"""A reader of the lanes of records in their batches, some at a time, mostly on a thread."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import mmh3

from kproxy.metadata.lane_settings import LaneRules
from kproxy.protocol.batch import BatchHeader, read_header
from kproxy.protocol.record_runs import body_runs
from kproxy.protocol.records import Body
from kproxy.protocol.varint import Malformed
from kproxy.shares.taking import Stretch
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import NO_TRANSACTION, transaction_of

_RUN_MAX = 4096  # offsets of a batch that cannot be read, told at a time
_WORD = (1 << 64) - 1
LEVEL = 4
"""The level of a record that says none."""
_LEVELS = {b"%d" % level: level for level in range(10)}


def hash_of(value: bytes | None) -> int:
    """Return the hash of a lane. Two of one hash are one lane, which breaks no promise."""
    found: int = mmh3.hash64(value or b"")[0] & _WORD
    return found


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
    is_readable: bool = True


class NotAtOnce(Exception):
    """A batch is not in memory, or packed: it is to be read on a thread."""


class LaneReader:
    """A reader of lanes by a group's rules. It keeps a batch of which not all was told."""

    def __init__(self, rules: LaneRules) -> None:
        self._header = rules.header.encode()
        self._level = rules.priority.encode()
        self._by_level = rules.by_level
        names = frozenset(filter(None, (self._header, self._level)))
        self.names: bool | frozenset[bytes] = names or False
        """The headers that are looked at; False: none."""
        self._open: tuple[int, Iterator[Part]] | None = None

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

        Without `wait`: only what is in memory. Raise NotAtOnce, OSError, EOFError.
        """
        found: list[Part] = []
        left = records_max
        for first, last, batch in stretches:
            if batch is None:
                found.append(Part(first, last + 1))
                continue
            parts = self._parts_of(segments, batch[0], last, batch[1:], wait)
            for part in parts:
                found.append(part)
                left -= part.end - part.first
                if left <= 0 and part.end <= last:
                    self._open = batch[0], parts
                    return found
            if left <= 0:
                break
        return found

    def _parts_of(
        self, segments: Segments, base: int, last: int, place: tuple[int, int, int], wait: bool
    ) -> Iterator[Part]:
        kept, self._open = self._open, None
        if kept is not None and kept[0] == base:
            return kept[1]
        segment, position, length = place
        data = memoryview(bytearray(length))
        if not segments.read_into(data, segment, position, wait):
            raise NotAtOnce
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
            for run in body_runs(head, data, headers=self.names):
                offsets = [base + one[0] for one in run]
                end = offsets[-1] + 1
                hashes, levels = self._lanes_of(run)
                yield Part(told, end, offsets, hashes, levels, base, transaction)
                told = end
            if told <= last:
                yield Part(told, last + 1, base=base, transaction=transaction)
        except Malformed:
            while told <= last:
                end = min(last + 1, told + _RUN_MAX)
                levels = [LEVEL] * (end - told) if self._level else None
                hashes = [hash_of(b"")] * (end - told)
                yield Part(told, end, range(told, end), hashes, levels, base, transaction, False)
                told = end

    def _lanes_of(self, run: list[Body]) -> tuple[list[int], list[int] | None]:
        levels = None
        if self._level:
            name, known = self._level, _LEVELS.get
            levels = [known(one[4].get(name) or b"", LEVEL) for one in run]
            if self._by_level:
                return levels, levels
        hashed: Callable[..., tuple[int, int]] = mmh3.hash64
        if self._header:
            name = self._header
            return [hashed(one[4].get(name) or b"")[0] & _WORD for one in run], levels
        return [hashed(one[2] or b"")[0] & _WORD for one in run], levels
