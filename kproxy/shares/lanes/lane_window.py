"""A window whose records are given by lane: whose turn it is, and not what comes first."""

from collections.abc import Sequence

from kproxy.shares.lanes.index import LaneIndex
from kproxy.shares.lanes.line import PASSES_MAX
from kproxy.shares.leases import Lease
from kproxy.shares.record_states import ACQUIRED, COUNT_BITS, IS_ACQUIRED, PENDING
from kproxy.shares.taking import Limits, Range, Taking
from kproxy.shares.window import ACCEPT, GAP, REJECT, RELEASE, Acquired, Pending, Window
from kproxy.virtual.commands.shares import Cause, Run
from kproxy.virtual.rows.shares import COUNT_MAX, COUNT_SHIFT, TERMINAL, RecordState, state_byte

_HOLE_MAX = 1 << 18  # offsets that are archived at once: some milliseconds of the fold
_RUNS_MAX = 1000  # runs of them, or records that were given too often: likewise
_TAKEN_MAX = 20_000
"""Records of a share partition that are held, wait for the log or for their backoff."""
_ACQUIRED_ONCE = ACQUIRED | 1 << COUNT_SHIFT
_ONCE = bytes((_ACQUIRED_ONCE,))
TOGETHER_MIN = 16
"""Records in a row that have a lease of their own, if they were taken together."""
_TO_PENDING = bytes(byte & COUNT_BITS | PENDING for byte in range(256))


def _becomes(state: RecordState) -> bytes:
    return bytes(byte & COUNT_BITS | state for byte in range(256))


_SAID = {
    GAP: (_becomes(RecordState.ARCHIVED), Cause.NONE),
    ACCEPT: (_becomes(RecordState.ACKNOWLEDGED), Cause.NONE),
    RELEASE: (_becomes(RecordState.AVAILABLE), Cause.NONE),
    REJECT: (_becomes(RecordState.ARCHIVED), Cause.REJECTED),
}
"""The states and causes that follow from what a member says of records."""


