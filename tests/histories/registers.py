"""Numbers that only grow: queues' ends, and the offsets that groups have committed.

Such a register is linearizable where each read gives at least what was known before it began, and
no more than what had begun before it ended.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple

from tests.histories.operations import FAIL, OK, UNCOMMITTED, Operation
from tests.histories.records import Place, Records, shown

Register = tuple[Any, ...]


class _Known(NamedTuple):
    """The value that an operation read of a register, or made known when it ended."""

    op: Operation
    register: Register
    value: int
    reads: bool


def _behind(every: list[_Known]) -> Iterator[tuple[_Known, int, Operation]]:
    """Yield the reads that gave less than what was known, with that and who knew it."""
    at_least: dict[Register, tuple[int, Operation]] = {}
    moments = [(one.op.ended, 1, at) for at, one in enumerate(every) if one.op.ended < inf]
    moments += [(one.op.invoked, 0, at) for at, one in enumerate(every) if one.reads]
    for _, ends, at in sorted(moments):
        one = every[at]
        known = at_least.get(one.register)
        if not ends:
            if known is not None and one.value < known[0]:
                yield one, *known
        elif known is None or known[0] < one.value:
            at_least[one.register] = one.value, one.op


def check_ends(operations: list[Operation], records: Records) -> None:
    """Check each end of a queue, of both isolation levels."""
    every = []
    for op in operations:
        if op.f == "ends" and op.outcome == OK:
            level = op.asked == UNCOMMITTED
            every += [_Known(op, (*part[:2], level), part[2], True) for part in op.value]
    asked = {one.register for one in every}
    if not asked:
        return

    def note(op: Operation, place: Place, end: int, committed: bool) -> None:
        for register in ((*place, True), (*place, False))[: 1 + committed]:
            if register in asked:
                every.append(_Known(op, register, end, False))

    for read in records.reads:
        ends = {(record[0], record[1]): record[2] + 1 for record in read.records}
        for place, end in ends.items():
            note(read.op, place, end, read.committed)
    for some in records.sends:
        for one in some:
            at = records.place(one)
            if at is not None and one.op.outcome == OK:
                note(one.op, (one.queue, at[0]), at[1] + 1, False)
    for less, value, other in _behind(every):
        queue, partition, _ = less.register
        said = f"{queue}:{partition} ended at {less.value}: {less.op}, at {value} before: {other}"
        records.found.add("end went back", said)
    _check_later(every, records)


def _check_later(every: list[_Known], records: Records) -> None:
    """Check that no record before an end was sent after it."""
    sent: dict[Place, list[tuple[int, float, Operation]]] = {}
    for some in records.sends:
        for record in some:
            at = records.place(record)
            if at is not None:
                those = sent.setdefault((record.queue, at[0]), [])
                those.append((at[1], record.op.invoked, record.op))
    latest: dict[Place, tuple[list[int], list[tuple[float, int]]]] = {}
    for place, those in sent.items():
        those.sort(key=lambda one: one[0])
        begun = accumulate(((one[1], number) for number, one in enumerate(those)), max)
        latest[place] = [one[0] for one in those], list(begun)
    for one in every:
        if not one.reads:
            continue
        queue, partition, _ = one.register
        offsets, begun_before = latest.get((queue, partition), ([], []))
        before = bisect_left(offsets, one.value) - 1
        if before >= 0 and begun_before[before][0] > one.op.ended:
            offset, _, other = sent[queue, partition][begun_before[before][1]]
            said = f"{shown(queue, partition, offset)} was sent by {other} after the end"
            records.found.add("end ahead", f"{said} {one.value} was read: {one.op}")


def check_committed(operations: list[Operation], records: Records) -> None:
    """Check the offsets of groups, whose members only go on."""
    every: list[_Known] = []
    begun: dict[Register, dict[int, float]] = {}

    def note(op: Operation, register: Register, value: int) -> None:
        if op.outcome == FAIL:
            return
        times = begun.setdefault(register, {})
        times[value] = min(times.get(value, inf), op.invoked)
        if op.outcome == OK:
            every.append(_Known(op, register, value, False))

    for op in operations:
        if op.f == "commit":
            for queue, partition, offset in op.value[1]:
                note(op, (op.value[0], queue, partition), offset)
        elif op.f == "txn":
            for step in op.value or ():
                if step[0] == "commit":
                    note(op, (step[1], step[2], step[3]), step[4])
        elif op.f == "offsets" and op.outcome == OK:
            for queue, partition, offset in op.value[1]:
                every.append(_Known(op, (op.value[0], queue, partition), offset, True))
    for one, value, other in _behind(every):
        said = f"{one.register} was {one.value}: {one.op}, {value} before it: {other}"
        records.found.add("committed went back", said)
    for one in every:
        if one.reads and begun.get(one.register, {}).get(one.value, inf) > one.op.ended:
            records.found.add("never committed", f"{one.register} was {one.value}: {one.op}")
