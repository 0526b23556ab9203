"""The topologies of streams groups held against the topics there are, and their target assignments.

Small work is done within the heartbeat that needs it, large work beside it, as
`assigning.subscriptions` does it for other groups.
"""

from typing import NamedTuple

from crc32c import crc32c

from kproxy.groups.assigning.configured_topology import ConfiguredTopology, configured
from kproxy.groups.assigning.sticky_assignor import STICKY, SubtopologySize, TaskMember, sticky
from kproxy.groups.assigning.subscriptions import SubscriptionResolver
from kproxy.groups.model.assigned_group import AssignmentResult
from kproxy.groups.model.streams_group import StreamsGroup
from kproxy.groups.model.topology import Topology
from kproxy.loop.steps import EVERY, Spending, Steps, Work, done, finish, in_order
from kproxy.metadata.catalogue import Lookup

_SHARE = 20  # share of the time that looking again may take


class TopologyLook(NamedTuple):
    """A configured topology as of so many `changes` of the catalogue. `topics`: their hash."""

    changes: int
    topics: int
    configured: ConfiguredTopology


class TaskResolver:
    """The resolver of one coordinator's streams groups."""

    def __init__(self, lookup: Lookup, subscriptions: SubscriptionResolver) -> None:
        self._lookup = lookup
        self._beside = subscriptions
        self._now = subscriptions.now

    # -- the topics there are

    def look(self, group: StreamsGroup, structure: Topology) -> TopologyLook | None:
        """Return what a topology comes to, if that may have changed; None: it stands as it did.

        A look that takes long goes on beside, once the group is logged.
        """
        if group.resolving or not self._is_due(group):
            return None
        work, started = Work(self._steps(structure)), self._now()
        if work.begin():
            return work.result
        group.resolving = True
        self._beside.later(lambda: self._look_on(group, work, started))
        return None

    async def first_look(self, structure: Topology) -> TopologyLook:
        """Return what the topology of a new group comes to: it is refused if it cannot be."""
        return await done(self._steps(structure))

    def _is_due(self, group: StreamsGroup) -> bool:
        if group.configured is None:
            return True
        now = self._now()
        return self._lookup.changes != group.resolved_changes and now >= group.refresh_again_at

    async def _look_on(self, group: StreamsGroup, work: Work[TopologyLook], started: float) -> None:
        if not await finish(work, lambda: self._beside.there(group)):
            return
        async with group.lock:
            group.resolving = False
            if not self._beside.there(group):
                return
            now = self._now()
            group.refresh_again_at = now + _SHARE * (now - started)
            if self.take(group, work.result):
                group.epoch += 1
            self.assign_if_due(group)
            await self._beside.log_changes(group)

    def take(self, group: StreamsGroup, look: TopologyLook) -> bool:
        """Take a look; return whether the group begins its next epoch because of it."""
        others = look.topics != group.topology
        group.resolved_changes = look.changes
        group.topology = look.topics
        return group.take_configured(look.configured) or others

    def _steps(self, structure: Topology) -> Steps[TopologyLook]:
        changes, find = self._lookup.changes, self._lookup.find
        spending = Spending()
        there: dict[str, int] = {}
        parts = []
        for number, name in enumerate((yield from in_order(set(structure.required()))), 1):
            queue = find(name)
            if queue is not None:
                there[name] = queue.partitions
                parts.append(queue.queue_id + b"%d" % queue.partitions)
            yield from spending.add(2)
            if number % EVERY == 0:
                yield
        found = yield from configured(structure, there.get)
        return TopologyLook(changes, crc32c(b"".join(parts)), found)

    # -- targets

    def assign_if_due(self, group: StreamsGroup) -> None:
        """Make a target for a group's epoch, now or soon, if it may have one.

        A new coordinator has first to look at the topics: without them all tasks would be taken.
        """
        if group.configured is not None and group.may_assign():
            self._beside.assign(group, self._made(group))

    def _made(self, group: StreamsGroup) -> Steps[AssignmentResult]:
        """Return a target for the members as they are when it is begun; nothing if it cannot be."""
        epoch, replicas = group.epoch, max(0, group.replicas)
        found, structure = group.configured, group.structure
        wishes = {one.id: TaskMember(one.process, one.target) for one in group.members.values()}
        assert found is not None
        if structure is None or not found.ready or found.tasks is None:
            return AssignmentResult(epoch, STICKY, dict.fromkeys(wishes, frozenset()), {})
        sizes = [
            SubtopologySize(tasks, bool(one.changelogs))
            for tasks, one in zip(found.tasks, structure.subtopologies, strict=True)
        ]
        yield
        target = yield from sticky(wishes, sizes, replicas)
        return AssignmentResult(epoch, STICKY, target, {})

    def assign_soon(self, group: StreamsGroup) -> None:
        """Make a target beside what members ask for: the wait for more of them is over."""
        self._beside.later(lambda: self._assign_delayed(group))

    async def _assign_delayed(self, group: StreamsGroup) -> None:
        async with group.lock:
            if self._beside.there(group) and group.members:
                self.assign_if_due(group)
                await self._beside.log_changes(group)