class LaneWindow(Window):
    """The records of a share partition, with lanes or without."""

    __slots__ = ()

    def acquire_by_lane(
        self, member: str, limits: Limits, deadline: float, number: int, now: float,
        now_ms: int = 0,
    ) -> Acquired:  # fmt: skip
        """Give a member records of the lanes whose turn it is.

        Archive the holes that were seen, and what has expired by `now_ms`.
        """
        assert self.lanes is not None
        taken = Taking(limits)
        self._archive_holes(taken)
        offsets, stretches = self._take_turns(limits, taken, now, now_ms)
        self._archive_expired(self.lanes, taken)
        fresh: list[Range] = []
        for first, end in stretches:
            fresh.append(Range(first, end - 1, 1))
            if end - first >= TOGETHER_MIN:
                self._leases.add(Lease(first, end - 1, member, deadline, number))
            else:
                self._scatter(range(first, end), member, deadline, number)
        offsets.sort()
        ranges = self._ranges(offsets)
        if offsets:
            self._scatter(offsets, member, deadline, number)
        if fresh:
            ranges = joined(sorted([*fresh, *ranges]))
        for first, last, deliveries in ranges:
            if deliveries > 1:
                taken.redelivered = True
                again = state_byte(RecordState.AVAILABLE, deliveries)
                taken.runs.append(Run(first, last - first + 1, again))
        self._move_start()
        return Acquired(ranges, taken.runs, taken.redelivered, Pending(taken.archived, []))

    def _scatter(self, offsets: Sequence[int], member: str, deadline: float, number: int) -> None:
        lease = Lease(offsets[0], offsets[-1], member, deadline, number)
        self._leases.scatter(offsets, lease)

    def acknowledge_scattered(
        self, member: str, offsets: Sequence[int], kind: int, deliveries_max: int
    ) -> Pending | None:
        """Do what a member says of ascending records that it holds, whatever lies between them.

        None: nothing is done, as they are to be looked at one by one.
        """
        said = _SAID.get(kind)
        if said is None or self.lanes is None:
            return None
        held = self._leases.take_scattered(member, offsets)
        if held is None:
            return None
        states, start = self._states, self.start
        places = [offset - start for offset in offsets]
        before = bytes([states[place] for place in places])
        archives = kind == RELEASE and max(before) >> COUNT_SHIFT >= deliveries_max
        if archives or before.translate(IS_ACQUIRED).count(1) != len(before):
            for lease, some in held:
                self._leases.scatter(some, lease)
            return None
        for place, byte in zip(places, before.translate(_TO_PENDING), strict=True):
            states[place] = byte
        self._pending += len(places)
        become, cause = said
        runs = runs_of(offsets, before.translate(become), cause)
        return Pending(runs, [*held])

    def settle(self, pending: Pending, backoff: Sequence[float], now: float) -> None:
        if self.lanes is None or not all(TERMINAL[byte] for _, _, byte, _ in pending.runs):
            super().settle(pending, backoff, now)
            return
        states, start, done = self._states, self.start, list[int]()
        for first, records, byte, _ in pending.runs:
            self._pending -= records
            if first < start:
                records, first = first + records - start, start
            if records == 1:
                states[first - start] = byte
                done.append(first)
            elif records > 1:
                states[first - start : first - start + records] = bytes((byte,)) * records
                self.lanes.done_run(first, first + records)
        self.lanes.done(done)
        self._move_start()

    def _archive_holes(self, taken: Taking) -> None:
        """Archive holes, the first ones first: a compacted queue has one behind each record."""
        left, done = _HOLE_MAX, 0
        for first, end in self.holes[:_RUNS_MAX]:
            first = max(first, self.start)
            upto = min(end, first + left)
            if first < upto:
                self._archive_gap(first, upto, taken, Cause.NONE)
                left -= upto - first
            if upto < end:
                self.holes[done] = upto, end
                break
            done += 1
        del self.holes[:done]

    def _archive_expired(self, lanes: LaneIndex, taken: Taking) -> None:
        """Archive what has left its lane as it has expired: its lane goes on meanwhile."""
        if not lanes.expired:
            return
        offsets = sorted(offset for offset in lanes.expired if offset >= self.start)
        lanes.expired.clear()
        states = [self._states[offset - self.start] for offset in offsets]
        for first, records, byte, _ in runs_of(offsets, states, Cause.EXPIRED):
            self._archive(first, first + records, byte >> COUNT_SHIFT, Cause.EXPIRED, taken)

    def _take_turns(
        self, limits: Limits, taken: Taking, now: float, now_ms: int
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Take records; return the offsets of those that had turns, and stretches of those in line.

        Lanes that wait for turns have their part before the line goes on.
        """
        lanes, states, start = self.lanes, self._states, self.start
        assert lanes is not None
        offsets: list[int] = []
        stretches: list[tuple[int, int]] = []
        lanes.passes = PASSES_MAX
        lanes.at(now)
        left = min(
            limits.records_max, limits.window_max - self._leases.held, _TAKEN_MAX - lanes.taken
        )
        turns = lanes.turns_before_line(left) if left > 0 else 0
        if turns:
            self._take_by_turn(turns, offsets, limits, taken, now, now_ms)
            left -= len(offsets)
        if left > 0 and taken.throttled is None and lanes.lined:
            whole = 0 if limits.exact else limits.records_max - len(offsets)
            stretches = lanes.take_line(left, whole)
            for first, end in stretches:
                states[first - start : end - start] = _ONCE * (end - first)
                left -= end - first
            if left > 0:
                self._take_by_turn(left, offsets, limits, taken, now, now_ms, len(stretches))
        return offsets, stretches

    def _take_by_turn(
        self, most: int, offsets: list[int], limits: Limits, taken: Taking, now: float, now_ms: int,
        before: int = 0,
    ) -> None:  # fmt: skip
        """Take so many records at most in the order of turns; `before`: something was taken."""
        lanes, states, start = self.lanes, self._states, self.start
        assert lanes is not None
        left = most
        while left > 0 and len(taken.archived) <= 2 * _RUNS_MAX:
            if taken.throttled is None:
                fresh = lanes.take_fresh(left, states, start, now_ms)
                for offset in fresh:
                    states[offset - start] = _ACQUIRED_ONCE
                offsets += fresh
                left -= len(fresh)
            if left <= 0 or (offset := lanes.take(now, now_ms)) < 0:
                break
            deliveries = states[offset - start] >> COUNT_SHIFT
            if deliveries:
                if deliveries >= limits.deliveries_max:
                    self._archive(offset, offset + 1, deliveries, Cause.DELIVERY_LIMIT, taken)
                    continue
                if not self._suits(deliveries, len(offsets) + before, limits, taken):
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

    def _ranges(self, offsets: list[int]) -> list[Range]:
        """Return ascending offsets as ranges of records that were delivered equally often."""
        states, start = self._states, self.start
        found: list[Range] = []
        first = last = byte = -2
        for offset in offsets:
            state = states[offset - start]
            if offset == last + 1 and state == byte:
                last = offset
                continue
            if first >= 0:
                found.append(Range(first, last, byte >> COUNT_SHIFT))
            first = last = offset
            byte = state
        if first >= 0:
            found.append(Range(first, last, byte >> COUNT_SHIFT))
        return found


def joined(ranges: list[Range]) -> list[Range]:
    """Return ascending ranges, with those as one that follow each other and are alike."""
    found = ranges[:1]
    for one in ranges[1:]:
        before = found[-1]
        if before.last + 1 == one.first and before.deliveries == one.deliveries:
            found[-1] = before._replace(last=one.last)
        else:
            found.append(one)
    return found


def runs_of(offsets: Sequence[int], states: Sequence[int], cause: Cause) -> list[Run]:
    """Return ascending records that become these states as runs."""
    found: list[Run] = []
    first = end = -1
    byte = -1
    for offset, state in zip(offsets, states, strict=True):
        if offset == end and state == byte:
            end += 1
            continue
        if first >= 0:
            found.append(Run(first, end - first, byte, cause))
        first, end, byte = offset, offset + 1, state
    if first >= 0:
        found.append(Run(first, end - first, byte, cause))
    return found
