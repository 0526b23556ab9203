"""The records of a history: who sent each, where it is, and who read it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.histories.anomalies import Found, Rules
from tests.histories.operations import FAIL, INFO, OK, UNCOMMITTED, Operation

Place = tuple[str, int]
"""A queue's partition."""


@dataclass(slots=True, eq=False)
class Sent:
    """A record as it was sent."""

    op: Operation
    queue: str
    partition: int | None
    offset: int | None
    value: str
    key: str | None

    def may_be_at(self, partition: int, offset: int) -> bool:
        return self.partition in (None, partition) and self.offset in (None, offset)


class Read(NamedTuple):
    """The records of one poll."""

    op: Operation
    committed: bool
    records: list[Any]


def _what(op: Operation, record: list[Any]) -> str:
    return f"{op} read {record[3]!r} at {shown(*record[:3])}"


def shown(queue: str, partition: int | None, offset: int | None) -> str:
    return f"{queue}:{'?' if partition is None else partition}@{'?' if offset is None else offset}"


class Records:
    """The sends and polls of a history, with indexes. Memory is linear in the records."""

    def __init__(self, operations: list[Operation], rules: Rules, found: Found) -> None:
        self.rules, self.found = rules, found
        self.sends: list[list[Sent]] = []
        """The records of each operation, in the order in which these began."""
        self.reads: list[Read] = []
        self.sent: dict[tuple[str, str], list[Sent]] = {}
        """The sends of each value, by queue and value."""
        self.values: dict[Place, dict[int, str]] = {}
        """The value at each offset that anybody was told of."""
        self.seen: dict[tuple[str, str], tuple[int, int]] = {}
        """Partition and offset at which readers of committed records found a value, by queue."""
        self.passed: dict[Place, int] = {}
        """The last offset that a reader of committed records has seen."""
        self.proven: set[Operation] = set()
        """The transactions of unknown outcome of which a record was read."""
        self._by_value: dict[str, list[Sent]] = {}
        for op in operations:
            if op.f == "send":
                self._send(op, op.value)
            elif op.f == "poll" and op.outcome == OK:
                self.reads.append(Read(op, op.asked != UNCOMMITTED, op.value))
            elif op.f == "txn":
                self._transaction(op)
        for read in self.reads:
            self._look(read)

    def _transaction(self, op: Operation) -> None:
        steps = op.value or ()
        self._send(op, [step[1:] for step in steps if step[0] == "send"])
        for step in steps:
            if step[0] == "poll" and step[1] is not None:
                self.reads.append(Read(op, True, step[1]))

    def _send(self, op: Operation, records: list[Any]) -> None:
        some = []
        for queue, partition, offset, value, *key in records:
            one = Sent(op, queue, partition, offset, value, key[0] if key else None)
            some.append(one)
            self.sent.setdefault((queue, value), []).append(one)
            if offset is not None and partition is not None:
                self._note((queue, partition), offset, value)
        self.sends.append(some)

    def _note(self, place: Place, offset: int, value: str) -> None:
        known = self.values.setdefault(place, {}).setdefault(offset, value)
        if known != value:
            said = f"{shown(*place, offset)} is {known!r} and {value!r}"
            self.found.add("inconsistent offsets", said)

    def _look(self, read: Read) -> None:
        for record in read.records:
            queue, partition, offset, value = record[:4]
            place = queue, partition
            values = self.values.get(place)
            if values is None or values.get(offset) != value:
                self._note(place, offset, value)
            if not read.committed:
                continue
            if self.passed.get(place, -1) < offset:
                self.passed[place] = offset
            first = self.seen.setdefault((queue, value), (partition, offset))
            if first != (partition, offset):
                said = f"{value!r} at {shown(queue, *first)} and {shown(queue, partition, offset)}"
                self.found.add("doubled", said)

    # -- who sent it

    def sender(self, record: list[Any]) -> Sent | None:
        """Return the send of a record that was read; one that may be where others were aborted."""
        queue, partition, offset, value = record[:4]
        every = self.sent.get((queue, value), ())
        if len(every) == 1:
            return every[0] if every[0].may_be_at(partition, offset) else None
        some = [one for one in every if one.may_be_at(partition, offset)]
        exact = [one for one in some if one.offset == offset]
        return next(
            (one for one in exact or some if one.op.outcome != FAIL), next(iter(some), None)
        )

    def is_taken(self, one: Sent) -> bool:
        """Whether a record must be there."""
        return one.op.outcome == OK or one.op in self.proven

    def place(self, one: Sent) -> tuple[int, int] | None:
        """Return partition and offset of a record, by who sent or who read it."""
        if one.offset is not None and one.partition is not None:
            return one.partition, one.offset
        return self.seen.get((one.queue, one.value)) if self.is_taken(one) else None

    # -- what readers may see

    def check_reads(self) -> None:
        """Check each record that was read against its send."""
        for read in self.reads:
            if read.committed:
                for record in read.records:
                    self._check(read.op, record)

    def _check(self, op: Operation, record: list[Any]) -> None:
        one = self.sender(record)
        if one is None:
            kind, why = self._stray(record)
            self.found.add(kind, f"{_what(op, record)} {why}")
        elif one.op.outcome == FAIL:
            self.found.add("G1a", f"{_what(op, record)} of {one.op}")
        elif one.op.f == "txn":
            if one.op.outcome == INFO:
                self.proven.add(one.op)
            asked_at = one.op.invoked if one.op.asked_at is None else one.op.asked_at
            if op.ended < asked_at and op is not one.op:
                said = f"{_what(op, record)} before its end was asked for: {one.op}"
                self.found.add("G1b", said)

    def _stray(self, record: list[Any]) -> tuple[str, str]:
        """Return the anomaly of a record that nobody sent to where it is."""
        queue, partition, offset, value = record[:4]
        same = self.sent.get((queue, value), ())
        for one in same:
            if one.partition == partition:
                return "inconsistent offsets", f"at {offset}, told of {one.offset}: {one.op}"
        if same:
            return "moved", f"in {partition}, sent to {same[0].partition}: {same[0].op}"
        for other in self._all_by_value().get(value, ()):
            return "moved", f"in {queue}, sent to {other.queue}: {other.op}"
        return "never sent", "that nobody sent"

    def _all_by_value(self) -> dict[str, list[Sent]]:
        """Return an index that only an unsound history needs."""
        if not self._by_value:
            for (_, value), some in self.sent.items():
                self._by_value.setdefault(value, []).extend(some)
        return self._by_value

    # -- what must be there

    def replaced(self) -> set[Sent]:
        """Return the records of compacted queues that a later one of their key replaces."""
        last: dict[tuple[str, int, str], tuple[int, Sent]] = {}
        gone: set[Sent] = set()
        for one in self._taken():
            at = self.place(one)
            if one.key is None or one.queue not in self.rules.compacted or at is None:
                continue
            key = one.queue, at[0], one.key
            other = last.get(key)
            if other is None or other[0] < at[1]:
                last[key] = at[1], one
                if other is not None:
                    gone.add(other[1])
            elif other[1] is not one:
                gone.add(one)
        return gone

    def _taken(self) -> Iterator[Sent]:
        for some in self.sends:
            for one in some:
                if self.is_taken(one):
                    yield one

    def check_losses(self, gone: set[Sent]) -> None:
        """Check that all that was taken is there, once everything was read."""
        for one in self._taken():
            if (one.queue, one.value) in self.seen or one in gone:
                continue
            what = f"{one.value!r} at {shown(one.queue, one.partition, one.offset)}: {one.op}"
            passed = self.passed.get((one.queue, one.partition or 0), -1)
            known = one.offset is not None and one.partition is not None
            if one.op.outcome == INFO:
                if (known and passed >= (one.offset or 0)) or self.rules.whole:
                    self.found.add("G1b", f"{what} was not read, others of it were")
            elif known and passed >= (one.offset or 0):
                self.found.add("lost", f"{what}; readers came to {passed}")
            elif self.rules.whole:
                self.found.add("unseen", what)

    def readable(self, gone: set[Sent]) -> dict[Place, list[int]]:
        """Return the offsets that a reader of committed records must not pass by."""
        found: dict[Place, set[int]] = {}
        missing = {(one.queue, *at) for one in gone if (at := self.place(one)) is not None}
        for (queue, _), (partition, offset) in self.seen.items():
            found.setdefault((queue, partition), set()).add(offset)
        for one in self._taken():
            if (at := self.place(one)) is not None:
                found.setdefault((one.queue, at[0]), set()).add(at[1])
        for queue, partition, offset in missing:
            found[queue, partition].discard(offset)
        return {place: sorted(offsets) for place, offsets in found.items()}
