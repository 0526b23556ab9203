"""Makes the share partitions that a share group lacks, before they are assigned.

They lie beside the records, in any shard: SHARE_SET goes there, and once it has landed SHARE_QUEUES
says so in the group's shard. Before either, the group's row says that some may be made. The next
coordinator does what one did not get to: what is there already stays as it is. A few are made
within the heartbeat that needs them, many beside it, and what has failed is tried again.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, Protocol

import anyio
import structlog
from anyio import move_on_after

from kproxy.common.errors import Code
from kproxy.groups.assigning.subscriptions import SubscriptionResolver
from kproxy.groups.model.share_group import ShareGroup
from kproxy.log.base import Ticket
from kproxy.loop.steps import EVERY, Steps, Work, finish, spent
from kproxy.metadata.catalogue import Lookup
from kproxy.metadata.group_values import AutoOffsetReset, OffsetReset
from kproxy.shard.appends import append, outcomes_of
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.shares import (
    EARLIEST,
    LATEST,
    SET_MAX,
    NoteShareQueues,
    SetShares,
    ShareAction,
    ShareChange,
)
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.rows.shares import NOWHERE
from kproxy.virtual.types import QueueId

_log = structlog.get_logger()

_INLINE_S = 2.0  # a heartbeat waits for shards of other workers, at most
_AGAIN_S = 1.0


class Landing(Protocol):
    """The shards that queues lie in, whoever serves them."""

    shards: int

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        """Append to a shard's log: settled once all are durable there."""
        ...


class OwnShard:
    """Embedded: one shard has everything."""

    shards = 1

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        return self._shard.append(envelopes)


class Stretch(NamedTuple):
    """Partitions of a queue, from `first` to before `end`."""

    queue: Queue
    first: int
    end: int


Lot = list[Stretch]
"""A lot of `SET_MAX` partitions at most."""


async def land_changes(
    landing: Landing, group: str, named: Iterable[tuple[str, ShareChange]], time_ms: int,
    away: set[int], since: int = 0,
) -> Code:  # fmt: skip
    """Land changes of share partitions, given with the names of their queues, `SET_MAX` at most.

    Shards where that fails are added to `away`, and those that are in it are passed over. The code
    says why one failed. `since`: `ShareGroup.since`, where some are to be made.
    """
    by_shard: dict[int, list[ShareChange]] = {}
    for name, change in named:
        index = shard_in(landing, name, change.key[1])
        if index not in away:
            by_shard.setdefault(index, []).append(change)
    tickets = [
        landing.land(index, [SetShares(group, changes, time_ms, since).envelope()])
        for index, changes in by_shard.items()
    ]
    code = Code.NONE
    for index, outcome in zip(by_shard, await outcomes_of(tickets), strict=True):
        if outcome.code:
            code = outcome.code
            away.add(index)
    return code


def shard_in(landing: Landing, name: str, partition: int) -> int:
    """Return the shard of a queue's partition."""
    return shard_of(name, landing.shards, partition) if landing.shards > 1 else 0


