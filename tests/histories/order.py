"""The order of a history's records: producers' and consumers' each by itself."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from tests.histories.operations import OK, UNCOMMITTED, Operation
from tests.histories.records import Place, Records, shown

Last = tuple[int, Operation]


@dataclass(slots=True)
class _Position:
    """The place in a partition where a consumer stands."""

    offset: int
    op: Operation | None


def check_sends(records: Records) -> None:
    """Check that a producer's records lie in the order in which they were sent."""
    last: dict[tuple[str, str, int], Last] = {}
    for some in records.sends:
        for one in some:
            at = records.place(one)
            if at is None or one.queue in records.rules.unordered:
                continue
            key = one.op.process, one.queue, at[0]
            before = last.get(key)
            last[key] = at[1], one.op
            if before is not None and at[1] <= before[0]:
                inner = "internal " if before[1] is one.op else ""
                said = f"{one.value!r} at {shown(one.queue, *at)} behind {before[0]}: {one.op}"
                records.found.add(f"{inner}nonmonotonic send", f"{said} after {before[1]}")


class Polls:
    """The walk of each consumer."""

    def __init__(self, records: Records, readable: dict[Place, list[int]]) -> None:
        self._records, self._found = records, records.found
        self._readable = readable
        self._all: dict[Place, list[int]] = {}
        self._stands: dict[tuple[str, Place], _Position] = {}

    def check(self, operations: list[Operation]) -> None:
        """Check all of it in the order of ends: a consumer may be assigned within a poll."""
        for op in sorted(operations, key=lambda one: one.ended):
            if op.f == "assign":
                self._assign(op, op.value)
            elif op.f == "poll" and op.outcome == OK:
                self._poll(op, op.asked != UNCOMMITTED, op.value)
            elif op.f == "txn":
                for step in op.value or ():
                    if step[0] == "assign":
                        self._assign(op, step[1])
                    elif step[0] == "poll" and step[1] is not None:
                        self._poll(op, True, step[1])

    def _assign(self, op: Operation, parts: list[Any]) -> None:
        for queue, partition, position in parts:
            key = op.process, (queue, partition)
            self._stands.pop(key, None)
            if position is not None:
                self._stands[key] = _Position(position - 1, None)

    def _poll(self, op: Operation, committed: bool, records: list[Any]) -> None:
        for record in records:
            place, offset = (record[0], record[1]), record[2]
            stands = self._stands.get((op.process, place))
            if stands is None:
                self._stands[op.process, place] = _Position(offset, op)
                continue
            last, before = stands.offset, stands.op
            stands.offset, stands.op = offset, op
            if offset <= last:
                kind = "internal nonmonotonic poll" if before is op else "nonmonotonic poll"
                self._found.add(kind, f"{shown(*place, offset)} after {last}: {op} after {before}")
            elif offset > last + 1:
                offsets = self._offsets(place, committed)
                at = bisect_left(offsets, last + 1)
                if at < len(offsets) and offsets[at] < offset:
                    kind = "internally skipped" if before is op else "skipped"
                    value = self._records.values.get(place, {}).get(offsets[at])
                    said = f"{value!r} at {shown(*place, offsets[at])} between {last} and {offset}"
                    self._found.add(kind, f"{said}: {op} after {before}")

    def _offsets(self, place: Place, committed: bool) -> list[int]:
        """Return the offsets that must be read, sorted."""
        if committed:
            return self._readable.get(place, [])
        if place[0] in self._records.rules.compacted:
            return []
        if place not in self._all:
            self._all[place] = sorted(self._records.values.get(place, ()))
        return self._all[place]
