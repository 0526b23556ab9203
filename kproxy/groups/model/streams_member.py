"""A member of a streams group (KIP-1071): a thread of an application, with its tasks."""

import struct
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import ClassVar, NamedTuple, Self

from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.revoking_member import RevokingMember
from kproxy.groups.model.topology import ACTIVE, ROLES, in_role, role_of
from kproxy.loop.steps import EVERY, Steps, spent
from kproxy.virtual.rows.groups import Row
from kproxy.virtual.types import PartitionKey

_EPOCH = struct.Struct(">I")


class EndpointLine(NamedTuple):
    """An encoded line of a member's, and what it was made of."""

    assigned: PartitionSet
    counts: dict[str, int]
    ready: bool
    endpoint: tuple[str, int] | None
    encoded: bytes


class StreamsMember(RevokingMember):
    """A member. `assigned`, `revoking` and `target` are tasks, as `model.topology` has them."""

    FIELDS: ClassVar[tuple[str, ...]] = (
        *RevokingMember.FIELDS, "topology_epoch", "process", "endpoint", "tags",
    )  # fmt: skip

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.topology_epoch = 0
        self.process = ""
        self.endpoint: tuple[str, int] | None = None
        self.tags: dict[str, str] = {}
        self.epochs: dict[PartitionKey, int] = {}
        """The epochs at which it was given the active tasks that it has, or has to give up."""
        self.line: EndpointLine | None = None
        """The line that tells others what it has."""

    @property
    def weight(self) -> int:
        endpoint = len(self.endpoint[0]) if self.endpoint is not None else 0
        tags = sum(len(key) + len(value) for key, value in self.tags.items())
        epochs = _EPOCH.size * (len(self.assigned) + len(self.revoking))
        return super().weight + epochs + len(self.process) + endpoint + tags

    def _held(self) -> Iterator[PartitionKey]:
        """Yield its tasks, in the order in which its row has them."""
        return chain(self.assigned, self.revoking)

    def note_epochs(self) -> Steps[None]:
        """Note the epochs of active tasks that it was given just now; forget those of others."""
        before, found, epoch = self.epochs, dict[PartitionKey, int](), self.epoch
        held = self._held()
        while piece := list(islice(held, EVERY)):
            for task in piece:
                if role_of(task) == ACTIVE:
                    found[task] = before.get(task, epoch)
            yield
        self.epochs = found

    def row(self) -> Steps[Row]:
        row = yield from super().row()
        packed, held = [], self._held()
        while piece := list(islice(held, EVERY)):
            packed.append(b"".join(_EPOCH.pack(self.epochs.get(task, 0)) for task in piece))
            yield
        return row | {"epochs": b"".join(packed)}

    @classmethod
    def from_row(cls, member_id: str, row: Row) -> Steps[Self]:
        member = yield from super().from_row(member_id, row)
        # The packed order is lost in a set: both are read in it.
        packed = _tasks(row["assigned"], row["revoking"])
        epochs = (epoch for (epoch,) in _EPOCH.iter_unpack(row["epochs"]))
        held = zip(packed, epochs, strict=True)
        while piece := list(islice(held, EVERY)):
            member.epochs.update(one for one in piece if role_of(one[0]) == ACTIVE)
            if len(piece) == EVERY:
                yield
        return member


_TASK = struct.Struct(">16sI")


def _tasks(*packed: bytes) -> Iterator[PartitionKey]:
    for data in packed:
        yield from _TASK.iter_unpack(data)


class TaskHolders:
    """The processes that have each task, or have yet to give it up.

    A process has a task once, in whatever role: a standby is given up before the task itself comes.
    """

    def __init__(self) -> None:
        self._processes: dict[PartitionKey, tuple[str, ...]] = {}

    def count(self, member: StreamsMember, parts: Iterable[PartitionKey], by: int) -> Steps[None]:
        held, process = self._processes, member.process
        for number, task in enumerate(parts, 1):
            if number % EVERY == 0:
                yield
            before = held.get(task, ())
            if by > 0:
                held[task] = (*before, process)
            elif len(before) > 1:
                place = before.index(process)
                held[task] = before[:place] + before[place + 1 :]
            else:
                del held[task]

    def others(self, member: StreamsMember) -> Steps[frozenset[PartitionKey]]:
        """Return what a member is to get and cannot have yet: an active task that anybody has, any
        other that its process has."""
        held, process, found = self._processes, member.process, set[PartitionKey]()
        for number, task in enumerate(member.target - member.assigned, 1):
            if role_of(task) == ACTIVE and task in held:
                found.add(task)
            else:
                for role in ROLES:
                    if process in held.get(in_role(task, role), ()):
                        found.add(task)
            if number % (EVERY // 4) == 0:
                yield
        yield from spent(len(found))
        return frozenset(found)
