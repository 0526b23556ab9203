"""The interface of a group of any protocol to its coordinator."""

from collections.abc import Mapping
from typing import Any, Protocol

from anyio import Lock

from kproxy.common.errors import Code
from kproxy.groups.upkeep.timers import Alarms
from kproxy.loop.steps import Steps
from kproxy.virtual.rows.groups import Change, GroupRow, Row


class Group(Protocol):
    """A group in memory. `version` is that of the rows that it stands for."""

    id: str
    version: int
    lock: Lock
    alarms: Alarms

    @property
    def kind(self) -> str:
        """The kind that its group row says: "classic", "consumer" or "share"."""
        ...

    @property
    def members(self) -> Mapping[str, Any]: ...
    @property
    def protocol_type(self) -> str | None: ...
    @property
    def idle(self) -> bool:
        """Whether nobody is a member of it or about to be."""
        ...

    # -- rows

    def begin_restoring(self, head: GroupRow) -> None: ...
    def restore(self, member_id: str, row: Row) -> Steps[None]:
        """Become what a row says, beside what others said."""
        ...

    def end_restoring(self) -> None: ...
    def change(self) -> Steps[Change]:
        """Return what to log next."""
        ...

    def was_logged(self, change: Change) -> None: ...
    @property
    def unlogged(self) -> bool:
        """Whether there is more to log."""
        ...

    # -- for its coordinator

    def subscribed(self) -> frozenset[str] | None:
        """Return the names of the queues that members read; None if only they know."""
        ...

    def commit_fault(self, member_id: str, instance: str | None, epoch: int, version: int) -> Code:
        """Return why a member may not commit offsets now; `version` is that of the request."""
        ...

    def end(self, code: Code) -> None:
        """End the group, which is kept no longer; answer waiting requests with this code."""
        ...
