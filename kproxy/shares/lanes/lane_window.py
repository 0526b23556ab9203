"""A window whose records are given by lane: whose turn it is, and not what comes first."""

from kproxy.shares.leases import Lease
from kproxy.shares.record_states import ACQUIRED
from kproxy.shares.taking import Limits, Range, Taking
from kproxy.shares.window import Acquired, Pending, Window
from kproxy.virtual.commands.shares import Cause, Run
from kproxy.virtual.rows.shares import COUNT_MAX, COUNT_SHIFT, RecordState, state_byte

_HOLE_MAX = 1 << 18  # offsets that are archived at once: some milliseconds of the fold
_TAKEN_MAX = 20_000
"""Records of a share partition that are held, wait for the log or for their backoff."""


class LaneWindow(Window):
    """The records of a share partition, with lanes or without."""

    __slots__ = ()

    def acquire_by_lane(
        self, member: str, limits: Limits, deadline: float, number: int, now: float
    ) -> Acquired:
        """Give a member records of the lanes whose turn it is; archive the holes that were seen."""
        assert self.lanes is not None
        taken = Taking(limits)
        self._archive_holes(taken)
        offsets = self._take_turns(limits, taken, now)
        offsets.sort()
        ranges = self._ranges(offsets, limits)
        for found in ranges:
            self._leases.add(Lease(found.first, found.last, member, deadline, number))
            if found.deliveries > 1:
                taken.redelivered = True
                again = state_byte(RecordState.AVAILABLE, found.deliveries)
                taken.runs.append(Run(found.first, found.last - found.first + 1, again))
        self._move_start()
        return Acquired(ranges, taken.runs, taken.redelivered, Pending(taken.archived, []))

    def _archive_holes(self, taken: Taking) -> None:
        while self.holes:
            first, end = self.holes.pop()
            first = max(first, self.start)
            upto = min(end, first + _HOLE_MAX)
            if first < end:
                self._archive_gap(first, upto, taken)
            if upto < end:
                self.holes.append((upto, end))
                return

    def _take_turns(self, limits: Limits, taken: Taking, now: float) -> list[int]:
        """Take records, and return their offsets in the order of turns."""
        lanes, states, start = self.lanes, self._states, self.start
        assert lanes is not None
        offsets: list[int] = []
        left = min(
            limits.records_max, limits.window_max - self._leases.held, _TAKEN_MAX - lanes.taken
        )
        while left > 0 and (offset := lanes.take(now)) >= 0:
            deliveries = states[offset - start] >> COUNT_SHIFT
            if deliveries:
                if deliveries >= limits.deliveries_max:
                    self._archive(offset, offset + 1, deliveries, Cause.DELIVERY_LIMIT, taken)
                    continue
                if not self._suits(deliveries, len(offsets), limits, taken):
                    lanes.put_back(offset)
                    break
            elif taken.throttled is not None:
                lanes.put_back(offset)
                break
            again = min(deliveries + 1, COUNT_MAX)
            states[offset - start] = ACQUIRED | again << COUNT_SHIFT
            offsets.append(offset)
            left -= 1
            if taken.throttled is not None:
                taken.piece_left -= 1
                if taken.piece_left <= 0:
                    break
        return offsets

    def _suits(self, deliveries: int, count: int, limits: Limits, taken: Taking) -> bool:
        """Return whether a record that was delivered already may be given beside what was taken.

        Poison is found by giving less each time.
        """
        if taken.throttled is not None:
            return taken.throttled == deliveries
        if not limits.throttles(deliveries):
            return True
        if count:
            return False
        taken.throttle(deliveries, limits.records_max)
        return True

    def _ranges(self, offsets: list[int], limits: Limits) -> list[Range]:
        """Return ascending offsets as ranges of records that were delivered equally often."""
        states, start = self._states, self.start
        found: list[Range] = []
        first = last = -2
        byte = -1
        for offset in offsets:
            if offset == last + 1 and states[offset - start] == byte:
                last = offset
                continue
            if first >= 0:
                found.append(Range(first, last, byte >> COUNT_SHIFT))
            first = last = offset
            byte = states[offset - start]
        if first >= 0:
            found.append(Range(first, last, byte >> COUNT_SHIFT))
        return found
