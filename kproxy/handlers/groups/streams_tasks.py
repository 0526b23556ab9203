"""The tasks of streams groups' members as answers have them."""

from typing import Any

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.topology import ROLES, Topology, number_of, role_of
from kproxy.loop.steps import EVERY, Spending, Steps

FIELDS = ("active_tasks", "standby_tasks", "warmup_tasks")
"""The fields of requests and answers, by role."""


def tasks_by_role(structure: Topology, tasks: PartitionSet) -> Steps[list[list[dict[str, Any]]]]:
    """Return tasks by role and subtopology."""
    found: dict[tuple[int, int], list[int]] = {}
    for number, task in enumerate(tasks, 1):
        found.setdefault((role_of(task), number_of(task)), []).append(task[1])
        if number % EVERY == 0:
            yield
    by_role: list[list[dict[str, Any]]] = [[] for _ in ROLES]
    spending = Spending()
    for (role, number), partitions in sorted(found.items()):
        name = structure.subtopologies[number].id
        by_role[role].append({"subtopology_id": name, "partitions": sorted(partitions)})
        yield from spending.add(len(partitions))
    return by_role
