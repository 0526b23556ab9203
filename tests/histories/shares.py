"""The promises of a share group, and the deliveries of a history that break them.

The delivery count says whose acknowledgement counts: a member that was stopped, or whose lock timed
out, acknowledges an earlier delivery. It is answered with success where the record is done already.
Therefore an acknowledgement counts only where no later delivery was noted before it.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

from tests.histories.anomalies import Found, Rules
from tests.histories.operations import OK, Operation
from tests.histories.records import Records, shown

Record = tuple[str, int, int]
"""Queue, partition, offset."""
REFUSED = "INVALID_RECORD_STATE"
REJECTED, DELIVERY_LIMIT = "rejected", "delivery limit"
Said = Iterator[tuple[str, str]]
"""Kinds of anomalies, and what was seen of each."""


@dataclass(slots=True, eq=False)
class Delivery:
    """A record in a member's hands."""

    member: str
    born: float
    """The time at which its member began."""
    died: float
    """The time of the last event of its member."""
    at: float
    count: int
    value: str
    said: str = ""
    said_at: float = inf
    answered_at: float = inf
    error: str = ""

    @property
    def is_done(self) -> bool:
        return self.answered_at < inf and not self.error

    @property
    def may_be_done(self) -> bool:
        """Its acknowledgement may have been taken, though no answer said so."""
        return bool(self.said) and self.error != REFUSED

    @property
    def is_accepted(self) -> bool:
        return self.is_done and self.said == "accept"


class Letter(NamedTuple):
    """A dead letter: why, and after how many deliveries."""

    value: str
    cause: str
    times: int


class Shares:
    """All deliveries and dead letters of all records."""

    def __init__(self, operations: list[Operation]) -> None:
        self.deliveries: dict[Record, list[Delivery]] = {}
        self.letters: dict[Record, list[Letter]] = {}
        self.disturbed: list[tuple[float, float]] = []
        self.answered = 0
        born: dict[str, float] = {}
        died: dict[str, float] = {}
        for op in operations:
            born.setdefault(op.process, op.invoked)
            last = op.invoked if op.ended == inf else op.ended
            died[op.process] = max(died.get(op.process, 0), last)
        hands: dict[tuple[str, Record], Delivery] = {}
        for op in operations:
            if op.f == "acquire" and op.outcome == OK:
                for queue, partition, offset, value, count in op.value:
                    ends = born[op.process], died[op.process]
                    given = Delivery(op.process, *ends, op.ended, count, value)
                    record = queue, partition, offset
                    hands[op.process, record] = given
                    self.deliveries.setdefault(record, []).append(given)
            elif op.f == "acknowledge":
                self._acknowledge(op, hands)
            elif op.f == "letters":
                self.letters = {}
                for queue, partition, offset, *letter in op.value:
                    self.letters.setdefault((queue, partition, offset), []).append(Letter(*letter))
            elif op.f == "disturb":
                self.disturbed.append((op.invoked, op.ended))

    def _acknowledge(self, op: Operation, hands: dict[tuple[str, Record], Delivery]) -> None:
        for queue, partition, offset, said in op.asked:
            one = hands[op.process, (queue, partition, offset)]
            one.said, one.said_at = said, op.invoked
        if op.outcome != OK:
            return
        for queue, partition, offset, error in op.value:
            one = hands[op.process, (queue, partition, offset)]
            one.answered_at, one.error = op.ended, error or ""
            self.answered += 1

    def was_calm(self, first: float, last: float) -> bool:
        """Whether no fault was under way between two times."""
        return not any(one[0] <= last and first <= one[1] for one in self.disturbed)


def check_shares(operations: list[Operation], records: Records, rules: Rules, found: Found) -> None:
    """Check each record that was delivered or is a dead letter, and each that should be."""
    shares = Shares(operations)
    if not shares.deliveries and not shares.letters:
        return
    written: dict[Record, tuple[str, float]] = {}
    for some in records.sends:
        for one in some:
            at = records.place(one)
            if at is not None and one.op.outcome == OK:
                written[one.queue, *at] = one.value, one.op.invoked
    judge = Judge(shares, rules)
    for record in (shares.deliveries.keys() | shares.letters.keys()) - written.keys():
        found.add("never sent", shown(*record))
    for record, (value, sent_at) in written.items():
        for kind, said in judge.check(record, value, sent_at):
            found.add(kind, f"{shown(*record)}, {value!r}, {said}")
    for kind, said in judge.accepted_twice():
        found.add(kind, said)


