"""The states of a share partition's records, available, acquired or done, in memory.

Pure: no clock, no log. Times are seconds that the caller gives. Changes that must survive come out
as `Run`s for a SHARE; until that is durable its records are *pending*, and nobody can touch them.

`RecordStates` has the states of the window, from `start` on.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import groupby
from math import inf
from typing import NamedTuple

from kproxy.shares.leases import Lease, Leases, Scattered
from kproxy.shares.record_states import (
    ACQUIRED,
    COUNT_BITS,
    DELAYED,
    IS_ACQUIRED,
    IS_AVAILABLE,
    PENDING,
    TO_ACQUIRED,
    TO_DELAYED,
    RecordStates,
)
from kproxy.shares.taking import EXPIRED, Limits, Range, Stretch, Taking
from kproxy.virtual.commands.shares import Cause, Run
from kproxy.virtual.rows.shares import (
    COUNT_MAX,
    COUNT_SHIFT,
    STATE_BITS,
    RecordState,
    state_byte,
)

_GAP_MAX = 1 << 18  # archived at once beyond the end: some milliseconds of the fold
_RESUMED_MAX = 2000  # stretches at once: some milliseconds

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""Types of acknowledgement."""


class Pending(NamedTuple):
    """Records on their way into the log, and who had them: `settle` or `take_back`."""

    runs: list[Run]
    held: list[Lease | Scattered]


class Acquired(NamedTuple):
    """`ranges` are given to the member; `runs` are to be logged, `redelivered` before that.

    `archived`: those of them that nobody is given any more.
    """

    ranges: list[Range]
    runs: list[Run]
    redelivered: bool
    archived: Pending


WINDOW_MAX = 5000
"""Records in a window, whatever a batch holds: what is done with all of them takes that long."""


class InvalidState(Exception):
    """An acknowledgement of what the member does not hold. The message says so as Kafka does."""


class BeyondEnd(Exception):
    """An acknowledgement of what nobody was given yet; likewise."""


