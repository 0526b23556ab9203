"""A share group (KIP-932), as Kafka's `ShareGroup`: who its members are, and who has what.

The state of records is kept beside the records, not here: a group only knows of which queue
partitions it has *share partitions*, and assigns no others. A member gets its target at its next
heartbeat: partitions are shared, and nobody has to give any up first.
"""

from typing import Any

from kproxy.common.errors import Code
from kproxy.groups.assigning.simple_assignor import SIMPLE
from kproxy.groups.model.assigned_group import (
    AssignedGroup,
    AssigningCoordinator,
    AssignmentResult,
)
from kproxy.groups.model.assigned_member import AssignedMember
from kproxy.loop.steps import Steps
from kproxy.virtual.rows.groups import GroupRow, Row
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId

SHARE_PROTOCOL = "share"


class ShareGroup(AssignedGroup[AssignedMember]):
    """A group with the numbers of its share partitions by queue."""

    kind = "share"
    protocol_type = SHARE_PROTOCOL

    def __init__(self, group_id: str, coordinator: AssigningCoordinator) -> None:
        super().__init__(group_id, coordinator)
        self.since = 0
        """A log offset. Share partitions of an earlier epoch are not its own: they are of a group
        that had this name before, or were dropped, and a late command has made them again."""
        self.initialised: dict[QueueId, int] = {}
        """The number of a queue's partitions that have share partitions: these may be assigned."""
        self.unchecked = True  # whether queues lack some has yet to be looked at
        self.initialising = False  # beside what members ask for
        self.making = False
        """Whether there may be share partitions that no row tells of. It is logged before any is
        made: who ends midway leaves word of it."""
        self._left_some = False  # a former coordinator may have
        self._shares = 0  # share partitions there are
        self._shares_taken = 0  # and were, when the target was begun that is being made,
        self._target_shares = 0  # or the one that is

    # -- rows

    def begin_restoring(self, head: GroupRow) -> None:
        super().begin_restoring(head)
        self._target_shares = head.values["shares"]
        self._left_some = head.values["making"]
        self.since = head.values.get("since", 0)

    def restore(self, member_id: str, row: Row) -> Steps[None]:
        self.put((yield from AssignedMember.from_row(member_id, row)))

    def end_restoring(self) -> None:
        super().end_restoring()
        if self.members and self._shares != self._target_shares:
            self.reassign()  # there are share partitions that were never assigned

    def values(self) -> dict[str, Any]:
        return super().values() | {
            "shares": self._target_shares,
            "making": self.making or self._left_some,
            "since": self.since,
        }

    @property
    def making_is_logged(self) -> bool:
        return self._logged is not None and bool(self._logged["making"])

    # -- members

    def _session_s(self, member: AssignedMember) -> float:
        return self._coordinator.settings_of(self.id).share_session_timeout_ms / 1000

    def commit_fault(self, member_id: str, instance: str | None, epoch: int, version: int) -> Code:
        """Refuse: nobody commits offsets here, a group of this id is no consumer group."""
        return Code.GROUP_ID_NOT_FOUND

    # -- the queues that they read

    def reads_others(self) -> None:
        """Note that the queues that it reads are others, or have more partitions."""
        self.unchecked = True

    def note_initialised(self, queue_id: QueueId, partitions: int) -> None:
        """Note share partitions of so many partitions of a queue; 0: none any more."""
        self._shares += partitions - self.initialised.pop(queue_id, 0)
        if partitions:
            self.initialised[queue_id] = partitions

    def assignable(self, queue: Queue) -> int:
        """Return how many partitions of a queue may be assigned."""
        return min(queue.partitions, self.initialised.get(queue.queue_id, 0))

    # -- targets

    def choose_assignor(self) -> str:
        return SIMPLE

    def _interval_s(self) -> float:
        return self._coordinator.settings_of(self.id).assignment_interval_ms / 1000

    def reassign(self) -> None:
        """Make a new target due, if none is already."""
        if self.target_epoch == self.epoch:
            self.epoch += 1

    def begin_target(self) -> None:
        self._shares_taken = self._shares

    def take_target(self, made: AssignmentResult, took_s: float = 0.0) -> None:
        super().take_target(made, took_s)
        self._target_shares = self._shares_taken

    def reconcile(self, member: AssignedMember) -> None:
        """Give a member its target."""
        if member.epoch != self.target_epoch:
            member.move_to(self.target_epoch)
            member.assigned = member.target
            self.changed.add(member.id)