class ShareInitialisation:
    """The share partitions of one coordinator's groups. `later` does work beside heartbeats."""

    def __init__(
        self,
        shard: Shard,
        landing: Landing,
        lookup: Lookup,
        subscriptions: SubscriptionResolver,
        now_ms: Callable[[], int],
        reset_of: Callable[[str], AutoOffsetReset],
        there: Callable[[ShareGroup], bool],
        stamp: Callable[[ShareGroup], Awaitable[Code]],
    ) -> None:
        """Set up; `reset_of`: where a group begins in new queues. `stamp`: log it as it is now."""
        self._shard = shard
        self._landing = landing
        self._lookup = lookup
        self._subscriptions = subscriptions
        self._now_ms = now_ms
        self._reset_of = reset_of
        self._there = there
        self._stamp = stamp

    async def begin(self, group: ShareGroup) -> None:
        """Make what a group lacks: now if that is little, else soon. Under the group's lock."""
        group.unchecked = False
        if group.initialising:
            group.unchecked = True  # the coroutine at work looks once more
            return
        work = Work(self._lacking(group))
        if work.begin() and len(work.result) < 2:
            making = _Pass(locked=True)
            making.failed = not await self._announce(group, work.result)
            with move_on_after(_INLINE_S):
                for lot in work.result:
                    if not making.failed:
                        await self._make(group, lot, making)
                if making.made:
                    group.reassign()
                if not making.failed:
                    group.making = False
                    return
        group.initialising = True
        self._subscriptions.later(lambda: self._go_on(group))

    async def _announce(self, group: ShareGroup, lots: list[Lot]) -> bool:
        """Log that share partitions may be there from now on; under the group's lock."""
        if not lots:
            return True
        group.making = True
        if not group.making_is_logged and await self._stamp(group):
            return False
        return group.making_is_logged

    def _lacking(self, group: ShareGroup) -> Steps[list[Lot]]:
        """Return what is subscribed to, and may not be assigned yet."""
        lots: list[Lot] = []
        seen: set[QueueId] = set()
        room = 0
        for topics, _ in group.subscription_counts.all():
            for number, name in enumerate(topics, 1):
                if number % EVERY == 0:
                    yield
                queue = self._lookup.find(name)
                if queue is None or queue.queue_id in seen:
                    continue
                seen.add(queue.queue_id)
                first = group.initialised.get(queue.queue_id, 0)
                yield from spent(queue.partitions - first)
                while first < queue.partitions:
                    if not room:
                        lots.append([])
                        room = SET_MAX
                    end = min(queue.partitions, first + room)
                    lots[-1].append(Stretch(queue, first, end))
                    room -= end - first
                    first = end
        return lots

    async def _make(self, group: ShareGroup, lot: Lot, making: "_Pass") -> None:
        """Make share partitions, and note those that were made."""
        named = [
            (queue.name, change)
            for queue, first, end in lot
            for change in self.initial(group, queue, first, end)
        ]
        code = await land_changes(
            self._landing, group.id, named, self._now_ms(), making.away, group.since
        )
        upto = making.landed(self._landing, lot)
        if upto:
            async with nullcontext() if making.locked else group.lock:
                code = await self.note(group, list(upto.items())) or code
        if code:
            making.failed = True
            _log.warning("share_partitions_not_made", group=group.id, reason=code.name)
        making.made = making.made or bool(upto)

    def initial(self, group: ShareGroup, queue: Queue, first: int, end: int) -> list[ShareChange]:
        """Return what makes share partitions of a queue, first <= partition < end."""
        reset = self._reset_of(group.id)
        start, since_ms = LATEST, NOWHERE
        if reset.kind == OffsetReset.EARLIEST:
            start = EARLIEST
        elif reset.kind == OffsetReset.BY_DURATION:
            since_ms = max(0, self._now_ms() - reset.duration_ms)
        action, epoch = ShareAction.INITIALISE, group.version
        return [
            ShareChange((queue.queue_id, index), action, epoch, start, since_ms)
            for index in range(first, end)
        ]

    async def note(self, group: ShareGroup, queues: list[tuple[QueueId, int]]) -> Code:
        """Note how many partitions of queues have share partitions; under the group's lock."""
        if not self._there(group):
            return Code.NOT_COORDINATOR
        note = NoteShareQueues(group.id, group.version, queues)
        code = (await append(self._shard, note.envelope())).code
        if not code:
            for queue_id, end in queues:
                group.note_initialised(queue_id, end)
        return code

    async def _go_on(self, group: ShareGroup) -> None:
        """Make what a group lacks until it lacks nothing, or is gone."""
        while self._there(group):
            group.unchecked = False
            work = Work(self._lacking(group))
            if not await finish(work, lambda: self._there(group)):
                return
            making = _Pass()
            async with group.lock:
                if not self._there(group):
                    return
                making.failed = not await self._announce(group, work.result)
            for lot in work.result if not making.failed else ():
                await self._make(group, lot, making)
            async with group.lock:
                if not self._there(group):
                    return
                group.making = making.failed or group.unchecked
                if making.made:
                    group.reassign()
                    self._subscriptions.assign_if_due(group)
                    await self._subscriptions.log_changes(group)
                if not making.failed and not group.unchecked:
                    group.initialising = False
                    return
            if making.failed:
                await anyio.sleep(_AGAIN_S)


class _Pass:
    """One look at all that a group lacks."""

    def __init__(self, *, locked: bool = False) -> None:
        """Begin; `locked`: the group's lock is held meanwhile."""
        self.locked = locked
        self.away: set[int] = set()  # shards where nothing could be made
        self.failed = self.made = False
        self._broken: set[QueueId] = set()

    def landed(self, landing: Landing, lot: Lot) -> dict[QueueId, int]:
        """Return of how many partitions of which queues there are share partitions now.

        A queue that lacks one has none behind it noted.
        """
        upto: dict[QueueId, int] = {}
        for queue, first, end in lot:
            if self.away and any(
                shard_in(landing, queue.name, index) in self.away for index in range(first, end)
            ):
                self._broken.add(queue.queue_id)
                self.failed = True
            if queue.queue_id not in self._broken:
                upto[queue.queue_id] = end
        return upto
