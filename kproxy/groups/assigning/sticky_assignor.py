"""The task assignor `sticky` of streams groups, as Kafka's `StickyTaskAssignor` (4.3).

A task stays with the member that had it, or goes to one that had its standby, while they have less
than their share; the rest goes to the process with the least load. Standby tasks go to other
processes than the task itself, each to one more. Members go by their names, in Kafka by the order
of a hash table.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kproxy.groups.assigning.assignors import PartitionSet, Target
from kproxy.groups.model.topology import ACTIVE, STANDBY, number_of, role_of, task_key
from kproxy.loop.steps import Spending, Steps, spent
from kproxy.virtual.types import PartitionKey

STICKY = "sticky"
Task = tuple[int, int]
"""The number of a subtopology, and a partition."""


class TaskMember(NamedTuple):
    """A member's process, and the tasks that it was to have before."""

    process: str
    before: PartitionSet


class SubtopologySize(NamedTuple):
    """A subtopology's tasks; only those with state have standby tasks."""

    tasks: int
    stateful: bool


def sticky(
    wishes: Mapping[str, TaskMember], sizes: Sequence[SubtopologySize], replicas: int
) -> Steps[Target]:
    """Assign all tasks, and so many standby tasks for each that has state."""
    return _Sticky(wishes, sizes, replicas).steps()


