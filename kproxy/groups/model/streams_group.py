"""A streams group (KIP-1071), as Kafka's `StreamsGroup`: a topology, and who has which tasks.

An active task goes to its new member once the old one has given it up, a standby task once its
process has the task in no other role. The topology is the first member's, and stays.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from kproxy.common.errors import Code
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.assigning.configured_topology import ConfiguredTopology, Status
from kproxy.groups.assigning.sticky_assignor import STICKY
from kproxy.groups.model.assigned_group import AssigningCoordinator
from kproxy.groups.model.revoking_group import RevokingGroup
from kproxy.groups.model.revoking_member import Progress
from kproxy.groups.model.streams_member import StreamsMember, TaskHolders
from kproxy.groups.model.topology import ACTIVE, Topology, of_row, task_key
from kproxy.loop.steps import Steps
from kproxy.virtual.rows.groups import TOPOLOGY_ROW, Change, GroupRow, Row

STREAMS_PROTOCOL = "streams"
_DELAY = "delay"
_NOT_VALIDATED = -1


class StreamsState(StrEnum):
    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class StreamsGroup(RevokingGroup[StreamsMember]):
    """A group. In it `topology` is the hash of the topics that `configured` was made of."""

    kind = "streams"
    protocol_type = STREAMS_PROTOCOL
    REVOKED_EPOCHS = 1

    def __init__(self, group_id: str, coordinator: AssigningCoordinator) -> None:
        super().__init__(group_id, coordinator)
        self.holders = TaskHolders()
        self.structure: Topology | None = None
        self.configured: ConfiguredTopology | None = None
        self.validated = 0
        """The epoch of the topology that the topics there are fit to; -1: they do not."""
        self.replicas = -1
        """The standby replicas that the last epoch was begun with."""
        self.shutdown_by: str | None = None
        """The member that has all others shut down; forgotten with the last member."""
        self.endpoint_epoch = 0
        self.counts: dict[str, int] = {}
        """The partitions of the topics that it reads, as members were last told of endpoints."""
        self.delayed = False
        """Whether the first target waits for more members."""
        self._numbers: dict[str, list[int]] = {}
        """The numbers of the subtopologies that read a topic, by its name."""
        self._structure_logged = True

    # -- rows

    def begin_restoring(self, head: GroupRow) -> None:
        super().begin_restoring(head)
        self.validated = head.values["validated"]
        self.replicas = head.values["replicas"]

    def restore(self, member_id: str, row: Row) -> Steps[None]:
        if member_id == TOPOLOGY_ROW:
            self._take_structure(of_row(row))
        else:
            yield from self.put_restored((yield from StreamsMember.from_row(member_id, row)))

    def values(self) -> dict[str, Any]:
        return super().values() | {"validated": self.validated, "replicas": self.replicas}

    def change(self) -> Steps[Change]:
        change = yield from super().change()
        if not self._structure_logged and self.structure is not None:
            change.rows[TOPOLOGY_ROW] = self.structure.row()
        return change

    def was_logged(self, change: Change) -> None:
        super().was_logged(change)
        self._structure_logged = self._structure_logged or TOPOLOGY_ROW in change.rows

    @property
    def unlogged(self) -> bool:
        return super().unlogged or (bool(self.members) and self.values() != self._logged)

    @property
    def state(self) -> Any:
        if self.ended:
            return StreamsState.DEAD
        if not self.members:
            return StreamsState.EMPTY
        if self.structure is None or self.structure.epoch != self.validated:
            return StreamsState.NOT_READY
        if self.epoch > self.target_epoch:
            return StreamsState.ASSIGNING
        there = all(self._is_there(member) for member in self.members.values())
        return StreamsState.STABLE if there else StreamsState.RECONCILING

    def _is_there(self, member: StreamsMember) -> bool:
        return member.progress == Progress.STABLE and member.epoch == self.target_epoch

    # -- the topology

    def set_structure(self, structure: Topology) -> None:
        """Take the topology of the first member."""
        self._take_structure(structure)
        self._structure_logged = False

    def _take_structure(self, structure: Topology) -> None:
        self.structure = structure
        self._numbers = {}
        for number, one in enumerate(structure.subtopologies):
            for topic in one.inputs():
                self._numbers.setdefault(topic, []).append(number)

    def subscribed(self) -> frozenset[str]:
        """Return the topics that its members read."""
        return frozenset(self._numbers) if self.members else frozenset()

    def take_configured(self, configured: ConfiguredTopology) -> bool:
        """Take what the topology comes to; return whether it fits now and did not, or the other
        way round."""
        self.configured = configured
        fits = self.structure is not None and configured.ready
        epoch = self.structure.epoch if self.structure is not None and fits else _NOT_VALIDATED
        changed, self.validated = epoch != self.validated, epoch
        return changed

    @property
    def status(self) -> Status | None:
        return None if self.configured is None else self.configured.status

    # -- members

    def remove(self, member_id: str) -> None:
        super().remove(member_id)
        if not self.members:
            self.shutdown_by = None

    def set_process(self, member: StreamsMember, process: str) -> Steps[None]:
        """Set the process that a member runs in: what it has is that process's."""
        held = member.assigned | member.revoking
        there = self.members.get(member.id) is member
        if there:
            yield from self.holders.count(member, held, -1)
        member.process = process
        if there:
            yield from self.holders.count(member, held, 1)

    def _session_s(self, member: StreamsMember) -> float:
        return self._coordinator.settings_of(self.id).streams_session_timeout_ms / 1000

    def commit_fault(self, member_id: str, instance: str | None, epoch: int, version: int) -> Code:
        """Return why this may not commit now; an older epoch is judged by `task_fault`."""
        if epoch < 0 and not self.members:
            return Code.NONE
        member = self.members.get(member_id)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        if version < 9:  # it knows no way to say that the epoch is stale
            return Code.UNSUPPORTED_VERSION
        return Code.NONE if epoch <= member.epoch else Code.STALE_MEMBER_EPOCH

    def task_fault(self, member_id: str, epoch: int, topic: str, partition: int) -> Code:
        """Return why a member of an older epoch may not commit this (KIP-1251).

        It may if it has had the task since.
        """
        member = self.members.get(member_id)
        if member is None or epoch == member.epoch:
            return Code.NONE
        for number in self._numbers.get(topic, ()):
            given = member.epochs.get((task_key(ACTIVE, number), partition))
            if given is not None and epoch >= given:
                return Code.NONE
        return Code.STALE_MEMBER_EPOCH

    # -- targets

    def choose_assignor(self) -> str:
        return STICKY

    def _interval_s(self) -> float:
        return self._coordinator.settings_of(self.id).streams_assignment_interval_ms / 1000

    def delay(self, over: Callable[[], None]) -> None:
        """Wait for more members before the first target, and call `over` then."""
        delay_s = self._coordinator.settings_of(self.id).streams_initial_rebalance_delay_ms / 1000
        if delay_s <= 0 or self.delayed:
            return
        self.delayed = True

        def due(now: float) -> None:
            self.delayed = False
            over()

        self.alarms.set(_DELAY, self._coordinator.now() + delay_s, due)

    def may_assign(self) -> bool:
        return not self.delayed and super().may_assign()

    def reconcile(self, member: StreamsMember, owned: PartitionSet | None) -> Steps[None]:
        """Take a member a step towards its target."""
        held = member.assigned, member.revoking
        yield from super().reconcile(member, owned)
        if member.assigned is not held[0] or member.revoking is not held[1]:
            yield from member.note_epochs()