class Judge:
    """The promises, for one record each."""

    def __init__(self, shares: Shares, rules: Rules) -> None:
        self._shares, self._rules = shares, rules

    def check(self, record: Record, value: str, sent_at: float) -> Said:
        deliveries = self._shares.deliveries.get(record, [])
        letters = self._shares.letters.get(record, [])
        yield from self._of_counts(deliveries, value)
        yield from self._of_hands(deliveries, sent_at)
        yield from self._after_answers(deliveries)
        yield from self._of_letters(deliveries, letters, value)
        yield from self._of_ends(deliveries, letters)

    def _of_counts(self, deliveries: list[Delivery], value: str) -> Said:
        """Check each delivery by itself, and against the others."""
        counts = Counter(one.count for one in deliveries)
        for count, times in counts.items():
            if not 1 <= count <= self._rules.limit:
                yield "wrong count", f"given with count {count}"
            if times > 1 and count > 1:
                yield "wrong count", f"given {times} times with count {count}"
        for one in deliveries:
            if one.value != value:
                yield "inconsistent offsets", f"given as {one.value!r}"
            for later in deliveries:
                same = later.count == 1 and one.count == 1  # a first delivery is not in the log
                if later.born > one.at and later.count <= one.count and not same:
                    yield "wrong count", f"given with count {later.count} after {one.count}"

    def _of_hands(self, deliveries: list[Delivery], sent_at: float) -> Said:
        """Check that a living member that said nothing holds a record for its lock's time.

        A member may have been given it long before it noted that: at the earliest when it was sent.
        """
        in_order = sorted(deliveries, key=lambda one: (one.count, one.at))
        for one, other in pairwise(in_order):
            since = max(sent_at, one.born)
            alive = one.at < other.at < one.died and one.member != other.member
            silent = one.said != "release" or one.said_at > other.at
            in_time = other.at < since + self._rules.lock_ns
            if alive and silent and in_time and self._shares.was_calm(since, other.at):
                yield "held by two", f"{one.member} had it, then {other.member} was given it"

    def _after_answers(self, deliveries: list[Delivery]) -> Said:
        """Check that an acknowledgement with success is final."""
        for one in deliveries:
            others = [other for other in deliveries if other is not one]
            if not one.is_done or any(
                other.count >= one.count and other.at < one.answered_at for other in others
            ):
                continue
            for other in others:
                if other.member == one.member and other.count > one.count:
                    continue  # its time ran out, and it was given it anew before it said so
                newborn = other.born > one.answered_at
                if one.said == "release":
                    if newborn and other.count <= one.count:
                        said = f"released at {one.count}, then given with {other.count}"
                        yield "wrong count", said
                elif newborn or one.count < other.count < self._rules.limit:
                    said = f"{one.said} at {one.count} was answered, then given with {other.count}"
                    yield "given after its end", said

    def _of_letters(self, deliveries: list[Delivery], letters: list[Letter], value: str) -> Said:
        """Check that each dead letter has a reason."""
        if len(letters) > 1:
            yield "wrong letter", f"{len(letters)} dead letters"
        for letter in letters:
            if letter.value != value:
                yield "wrong letter", f"its dead letter is of {letter.value!r}"
            if letter.cause == REJECTED:
                if not any(
                    one.said == "reject" and one.may_be_done and one.count == letter.times
                    for one in deliveries
                ):
                    yield "wrong letter", f"a dead letter, nobody rejected it at {letter.times}"
            elif letter.times != self._rules.limit:
                yield "wrong letter", f"given up after {letter.times}"

    def _of_ends(self, deliveries: list[Delivery], letters: list[Letter]) -> Said:
        """Check that each record ends once: accepted, or as a dead letter."""
        limit = self._rules.limit
        last = max(deliveries, key=lambda one: (one.count, one.at), default=None)
        if last is not None and last.is_accepted:
            for letter in letters:
                # Its time ran out at the last delivery, before it said so: it is done.
                if (letter.cause, letter.times, last.count) != (DELIVERY_LIMIT, limit, limit):
                    yield "wrong letter", "accepted, and a dead letter"
        if last is not None and last.is_done and last.said == "reject" and not letters:
            yield "wrong letter", "rejected, and no dead letter"
        if not letters and not any(one.said == "accept" and one.may_be_done for one in deliveries):
            yield "never ended", "neither accepted nor a dead letter"

    def accepted_twice(self) -> Said:
        """Check that two members' acceptances of a record are not both taken.

        The second is answered with success where the group's start has passed the record. It had
        not, as long as a record before it was not done, and of that one nobody else said anything.
        """
        waited: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for record, deliveries in self._shares.deliveries.items():
            (one, *more) = deliveries
            if not more and one.is_accepted and one.count < self._rules.limit:
                waited.setdefault(record[:2], []).append((record[2], one.said_at))
        for some in waited.values():
            some.sort()
            for at in range(1, len(some)):
                some[at] = some[at][0], max(some[at][1], some[at - 1][1])
        for record, deliveries in self._shares.deliveries.items():
            accepted = sorted(one.answered_at for one in deliveries if one.is_accepted)
            before = waited.get(record[:2], [])
            at = bisect_left(before, (record[2], 0)) - 1
            if len(accepted) > 1 and at >= 0 and before[at][1] > accepted[1]:
                yield "accepted twice", f"{shown(*record)}, while one before it was not done"
