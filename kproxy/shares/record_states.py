"""The states of a share partition's records from its start on, in memory: one byte an offset.

The bytes are as the rows have them. Two more states are only here: PENDING, while what becomes of a
record is on its way into the log, and DELAYED, where a record is not given again yet.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from kproxy.shares.lanes.index import LaneIndex
from kproxy.virtual.rows.shares import COUNT_MAX, COUNT_SHIFT, STATE_BITS, TERMINAL, RecordState

ACQUIRED, PENDING, DELAYED = int(RecordState.ACQUIRED), 5, 6
_LOOKED_AT = 4096  # states at a time
COUNT_BITS = 0xFF ^ STATE_BITS
IS_AVAILABLE = bytes(not byte & STATE_BITS for byte in range(256))
IS_ACQUIRED = bytes(byte & STATE_BITS == ACQUIRED for byte in range(256))
IS_TAKEN = bytes(byte & STATE_BITS in (ACQUIRED, PENDING, DELAYED) for byte in range(256))
TO_ACQUIRED = bytes(byte & COUNT_BITS | ACQUIRED for byte in range(256))
TO_DELAYED = bytes(byte & COUNT_BITS | DELAYED for byte in range(256))


_DELIVERED = bytes(0 if TERMINAL[byte] else byte >> COUNT_SHIFT for byte in range(256))


def delivered(states: bytearray) -> dict[int, int]:
    """Return how many records were delivered so often, and are not done."""
    counts = states.translate(_DELIVERED)
    return {number: found for number in range(1, COUNT_MAX + 1) if (found := counts.count(number))}


class RecordStates:
    """The states of the records between a start and an end.

    With lanes it ends where these do, or later. They hear of what becomes of records. `holes`:
    stretches where no lane has anything, to be archived.
    """

    __slots__ = ("_states", "holes", "lanes", "start")

    def __init__(self, start: int, states: bytearray) -> None:
        self.start = start
        self._states = states
        self.lanes: LaneIndex | None = None
        self.holes: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        """The offset behind all that was ever delivered."""
        return self.start + len(self._states)

    def counts(self) -> dict[int, int]:
        """Return how many records were delivered so often, and are not done."""
        return delivered(self._states)

    def next_available(self, offset: int = 0) -> int:
        """Return the first offset, from this one on, that somebody may be given; `end`, or what
        comes behind it, is always one."""
        if offset >= self.end:
            return offset
        states, at = self._states, max(0, offset - self.start)
        while at < len(states):  # a window that lanes have left may be very long
            found = states[at : at + _LOOKED_AT].translate(IS_AVAILABLE).find(1)
            if found >= 0:
                return self.start + at + found
            at += _LOOKED_AT
        return self.end

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
        if self.lanes is not None:
            self._tell(self.lanes, first, end, byte)

    def _tell(self, lanes: LaneIndex, first: int, end: int, byte: int) -> None:
        """Tell the lanes what became of records that were taken."""
        if TERMINAL[byte]:
            lanes.done(range(first, end))
        elif IS_AVAILABLE[byte]:
            for at, behind in lanes.returned(first, end):
                if at in lanes.expiring:  # the log did not take that it has expired
                    lanes.expired.extend(range(at, behind))
                else:
                    self.holes.append((at, behind))

    def _translate(self, first: int, end: int, table: bytes) -> None:
        part = slice(first - self.start, end - self.start)
        self._states[part] = self._states[part].translate(table)

    def _translate_each(self, offsets: Sequence[int], table: bytes) -> list[int]:
        """Translate the states of records; return those of them that are there still."""
        states, start = self._states, self.start
        found = [offset for offset in offsets if offset >= start]
        for offset in found:
            states[offset - start] = table[states[offset - start]]
        return found

    def _grow(self, end: int) -> None:
        if end > self.end:
            self._states.extend(bytes(end - self.end))

    def _move_start(self) -> None:
        """Move the start over what is done."""
        states = self._states
        if states and TERMINAL[states[0]]:
            done = _LOOKED_AT
            while (found := states[done - _LOOKED_AT : done].translate(TERMINAL).find(0)) < 0:
                if done >= len(states):
                    break
                done += _LOOKED_AT
            done = min(done, len(states)) if found < 0 else done - _LOOKED_AT + found
            del states[:done]
            self.start += done
        if self.lanes is not None:
            self.lanes.trim(self.start, ())

    def _taken_before(self, offset: int) -> list[int]:
        """Return the records before an offset that are neither available nor done."""
        taken = self._states[: offset - self.start].translate(IS_TAKEN)
        found, at = [], -1
        while (at := taken.find(1, at + 1)) >= 0:
            found.append(self.start + at)
        return found

    def see(self, first: int, end: int) -> bytes:
        """Return the states of records that lanes look at now, the first time."""
        self._grow(end)
        return bytes(self._states[first - self.start : end - self.start])

    def leave_lanes(self) -> None:
        """Go on without lanes: what was never delivered is looked for again."""
        self.lanes = None
        self.holes.clear()
        del self._states[len(self._states.rstrip(b"\0")) :]
