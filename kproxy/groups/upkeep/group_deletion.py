"""The deletion of groups, each as a whole, even if the coordinator ends midway.

A share group's share partitions are dropped first, wherever they lie: its row is marked before.

One command deletes a group of few offsets. For a group of many, the first command marks the group
row as being deleted, the next ones delete some hundreds of offsets each, and the last one deletes
the row. If the coordinator ends midway, the next coordinator continues when a request names the
group, or when offset expiry finds it: the marked row is filed under the earliest time.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

import anyio
import structlog

from kproxy.common.errors import Code
from kproxy.loop.steps import done
from kproxy.shard.appends import append
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.groups import ChangeGroup, DeleteGroup
from kproxy.virtual.commands.offsets import DeleteOffsets, ExpireOffsets
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows.groups import GOING, GroupRow
from kproxy.virtual.rows.transactions import PENDING_BY_PARTITION

_log = structlog.get_logger()

_OFFSETS_AT_ONCE = 500


class GroupDeletions:
    """The deletions of one coordinator; `run` until cancelled."""

    def __init__(
        self,
        shard: Shard,
        head: Callable[[str], GroupRow | None],
        now_ms: Callable[[], int],
        drop_shares: Callable[[str, int, bool], Awaitable[Code]],
    ) -> None:
        """Set up; `head` reads a group's row; `drop_shares` drops its shares by its version.

        It drops those of all queues, if the group may have some that its rows do not tell of.
        """
        self._shard = shard
        self._head = head
        self._now_ms = now_ms
        self._drop_shares = drop_shares
        self._under_way: set[str] = set()
        self._begun: deque[str] = deque()  # by a former coordinator
        self._more = anyio.Event()
        self._ended = False

    def going(self, group: str) -> bool:
        """Return whether a group is being deleted. `run` continues a former coordinator's."""
        if group in self._under_way:
            return True
        head = self._head(group)
        if head is None or not head.going:
            return False
        self._under_way.add(group)
        self._begun.append(group)
        self._more.set()
        return True

    async def delete(self, group: str) -> Code:
        """Delete a group without members. A group that has changed meanwhile stays."""
        self._under_way.add(group)
        try:
            return await self._delete(group)
        finally:
            self._under_way.discard(group)

    async def _delete(self, group: str) -> Code:
        head = self._head(group)
        if head is not None and head.members:
            return Code.NON_EMPTY_GROUP
        many = max(len(self._offsets(group)), len(self._pending(group))) > _OFFSETS_AT_ONCE
        shares = head is not None and head.kind == "share"
        if head is not None and not head.going and (many or shares):
            code = await self._mark_going(group, head)
            if code:
                return code
            head = self._head(group)
        if head is not None and shares:
            code = await self._drop_shares(group, head.version, head.values["making"])
            if code:
                return Code.COORDINATOR_NOT_AVAILABLE
        code = await self._delete_most_pending(group)  # first: an EXPIRE spares what they are for
        if not code:
            code = await self._delete_most_offsets(group, head)
        if not code:
            envelope = DeleteGroup(group).envelope()
            code = (await append(self._shard, envelope)).code
        return code

    def _offsets(self, group: str, start: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Return the first offsets from `start`: one more than a command deletes, if any."""
        first, end = offset_rows.offset_range(group)
        return list(islice(self._shard.kv.scan(start or first, end), _OFFSETS_AT_ONCE + 1))

    def _pending(self, group: str, start: bytes = b"") -> list[bytes]:
        """Return keys of offsets that wait for transactions, by partition; as `_offsets`."""
        if not self._shard.state.pending_offsets:
            return []
        first, end = PENDING_BY_PARTITION.range(group)
        found = self._shard.kv.scan(start or first, end)
        return [key for key, _ in islice(found, _OFFSETS_AT_ONCE + 1)]

    async def _delete_most_pending(self, group: str) -> Code:
        start = b""
        while len(pending := self._pending(group, start)) > _OFFSETS_AT_ONCE:
            if not self._shard.serving or self._ended:
                return Code.COORDINATOR_NOT_AVAILABLE
            start = pending.pop()  # RocksDB would step over what was deleted
            keys = dict.fromkeys(PENDING_BY_PARTITION.parts(key)[1] for key in pending)
            deletion = DeleteOffsets(group, list(keys)).envelope(self._shard.level.value)
            if code := await self._append(deletion):
                return code
        return Code.NONE

    async def _mark_going(self, group: str, head: GroupRow) -> Code:
        values = head.values | {GOING: True}
        level, time_ms = self._shard.level.value, self._now_ms()
        change = ChangeGroup.encode(
            group, head.version, head.kind, 0, values, {}, level=level, time_ms=time_ms
        )
        return await self._append(await done(change))

    async def _delete_most_offsets(self, group: str, head: GroupRow | None) -> Code:
        """Delete all offsets but the few that the last command deletes with the group's row."""
        shard, start = self._shard, b""
        while shard.serving and not self._ended:
            found = self._offsets(group, start)
            if len(found) <= _OFFSETS_AT_ONCE or head is None:
                return Code.NONE
            start = found.pop()[0]
            offsets = []
            for key, value in found:
                queue_id, index = offset_rows.partition_of_offset(key)
                offsets.append((queue_id, index, offset_rows.decode_committed(value).time_ms))
            expiry = ExpireOffsets(group, head.version, False, offsets)
            code = await self._append(expiry.envelope(shard.level.value))
            if code:
                return code
        return Code.COORDINATOR_NOT_AVAILABLE

    async def _append(self, envelope: Envelope) -> Code:
        code = (await append(self._shard, envelope)).code
        return Code.NON_EMPTY_GROUP if code == Code.NOT_COORDINATOR else code

    async def run(self) -> None:
        """Continue the deletions that a former coordinator began."""
        while True:
            self._more = anyio.Event()
            while self._begun:
                group = self._begun.popleft()
                code = await self.delete(group)
                _log.info("group_deleted", group=group, code=code.name)
            await self._more.wait()

    def end(self) -> None:
        self._ended = True