class _Process:
    """A process with its members: the tasks it has, and how many each of them has."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tasks: set[Task] = set()
        self.counts: dict[str, int] = {}
        self._load = 0
        self._by_load: list[tuple[int, str]] | None = None

    @property
    def load(self) -> float:
        return self._load / len(self.counts)

    def add(self, member: str, task: Task) -> int:
        """Give a member a task; return how many it has now."""
        self._by_load = None
        return self._add(member, task)

    def _add(self, member: str, task: Task) -> int:
        self.tasks.add(task)
        self._load += 1
        self.counts[member] += 1
        return self.counts[member]

    def add_to_least(self, task: Task) -> tuple[str, int]:
        """Give a task to the member with the fewest; return it, and how many it has now."""
        if self._by_load is None:
            self._by_load = [(count, member) for member, count in self.counts.items()]
            heapq.heapify(self._by_load)
        member = self._by_load[0][1]
        count = self._add(member, task)
        heapq.heapreplace(self._by_load, (count, member))
        return member, count


class _Quota:
    """The share of a member: it shrinks as members are full."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.each = -(-tasks // members) if members else 0

    def filled(self, count: int) -> None:
        """Note how many tasks a member has now; one with its share takes part no more."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self.each = -(-self._tasks // self._members) if self._members else 0


class _Sticky:
    def __init__(
        self, wishes: Mapping[str, TaskMember], sizes: Sequence[SubtopologySize], replicas: int
    ) -> None:
        self._wishes, self._sizes, self._replicas = wishes, sizes, replicas
        self._processes: dict[str, _Process] = {}
        self._process_of: dict[str, _Process] = {}
        self._had: dict[Task, str] = {}
        self._had_standby: dict[Task, list[str]] = {}
        self._found: dict[str, set[PartitionKey]] = {member: set() for member in wishes}
        active = sum(size.tasks for size in sizes)
        standby = replicas * sum(size.tasks for size in sizes if size.stateful)
        self._active_quota = _Quota(active, len(wishes))
        self._quota = _Quota(active + standby, len(wishes))

    def steps(self) -> Steps[Target]:
        if not self._wishes:
            return {}
        yield from self._remember()
        yield from self._assign_active()
        if self._replicas:
            yield from self._assign_standby()
        target = {}
        for member, tasks in self._found.items():
            target[member] = frozenset(tasks)
            yield from spent(len(tasks))
        return target

    def _remember(self) -> Steps[None]:
        spending = Spending()
        for member in sorted(self._wishes):
            name, before = self._wishes[member]
            process = self._processes.setdefault(name, _Process(len(self._processes)))
            process.counts[member] = 0
            self._process_of[member] = process
            for task in before:
                key = number_of(task), task[1]
                if role_of(task) == ACTIVE:
                    self._had[key] = member
                elif role_of(task) == STANDBY:
                    self._had_standby.setdefault(key, []).append(member)
                yield from spending.add(1)
            yield from spending.add(8)

    def _by_partition(self) -> Iterator[Task]:
        """Yield all tasks, by partition first."""
        for partition in range(max((size.tasks for size in self._sizes), default=0)):
            for number, size in enumerate(self._sizes):
                if partition < size.tasks:
                    yield number, partition

    def _give(self, member: str, task: Task, role: int) -> None:
        self._note(member, task, role, self._process_of[member].add(member, task))

    def _note(self, member: str, task: Task, role: int, count: int) -> None:
        self._found[member].add((task_key(role, task[0]), task[1]))
        if role == ACTIVE:
            self._active_quota.filled(count)
        self._quota.filled(count)

    def _give_least(self, process: _Process, task: Task, role: int) -> None:
        member, count = process.add_to_least(task)
        self._note(member, task, role, count)

    def _has_room(self, member: str, quota: _Quota) -> bool:
        return self._process_of[member].counts[member] < quota.each

    # -- active tasks

    def _assign_active(self) -> Steps[None]:
        spending, left = Spending(), []
        for task in self._by_partition():
            member = self._had.get(task)
            if member is not None and self._has_room(member, self._active_quota):
                self._give(member, task, ACTIVE)
            else:
                left.append(task)
            yield from spending.add(2 + len(self._sizes) // 8)
        rest = set()
        for task in left:
            member = self._least_loaded(self._had_standby.get(task), None)
            if member is not None and self._has_room(member, self._active_quota):
                self._give(member, task, ACTIVE)
            else:
                rest.add(task)
            yield from spending.add(2)
        yield from self._spread(rest)

    def _spread(self, rest: set[Task]) -> Steps[None]:
        """Give what nobody had to the processes with the least load, subtopology by subtopology."""
        spending = Spending()
        by_load = [(process.load, process.number, process) for process in self._processes.values()]
        heapq.heapify(by_load)
        for number, size in enumerate(self._sizes):
            for partition in range(size.tasks):
                if (number, partition) in rest:
                    process = by_load[0][2]
                    self._give_least(process, (number, partition), ACTIVE)
                    heapq.heapreplace(by_load, (process.load, process.number, process))
                yield from spending.add(4)

    def _least_loaded(self, members: list[str] | None, task: Task | None) -> str | None:
        """Return the one with the least load of those that had a standby; None: none may have it.

        `task`: none of whose process has it already.
        """
        if not members:
            return None
        found, first = members[0], self._process_of[members[0]]
        load, count = first.load, first.counts[found]
        for member in members[1:]:
            process = self._process_of[member]
            if process.load < load and (task is None or task not in process.tasks):
                if process.counts[member] < count:
                    found, load, count = member, process.load, process.counts[member]
        return found if task is None or task not in first.tasks else None

    # -- standby tasks

    def _assign_standby(self) -> Steps[None]:
        spending, left = Spending(), []
        for number in reversed(range(len(self._sizes))):
            size = self._sizes[number]
            for partition in reversed(range(size.tasks if size.stateful else 0)):
                missing, task = self._replicas, (number, partition)
                while missing and self._give_back(task):
                    missing -= 1
                if missing:
                    left.append((task, missing))
                yield from spending.add(4 * self._replicas)
        yield from self._spread_standby(left)

    def _spread_standby(self, left: list[tuple[Task, int]]) -> Steps[None]:
        """Give standby tasks to the processes with the least load that do not have the task."""
        spending = Spending()
        by_load = [(process.load, process.number, process) for process in self._processes.values()]
        heapq.heapify(by_load)
        for task, missing in left:
            for _ in range(missing):
                skipped = []
                while by_load and task in by_load[0][2].tasks:
                    skipped.append(heapq.heappop(by_load))
                if by_load:
                    process = by_load[0][2]
                    self._give_least(process, task, STANDBY)
                    heapq.heapreplace(by_load, (process.load, process.number, process))
                full = not by_load
                for one in skipped:
                    heapq.heappush(by_load, one)
                yield from spending.add(4 + 2 * len(skipped))
                if full:
                    break  # every process has the task

    def _give_back(self, task: Task) -> bool:
        """Give a standby task to a member that had the task or one of its standbys, if one may."""
        before = self._had.get(task)
        if before is not None and task not in self._process_of[before].tasks:
            if self._has_room(before, self._quota):
                self._give(before, task, STANDBY)
                return True
        member = self._least_loaded(self._had_standby.get(task), task)
        if member is None or not self._has_room(member, self._quota):
            return False
        self._give(member, task, STANDBY)
        return True
