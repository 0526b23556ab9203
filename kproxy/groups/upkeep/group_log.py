"""The way of groups' changes into the log, under each group's lock."""

from collections.abc import Callable

from kproxy.common.errors import Code
from kproxy.groups.model.assigned_group import AssignedGroup
from kproxy.groups.model.group import Group
from kproxy.loop.steps import done
from kproxy.shard.appends import append
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.groups import ChangeGroup
from kproxy.virtual.rows.groups import NO_VERSION, GroupRow


class GroupLog:
    """The log of one coordinator's groups."""

    def __init__(
        self,
        shard: Shard,
        has: Callable[[Group], bool],
        head: Callable[[str], GroupRow | None],
        forget: Callable[[Group], None],
        read_again: Callable[[Group, Code], None],
        now_ms: Callable[[], int],
    ) -> None:
        """Set up; `has`: whether this is the group of its id; `head` reads a group's row.

        `read_again` drops a group whose rows may be others than it has.
        """
        self._shard = shard
        self._has = has
        self._head = head
        self._forget = forget
        self._read_again = read_again
        self._now_ms = now_ms

    async def log(self, group: Group) -> Code:
        """Log a group as it stands when its turn comes. If that fails, the group may be dropped."""
        async with group.lock:
            return await self.log_changes(group)

    async def log_changes(self, group: Group) -> Code:
        """Log a group's changes for a caller that has the group's lock."""
        if not self._has(group):
            return Code.NOT_COORDINATOR
        assigned = isinstance(group, AssignedGroup)
        if assigned and not group.unlogged:
            return Code.NONE
        code = await self._log_some(group)
        while not code and group.unlogged:
            code = await self._log_some(group)
        if not code and group.idle:
            self._forget(group)
        elif code == Code.NOT_COORDINATOR or (code and assigned):
            self._read_again(group, code)
        return code

    async def stamp(self, group: Group) -> Code:
        """Give a group a new version, for a caller that has its lock."""
        if not self._has(group):
            return Code.NOT_COORDINATOR
        code = await self._log_some(group)
        if code:
            self._read_again(group, code)
        return code

    async def _log_some(self, group: Group) -> Code:
        """Log a part of what changed.

        A commit that no member makes writes the group's row too, while there are no members.
        """
        while True:
            code = await self._append(group)
            head = self._head(group.id)
            version = NO_VERSION if head is None else head.version
            others = head is not None and head.members
            if code != Code.NOT_COORDINATOR or others or version == group.version:
                return code
            group.version = version

    async def _append(self, group: Group) -> Code:
        change = await done(group.change())
        envelope = await done(
            ChangeGroup.encode(
                group.id,
                group.version,
                group.kind,
                change.members,
                change.values,
                change.rows,
                level=self._shard.level.value,
                time_ms=self._now_ms(),
            )
        )
        outcome = await append(self._shard, envelope)
        if not outcome.code:
            group.version = outcome.number
            group.was_logged(change)
        return outcome.code
