"""The states of a share partition's records from its start on, in memory: one byte an offset.

The bytes are as the rows have them. Two more states are only here: PENDING, while what becomes of a
record is on its way into the log, and DELAYED, where a record is not given again yet.
"""

from collections.abc import Iterator
from itertools import groupby

from kproxy.virtual.rows.shares import COUNT_SHIFT, STATE_BITS, TERMINAL, RecordState

ACQUIRED, PENDING, DELAYED = int(RecordState.ACQUIRED), 5, 6
COUNT_BITS = 0xFF ^ STATE_BITS
IS_AVAILABLE = bytes(not byte & STATE_BITS for byte in range(256))
IS_ACQUIRED = bytes(byte & STATE_BITS == ACQUIRED for byte in range(256))
TO_ACQUIRED = bytes(byte & COUNT_BITS | ACQUIRED for byte in range(256))
TO_DELAYED = bytes(byte & COUNT_BITS | DELAYED for byte in range(256))


class RecordStates:
    """The states of the records between a start and an end."""

    __slots__ = ("_states", "start")

    def __init__(self, start: int, states: bytearray) -> None:
        self.start = start
        self._states = states

    @property
    def end(self) -> int:
        """The offset behind all that was ever delivered."""
        return self.start + len(self._states)

    def counts(self) -> dict[int, int]:
        """Return how many records in the window were delivered so often, and are not done."""
        found: dict[int, int] = {}
        for byte in set(self._states):
            if not TERMINAL[byte]:
                deliveries = byte >> COUNT_SHIFT
                found[deliveries] = found.get(deliveries, 0) + self._states.count(byte)
        return found

    def next_available(self, offset: int = 0) -> int:
        """Return the first offset, from this one on, that somebody may be given; `end`, or what
        comes behind it, is always one."""
        if offset >= self.end:
            return offset
        found = self._states.translate(IS_AVAILABLE).find(1, max(0, offset - self.start))
        return self.end if found < 0 else self.start + found

    def _runs_in(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first, end, byte) of runs that are the same; nothing outside the window."""
        if first >= end:
            return
        part = bytes(self._states[first - self.start : end - self.start])
        if part.count(part[0]) == len(part):
            yield first, first + len(part), part[0]
            return
        at = first
        for byte, some in groupby(part):
            count = sum(1 for _ in some)
            yield at, at + count, byte
            at += count

    def _put(self, first: int, end: int, byte: int) -> None:
        self._states[first - self.start : end - self.start] = bytes((byte,)) * (end - first)

    def _translate(self, first: int, end: int, table: bytes) -> None:
        part = slice(first - self.start, end - self.start)
        self._states[part] = self._states[part].translate(table)

    def _grow(self, end: int) -> None:
        if end > self.end:
            self._states.extend(bytes(end - self.end))

    def _move_start(self) -> None:
        """Move the start over what is done."""
        states = self._states
        if states and TERMINAL[states[0]]:
            found = states.translate(TERMINAL).find(0)
            done = len(states) if found < 0 else found
            del states[:done]
            self.start += done
