"""Cycles of transactions, as Elle finds them: by who wrote behind whom and who read from whom.

Nodes are operations. An edge `ww` leads from a transaction to that of the next record in a
partition, `wr` from a transaction to an operation that read from it. Real time is a chain of
moments, one for each end of an operation: an operation leads to its end, and the last end before it
begins to it. So there are as few edges as operations, and any cycle over them is one of the things
themselves.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from tests.histories.anomalies import Found
from tests.histories.operations import FAIL, Operation
from tests.histories.records import Place, Records, Sent, shown

Edges = dict[int, dict[int, Any]]
"""The nodes that each leads to; why, in words or as the record that was read."""
_TRIED = 100
"""Nodes of a component from which the shortest cycle is searched."""


def components(edges: Edges, count: int) -> Iterator[list[int]]:
    """Yield the strongly connected components of more than one node, by Tarjan's algorithm."""
    index, low = [0] * count, [0] * count  # 0: not yet visited
    on_stack = bytearray(count)
    stack: list[int] = []
    clock = 0
    for root in list(edges):
        if index[root]:
            continue
        clock += 1
        index[root] = low[root] = clock
        stack.append(root)
        on_stack[root] = 1
        work = [(root, iter(edges.get(root, ())))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if not index[target]:
                    clock += 1
                    index[target] = low[target] = clock
                    stack.append(target)
                    on_stack[target] = 1
                    work.append((target, iter(edges.get(target, ()))))
                    break
                if on_stack[target] and index[target] < low[node]:
                    low[node] = index[target]
            else:
                work.pop()
                if work and low[node] < low[work[-1][0]]:
                    low[work[-1][0]] = low[node]
                if low[node] == index[node]:
                    at = len(stack) - 1
                    while stack[at] != node:
                        at -= 1
                    some = stack[at:]
                    del stack[at:]
                    for one in some:
                        on_stack[one] = 0
                    if len(some) > 1:
                        yield some


def shortest(edges: Edges, nodes: Sequence[int]) -> list[int]:
    """Return the shortest cycle within a component, that begins and ends with the same node."""
    inside = set(nodes)
    best: list[int] = []
    for root in list(nodes)[:_TRIED]:
        came: dict[int, int] = {}
        todo = deque([root])
        while todo and root not in came:
            node = todo.popleft()
            for target in edges.get(node, ()):
                if target in inside and target not in came:
                    came[target] = node
                    todo.append(target)
        cycle = [root]
        while len(cycle) == 1 or cycle[-1] != root:
            cycle.append(came[cycle[-1]])
        if not best or len(cycle) < len(best):
            best = cycle[::-1]
    return best


class Cycles:
    """The graph of a history."""

    def __init__(self, operations: list[Operation], records: Records) -> None:
        self._records = records
        self._ends = sorted(one.ended for one in operations if one.ended < inf)
        self._operations = operations
        self._number = {one: at for at, one in enumerate(operations)}
        self._count = len(operations) + len(self._ends)

    def check(self, found: Found) -> None:
        writes, reads = self._writes(), self._reads()
        self._search(found, "G0", [writes])
        dependencies = [reads, writes] if self._records.rules.isolated_writes else [reads]
        if self._search(found, "G1c", dependencies):
            return  # with real time there would be the same again
        if self._records.rules.real_time:
            self._search(found, "G1c", [*dependencies, self._times(reads)])

    def _search(self, found: Found, kind: str, parts: Iterable[Edges]) -> bool:
        edges: Edges = {}
        for part in parts:
            for node, targets in part.items():
                edges[node] = edges.get(node, {}) | targets
        some = False
        for nodes in components(edges, self._count):
            some = True
            found.add(kind, "" if found.full(kind) else self._told(edges, shortest(edges, nodes)))
        return some

    def _writes(self) -> Edges:
        """Return who wrote right behind whom."""
        there: dict[Place, list[tuple[int, Sent]]] = {}
        for some in self._records.sends:
            for one in some:
                at = self._records.place(one)
                if at is not None and one.op.f == "txn" and self._records.is_taken(one):
                    there.setdefault((one.queue, at[0]), []).append((at[1], one))
        edges: Edges = {}
        for place, those in there.items():
            those.sort(key=lambda pair: pair[0])
            for (offset, one), (_, other) in pairwise(those):
                if one.op is not other.op:
                    why = f"wrote before it, {one.value!r} at {shown(*place, offset)}"
                    self._edge(edges, one.op, other.op, why)
        return edges

    def _reads(self) -> Edges:
        """Return who read from whom."""
        edges: Edges = {}
        for read in self._records.reads:
            for record in read.records:
                one = self._records.sender(record) if read.committed else None
                if one is not None and one.op is not read.op and one.op.outcome != FAIL:
                    self._edge(edges, one.op, read.op, record)
        return edges

    def _edge(self, edges: Edges, one: Operation, other: Operation, why: object) -> None:
        edges.setdefault(self._number[one], {}).setdefault(self._number[other], why)

    def _times(self, reads: Edges) -> Edges:
        """Return the edges of real time, for operations that read or were read from."""
        first = len(self._operations)
        edges: Edges = {first + at: {first + at + 1: ""} for at in range(len(self._ends) - 1)}
        nodes = set(reads)
        for targets in reads.values():
            nodes.update(targets)
        for node in nodes:
            one = self._operations[node]
            if one.ended < inf:
                edges.setdefault(node, {})[first + bisect_left(self._ends, one.ended)] = ""
            before = bisect_left(self._ends, one.invoked) - 1
            if before >= 0:
                edges.setdefault(first + before, {})[node] = ""
        return edges

    def _told(self, edges: Edges, cycle: list[int]) -> str:
        """Return a cycle in words. It begins with an operation, and moments are left out."""
        first = len(self._operations)
        start = next(at for at, node in enumerate(cycle) if node < first)
        turned = cycle[start:-1] + cycle[:start] + [cycle[start]]
        said, last = [], turned[0]
        for node, following in pairwise(turned):
            if following >= first:
                continue
            why = edges[node][following] if node < first else "ended before it began"
            if isinstance(why, list):
                why = f"was read by it, {why[3]!r} at {shown(*why[:3])}"
            said.append(f"    {self._operations[last]} {why}")
            last = following
        return "\n".join(
            [f"{len(said)} operations, each before the next and the last before the first", *said]
        )
