"""The removal of share partitions: of a deleted group, of queues that it is to forget.

A deleted group's share partitions are dropped where they lie, and once that has landed its rows say
no more of them: a stop midway leaves rows that the next one finds. Rows of queues that a group is
to forget go first (`share_offsets.forget`): it lives on, and makes anew what no row tells of.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from itertools import islice

from kproxy.common.errors import Code
from kproxy.groups.upkeep.share_initialisation import Landing, land_changes
from kproxy.loop.pace import Pace, scanned
from kproxy.metadata.catalogue import Lookup
from kproxy.shard.appends import append
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.shares import (
    SET_MAX,
    NoteShareQueues,
    ShareAction,
    ShareChange,
)
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.shares import SHARE_QUEUES
from kproxy.virtual.types import PartitionKey, QueueId

Initialised = tuple[QueueId, int]
"""A queue, and how many of its partitions have share partitions."""


class ShareRemoval:
    """The share removal for the groups of one shard."""

    def __init__(
        self,
        shard: Shard,
        landing: Landing,
        lookup: Lookup,
        now_ms: Callable[[], int],
    ) -> None:
        self._shard = shard
        self._landing = landing
        self._lookup = lookup
        self._now_ms = now_ms

    def _some(self, group: str, start: bytes = b"") -> list[Initialised]:
        """Return the next queues that a group has share partitions of, from a key on."""
        first, end = SHARE_QUEUES.range(group)
        found = islice(self._shard.kv.scan(start or first, end), SET_MAX)
        return [
            (SHARE_QUEUES.parts(key)[1], share_rows.decode_initialised(data)) for key, data in found
        ]

    async def all_initialised(self, group: str) -> AsyncGenerator[Initialised, None]:
        """Yield all queues that a group has share partitions of. Other tasks run in between."""
        start, end = SHARE_QUEUES.range(group)
        async with aclosing(scanned(self._shard.kv.scan, start, end)) as lots:
            async for rows in lots:
                for key, data in rows:
                    yield SHARE_QUEUES.parts(key)[1], share_rows.decode_initialised(data)

    async def drop_all(self, group: str, version: int, everywhere: bool) -> Code:
        """Drop all share partitions of a group whose version is raised for it.

        `everywhere`: of all queues, as there may be some that its rows do not tell of.
        """
        queues = self._lookup.all() if everywhere else iter(())
        while some := list(islice(queues, SET_MAX)):
            parts = [(queue.queue_id, queue.partitions) for queue in some]
            if code := await self.drop(group, version, parts):
                return code
            queues = self._lookup.all(some[-1].name + "\0")
        start, pace = b"", Pace()
        while found := self._some(group, start):
            await pace.step()
            if code := await self._drop_and_forget(group, version, found):
                return code
            start = SHARE_QUEUES.key(group, found[-1][0])  # deleted rows are behind
        return Code.NONE

    async def _drop_and_forget(self, group: str, version: int, queues: list[Initialised]) -> Code:
        """Drop the share partitions of some queues, `SET_MAX` at most, and their rows."""
        return await self.drop(group, version, queues) or await self.forget(group, version, queues)

    async def drop(self, group: str, version: int, queues: list[Initialised]) -> Code:
        """Drop the share partitions of some queues."""
        pace, changes = Pace(), self._drops(version, queues)
        while some := list(islice(changes, SET_MAX)):
            await pace.step()
            if code := await self._land(group, some):
                return code
        return Code.NONE

    def _drops(self, version: int, queues: list[Initialised]) -> Iterator[tuple[str, ShareChange]]:
        for queue_id, partitions in queues:
            queue = self._lookup.find_id(queue_id)
            if queue is not None:  # else they went with it
                for index in range(partitions):
                    yield queue.name, _drop((queue_id, index), version)

    async def _land(self, group: str, changes: list[tuple[str, ShareChange]]) -> Code:
        return await land_changes(self._landing, group, changes, self._now_ms(), set())

    async def forget(self, group: str, version: int, queues: list[Initialised]) -> Code:
        """Remove the rows that tell of share partitions of some queues, `SET_MAX` at most."""
        note = NoteShareQueues(group, version, [(queue_id, 0) for queue_id, _ in queues])
        return (await append(self._shard, note.envelope())).code

    async def forget_gone(self, group: str, version: int) -> list[QueueId]:
        """Remove what rows say of queues that are deleted; which these are."""
        start, gone = b"", list[QueueId]()
        pace = Pace()
        while found := self._some(group, start):
            await pace.step()
            some = [one for one in found if self._lookup.find_id(one[0]) is None]
            if some and await self.forget(group, version, some):
                return gone  # the group is another by now: next time
            gone += [queue_id for queue_id, _ in some]
            start = SHARE_QUEUES.key(group, found[-1][0]) + b"\0"
        return gone


def _drop(key: PartitionKey, version: int) -> ShareChange:
    return ShareChange(key, ShareAction.DROP, version)