class Window(RecordStates):
    """The records of one share partition between its start and its end."""

    __slots__ = ("_delayed", "_leases", "_pending", "_pieces")

    def __init__(self, start: int, states: bytearray) -> None:
        super().__init__(start, states)
        self._leases = Leases()
        self._delayed: list[tuple[float, int, int]] = []  # until when, first, last
        self._pending = 0
        self._pieces = (0, 0, 0)  # the pieces that are given: up to which offset, after how many
        # deliveries, and of how many records they are pieces
        self._move_start()

    @property
    def idle(self) -> bool:
        """Whether the rows say all there is to say."""
        return not (self._leases or self._delayed or self._pending)

    @property
    def held(self) -> int:
        """The number of records that members hold."""
        return self._leases.held

    def has_room(self, window_max: int) -> bool:
        """Return whether records from `end` on may be acquired."""
        return len(self._states) < window_max

    # -- acquiring

    def acquire(
        self, member: str, stretches: Iterable[Stretch], limits: Limits, deadline: float,
        number: int = 0,
    ) -> Acquired:  # fmt: skip
        """Give a member what is available of some stretches, ascending; holes are archived.

        An offset outside all of them stays as it is: nobody has looked at what lies there.
        """
        taken = Taking(limits)
        for first, last, batch in stretches:
            first = max(first, self.start)
            if batch is None or batch is EXPIRED:
                cause = Cause.NONE if batch is None else Cause.EXPIRED
                goes_on = self._archive_gap(first, last + 1, taken, cause)
            else:
                goes_on = not taken.full and self._take_batch(first, last, taken)
            if not goes_on:
                break
        for found in taken.ranges:
            self._leases.add(Lease(found.first, found.last, member, deadline, number))
        self._move_start()
        return Acquired(taken.ranges, taken.runs, taken.redelivered, Pending(taken.archived, []))

    def _archive_gap(self, first: int, end: int, taken: Taking, cause: Cause) -> bool:
        """Return whether all of it is archived: a hole may be of a billion offsets."""
        if first >= end:
            return True
        most = self.end
        if self.has_room(taken.limits.window_max):
            most = max(first, self.end) + _GAP_MAX
        if first >= most:
            return False
        upto = min(end, most)
        self._grow(upto)
        for at, behind, byte in list(self._runs_in(first, upto)):
            if IS_AVAILABLE[byte]:
                self._archive(at, behind, byte >> COUNT_SHIFT, cause, taken)
        return upto == end

    def _archive(self, first: int, end: int, deliveries: int, cause: Cause, taken: Taking) -> None:
        """Archive records once the log has it: the start does not move over what may come back."""
        self._put(first, end, PENDING | deliveries << COUNT_SHIFT)
        self._pending += end - first
        run = Run(first, end - first, state_byte(RecordState.ARCHIVED, deliveries), cause)
        taken.runs.append(run)
        taken.archived.append(run)

    def _take_batch(self, first: int, last: int, taken: Taking) -> bool:
        """Take what is available of a batch; whether to go on with the next one."""
        limits = taken.limits
        for at, end, byte in list(self._runs_in(first, min(last + 1, self.end))):
            if not IS_AVAILABLE[byte]:
                continue
            deliveries = byte >> COUNT_SHIFT
            if not taken.goes_on(at, deliveries + 1):
                return False
            if deliveries >= limits.deliveries_max:
                self._archive(at, end, deliveries, Cause.DELIVERY_LIMIT, taken)
                continue
            if limits.throttles(deliveries):  # poison is found by giving less each time
                if not self._take_throttled(at, end, byte, last - first + 1, taken):
                    return False
                continue
            if taken.throttled is not None:
                return False
            if limits.exact and end - at >= taken.left:
                self._take(at, at + taken.left, byte, taken)
                return False
            self._take(at, end, byte, taken)
        fresh = max(first, self.end)
        if fresh > last:
            return True
        if taken.throttled is not None or not taken.goes_on(fresh, 1):
            return False
        if not self.has_room(limits.window_max):
            return False
        end = min(last + 1, self.start + max(WINDOW_MAX, limits.window_max))
        if limits.exact:
            end = min(end, fresh + taken.left, self.start + limits.window_max)
        self._grow(end)
        self._take(fresh, end, 0, taken)
        return end == last + 1

    def _take_throttled(self, first: int, end: int, byte: int, size: int, taken: Taking) -> bool:
        """Take a piece of what was delivered often already, and nothing else beside it; whether
        to go on. `size`: of the batch."""
        deliveries = byte >> COUNT_SHIFT
        if taken.throttled is None:
            if taken.count:
                return False
            upto, after, whole = self._pieces
            if first >= upto or after != deliveries:
                alike = next(self._runs_in(first, self.end))
                whole = max(size, alike[1] - first)
                self._pieces = (max(alike[1], first + size), deliveries, whole)
            taken.throttle(deliveries, whole)
        elif taken.throttled != deliveries:
            return False
        end = min(end, first + taken.piece_left, first + taken.left if taken.limits.exact else end)
        self._take(first, end, byte, taken)
        return taken.piece_left > 0 and not taken.full

    def _take(self, first: int, end: int, byte: int, taken: Taking) -> None:
        deliveries = min((byte >> COUNT_SHIFT) + 1, COUNT_MAX)
        self._put(first, end, ACQUIRED | deliveries << COUNT_SHIFT)
        taken.take(first, end - 1, deliveries)
        if deliveries > 1:
            taken.redelivered = True
            again = state_byte(RecordState.AVAILABLE, deliveries)
            taken.runs.append(Run(first, end - first, again))

    # -- acknowledging

    def check(self, member: str, first: int, last: int) -> None:
        """Check that a member may acknowledge records. Raise InvalidState, BeyondEnd. Records
        before the start may always be acknowledged."""
        if last >= self.start >= self.end:
            raise InvalidState(
                "Batch record not found. The request batch offsets are not found in the cache."
            )
        if last >= self.end:
            which = "first" if first >= self.end else "last"
            raise BeyondEnd(
                f"Batch record not found. The {which} offset in request is past acquired records."
            )
        first = max(first, self.start)
        if first > last:
            return
        if any(holder != member for holder in self._leases.holders(first, last)):
            raise InvalidState("Member is not the owner of batch record")
        part = self._states[first - self.start : last + 1 - self.start]
        if part.translate(IS_ACQUIRED).count(1) != len(part):
            raise InvalidState("The offset cannot be acknowledged. The offset is not acquired.")

    def acknowledge(
        self, first: int, last: int, types: Sequence[int], deliveries_max: int,
        renewals: list[tuple[int, int]],
    ) -> Pending:  # fmt: skip
        """Do what a member says of records that it holds: one type, or one for each. After `check`.

        Renewed ones are put into `renewals`, for `renew`.
        """
        pending = Pending([], [])
        if types.count(types[0]) == len(types):
            self._say(first, last, types[0], deliveries_max, renewals, pending)
            return pending
        at = first
        for kind, some in groupby(types):
            end = at + len(list(some))
            self._say(at, end - 1, kind, deliveries_max, renewals, pending)
            at = end
        return pending

    def _say(
        self, first: int, last: int, kind: int, deliveries_max: int,
        renewals: list[tuple[int, int]], pending: Pending,
    ) -> None:  # fmt: skip
        first = max(first, self.start)
        if first > last:
            return
        if kind != RENEW:
            pending.held.extend(self._leases.cut(first, last))
            self._decide(first, last, kind, deliveries_max, pending)
        elif renewals and renewals[-1][1] + 1 == first:
            renewals[-1] = renewals[-1][0], last
        else:
            renewals.append((first, last))

    def renew(self, first: int, last: int, deadline: float) -> None:
        """Let who holds records hold them until another time."""
        for part in self._leases.cut(max(first, self.start), last):
            part.deadline = deadline
            self._leases.add(part)

    def _decide(
        self, first: int, last: int, kind: int, deliveries_max: int, pending: Pending
    ) -> None:
        for at, end, byte in list(self._runs_in(first, last + 1)):
            deliveries = byte >> COUNT_SHIFT
            state, cause = RecordState.ARCHIVED, Cause.NONE
            if kind == ACCEPT:
                state = RecordState.ACKNOWLEDGED
            elif kind == REJECT:
                cause = Cause.REJECTED
            elif kind == RELEASE:
                if deliveries < deliveries_max:
                    state = RecordState.AVAILABLE
                else:
                    cause = Cause.DELIVERY_LIMIT
            pending.runs.append(Run(at, end - at, state_byte(state, deliveries), cause))
            self._put(at, end, byte & COUNT_BITS | PENDING)
            self._pending += end - at

    def settle(self, pending: Pending, backoff: Sequence[float], now: float) -> None:
        """Settle what is in the log. `backoff`: seconds to the next delivery, after each number."""
        for first, records, byte, _ in pending.runs:
            self._pending -= records
            first, end = max(first, self.start), first + records
            if first >= end:
                continue
            deliveries = byte >> COUNT_SHIFT
            if not (IS_AVAILABLE[byte] and backoff and deliveries):
                self._put(first, end, byte)
                continue
            self._put(first, end, byte | DELAYED)
            until = now + backoff[min(deliveries, len(backoff)) - 1]
            heappush(self._delayed, (until, first, end - 1))
        self._move_start()

    def take_back(self, pending: Pending, until: float) -> None:
        """Take back what is not in the log: the holders hold their records as long as before.

        Records that nobody held are looked at again from `until` on.
        """
        for first, records, _, _ in pending.runs:
            self._pending -= records
            first, end = max(first, self.start), first + records
            if not pending.held and first < end:
                self._translate(first, end, TO_DELAYED)
                heappush(self._delayed, (until, first, end - 1))
        for lease in pending.held:
            if isinstance(lease, Scattered):
                offsets = self._translate_each(lease.offsets, TO_ACQUIRED)
                self._leases.scatter(offsets, lease.lease)
                continue
            first = max(lease.first, self.start)
            if first <= lease.last:
                self._translate(first, lease.last + 1, TO_ACQUIRED)
                self._leases.add(lease.part(first, lease.last))

    # -- giving back

    def give_back(self, ranges: Sequence[Range]) -> None:
        """Give back records that were not given after all: a further delivery is not in the log.

        Nor is it counted: else they would be given up some time without being given. Records that
        were taken from the member meanwhile are others' by now.
        """
        for first, last, deliveries in ranges:
            held = ACQUIRED | deliveries << COUNT_SHIFT
            for at, end, byte in list(self._runs_in(max(first, self.start), last + 1)):
                if byte == held:
                    self._leases.cut(at, end - 1)
                    self._put(at, end, deliveries - 1 << COUNT_SHIFT)

    def expire(self, now: float, deliveries_max: int) -> Pending:
        """Take from members what they hold for too long."""
        late = self._leases.take(lambda lease: lease.deadline <= now)
        return self._release(late, deliveries_max)

    def release(self, member: str, deliveries_max: int, before: float = inf) -> Pending:
        """Take from a member all that it got by acquisitions with a number below `before`."""
        mine = self._leases.take(lambda lease: lease.member == member and lease.number < before)
        return self._release(mine, deliveries_max)

    def _release(self, leases: list[Lease], deliveries_max: int) -> Pending:
        pending = Pending([], [*leases])
        for lease in leases:
            self._decide(lease.first, lease.last, RELEASE, deliveries_max, pending)
        return pending

    def resume(self, now: float) -> bool:
        """Resume records whose time has come, so many at once; return whether there are any."""
        any_due = self.lanes is not None and self.lanes.resume(now)
        for _ in range(_RESUMED_MAX):
            if self.delayed_until > now:
                break
            _, first, last = heappop(self._delayed)
            first = max(first, self.start)
            for at, end, byte in list(self._runs_in(first, min(last + 1, self.end))):
                if byte & STATE_BITS == DELAYED:
                    self._put(at, end, byte & COUNT_BITS)
                    any_due = True
        return any_due

    @property
    def delayed_until(self) -> float:
        """The time when the first resting record may be given again; infinity: none rests."""
        return self._delayed[0][0] if self._delayed else inf

    @property
    def due(self) -> float:
        """The time when there is something to expire or to resume; infinity: never."""
        due = min(self.delayed_until, self._leases.due)
        return due if self.lanes is None else min(due, self.lanes.due)

    def trim(self, log_start: int) -> None:
        """Drop what was before the log's later beginning: it is nobody's any more."""
        if log_start <= self.start:
            return
        if self.lanes is not None:
            self.lanes.trim(log_start, self._taken_before(log_start))
        self._leases.trim(log_start)
        del self._states[: log_start - self.start]
        self.start = log_start
        self._move_start()
