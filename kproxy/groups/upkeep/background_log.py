"""The work that no request waits for: changed groups are logged, members that were silent for long
are taken out, and groups whose rows were changed by an owner of before are read again.

One after the other, beside requests. A fault in one group ends that group alone.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio
import structlog

from kproxy.common.errors import Code
from kproxy.groups.model.assigned_group import AssignedGroup, Fenced, Still
from kproxy.groups.model.consumer_group import ConsumerGroup
from kproxy.groups.model.group import Group
from kproxy.loop.pace import Pace

_log = structlog.get_logger()


class LoggingCoordinator(Protocol):
    """The services of the coordinator that it needs."""

    def has(self, group: Group) -> bool: ...
    def forget(self, group: Group) -> None: ...
    async def load(self, group_id: str) -> Group | None: ...
    @property
    def log(self) -> Callable[[Group], Awaitable[Code]]: ...
    @property
    def log_changes(self) -> Callable[[Group], Awaitable[Code]]: ...
    @property
    def downgrade_if_due(self) -> Callable[[ConsumerGroup], Awaitable[None]]: ...


class BackgroundLog:
    """The background log of one coordinator's groups; `run` until cancelled."""

    def __init__(self, coordinator: LoggingCoordinator) -> None:
        self._coordinator = coordinator
        self._to_log: deque[Group] = deque()
        self._to_fence: dict[AssignedGroup[Any], Fenced] = {}
        self._to_read: dict[str, None] = {}
        self._more = anyio.Event()

    def soon(self, group: Group) -> None:
        """Log a group when its turn comes."""
        self._to_log.append(group)
        self._more.set()

    def fence_soon(self, group: AssignedGroup[Any], member: Any, still: Still) -> None:
        """Take a member out when its turn comes, if its time is over still."""
        self._to_fence.setdefault(group, []).append((member, still))
        self._more.set()

    def read_soon(self, group_id: str) -> None:
        """Read a group's rows when its turn comes: the times of its members run from then on."""
        self._to_read[group_id] = None
        self._more.set()

    async def run(self) -> None:
        while True:
            self._more = anyio.Event()
            while self._to_read:
                group_id, _ = self._to_read.popitem()
                await self._coordinator.load(group_id)
            while self._to_log:
                group = self._to_log.popleft()
                await self._alone(group, self._log(group))
            while self._to_fence:
                fenced_group, fenced = self._to_fence.popitem()
                await self._alone(fenced_group, self._fence(fenced_group, fenced))
            if not self._to_log and not self._to_fence and not self._to_read:
                await self._more.wait()

    async def _alone(self, group: Group, work: Awaitable[None]) -> None:
        """Do work on a group; a fault in it ends this group, and the rows say how it goes on."""
        try:
            await work
        except Exception:  # any fault: the other groups go on
            _log.exception("group_failed", group=group.id)
            if self._coordinator.has(group):
                self._coordinator.forget(group)
                group.end(Code.NOT_COORDINATOR)

    async def _log(self, group: Group) -> None:
        code = await self._coordinator.log(group)
        if code and self._coordinator.has(group):
            _log.warning("group_not_logged", group=group.id, reason=code.name)

    async def _fence(self, group: AssignedGroup[Any], fenced: Fenced) -> None:
        """Remove the members whose time is still over: a heartbeat may have come first."""
        async with group.lock:
            if not self._coordinator.has(group):
                return
            gone, pace = [], Pace()
            for member, still in fenced:
                member_id: str = member.id
                if group.members.get(member_id) is member and still():
                    group.remove(member_id)
                    gone.append(member_id)
                await pace.step()
            if not gone:
                return
            _log.info("members_fenced", group=group.id, members=len(gone), first=gone[0])
            group.rebalance_without()
            code = await self._coordinator.log_changes(group)
            if code:
                _log.warning("group_not_logged", group=group.id, reason=code.name)
        if isinstance(group, ConsumerGroup):
            await self._coordinator.downgrade_if_due(group)
