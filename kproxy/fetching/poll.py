"""A Fetch's poll: reads the partitions of a context, and waits while there is too little.

A poll ends when it has `min_bytes`, at an error, after `max_wait`, or when the client sends
another request on the connection: Spark asks for offsets behind each of its Fetches.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.common.memory_budget import AnswerBudget
from kproxy.fetching.context import FetchContext, FetchPartition
from kproxy.fetching.streamed_response import Budget, PartitionRead, Pins, plan_read
from kproxy.loop.pace import Pace
from kproxy.metadata.queue_settings import settings_of
from kproxy.shard.located import Located
from kproxy.shard.shard import Shard


class NextRequest(Protocol):
    """A report whether the client has sent another request."""

    arrived: bool

    def wake(self, event: anyio.Event) -> None:
        """Have the event set when one arrives."""
        ...


class Source(Protocol):
    """The services of a worker that a poll needs."""

    stopping: bool
    answer_memory: AnswerBudget

    @property
    def queue_changes(self) -> int:
        """A count that goes up whenever a queue is made, changed or deleted."""
        ...

    def partition(self, topic: str | bytes, index: int) -> Located:
        """Return a partition by its queue's name or id. Raise KafkaError."""
        ...

    async def long_poll(self, changed: anyio.Event, seconds: float) -> None:
        """Wait for the event, so many seconds at most, or until the worker stops."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PollLimits:
    """The limits that the request sets: sizes in bytes, the wait in seconds."""

    min_bytes: int
    max_bytes: int
    max_wait_s: float
    full: bool
    """Every partition is answered, not only those with news."""
    read_committed: bool = False
    """Whether nothing is read from the first open transaction on, nor what was aborted."""


@dataclass(slots=True)
class _Round:
    """The findings of one round over the partitions."""

    found: list[PartitionRead] = field(default_factory=list)
    size: int = 0
    failed: bool = False
    searching: bool = False
    rested: bool = False
    ahead: set[Shard] = field(default_factory=set)

    def add(self, part: PartitionRead) -> None:
        self.found.append(part)
        self.size += part.size
        if part.code:
            self.failed = True
            if part.code == Code.OFFSET_OUT_OF_RANGE and (shard := _ahead(part)) is not None:
                self.ahead.add(shard)


class Poll:
    """One Fetch request's poll of a context. `pins` keeps readable what it returns."""

    def __init__(
        self, source: Source, context: FetchContext, limits: PollLimits, pace: Pace, pins: Pins,
        unreadable: Callable[[str | bytes], Code] | None = None,
    ) -> None:  # fmt: skip
        """Begin a poll; `unreadable`: why the client may not read a topic, NONE if it may."""
        self._unreadable = unreadable
        self._source = source
        self._context = context
        self._limits = limits
        self._pace = pace
        self._pins = pins
        self._as_of = 0  # changes of queues that there were when this began or rested
        self._quiet: dict[FetchPartition, PartitionRead] = {}
        """The answer's parts of partitions that have nothing to be read, but have news or must be
        answered. They are not looked at again before they change: behind open transactions they may
        be many, and change often."""

    async def run(self, next_request: NextRequest) -> list[PartitionRead]:
        """Poll and return the partitions' parts of the answer."""
        limits, context, source = self._limits, self._context, self._source
        context.polled_until = deadline = anyio.current_time() + limits.max_wait_s
        caught_up = rested = False
        if not limits.full and not context.watching:  # the polls before found enough at once
            await context.watch(self._pace)
            context.look_at_all()
        while True:
            # No await between this and the reading, but where what was found is pinned before it.
            await source.answer_memory.wait_for_room()
            changed = context.expect_change()
            seen = await self._round()
            if seen.ahead and not caught_up:
                caught_up = rested = True
                await _catch_up(seen.ahead)
                continue
            rested = rested or seen.rested
            if seen.searching and not source.stopping:
                rested = True
                await self._pace.rest()
                continue
            enough = seen.size >= limits.min_bytes or seen.failed
            if enough or source.stopping or next_request.arrived:
                return self._answer(seen)
            if (left := deadline - anyio.current_time()) <= 0 or not context.partitions:
                return self._answer(seen)
            if await context.watch(self._pace, rested):
                context.look_at_all()
                continue
            next_request.wake(changed)
            await source.long_poll(changed, left)

    def _answer(self, seen: _Round) -> list[PartitionRead]:
        """Return a full answer's partitions in the order in which they are followed."""
        if not self._limits.full:
            return [*seen.found, *self._quiet.values()]
        parts = self._quiet | {part.followed: part for part in seen.found}
        followed = self._context.partitions.values()
        return [part for one in followed if (part := parts.get(one)) is not None]

    async def _round(self) -> _Round:
        """Read each partition that may have news, while the budget lasts."""
        full, pace, dirty = self._limits.full, self._pace, self._context.dirty
        budget = Budget(self._limits.max_bytes, self._limits.read_committed)
        seen, quiet, pinned = _Round(), self._quiet, 0
        self._pins.release()
        self._as_of = self._source.queue_changes
        pace.begin()
        for followed in list(dirty):
            if not (full or budget.first) and budget.bytes_left <= 0:
                break
            part = self._read(followed, budget)
            quiet.pop(followed, None)
            if part.code or part.size:
                seen.add(part)
            elif full or followed.last_sent != (part.high_watermark, part.log_start):
                quiet[followed] = part
            if not (part.code or part.size or part.held_back):
                dirty.pop(followed, None)
            elif part.size and dirty.pop(followed, 0) is None:
                dirty[followed] = None  # had its turn: the others come first now
            if pace.due:
                self._pins.hold(part.stored for part in seen.found[pinned:] if part.size)
                pinned, seen.rested = len(seen.found), True
                await pace.rest()
                self._as_of = self._source.queue_changes
        seen.searching = budget.searching
        return seen

    def _read(self, followed: FetchPartition, budget: Budget) -> PartitionRead:
        try:
            code = self._locate(followed)
            if self._unreadable is not None:
                code = self._unreadable(followed.ident[0]) or code
            if code:
                return PartitionRead(followed, code)
            if followed.settings.expires_idle_ms >= 0:
                followed.note_used()
            return plan_read(followed, budget)
        except KafkaError as error:  # its rows are damaged, or closed
            return PartitionRead(followed, error.code)

    def _locate(self, followed: FetchPartition) -> Code:
        """Find the partition that an ident means now; its name may be a new queue's by now.

        Its queue may have other settings, too: where queues have changed it is found again.
        """
        as_of = self._as_of
        if followed.key is not None and followed.shard is not None:
            shard = followed.shard  # rows of one that is not served any more may be closed
            if not shard.serving or shard.state.partition(followed.key) is None:
                self._context.locate(followed, None, None)
            elif followed.as_of == as_of:
                return Code.NONE
        try:
            located = self._source.partition(*followed.ident)
        except KafkaError as error:
            self._context.locate(followed, None, None)
            return error.code
        self._context.locate(followed, located.key, located.shard)
        followed.settings, followed.as_of = settings_of(located.queue.configs), as_of
        return Code.NONE


def _ahead(part: PartitionRead) -> Shard | None:
    """Return the shard of a consumer that has read ahead of this worker: another one served it.

    The log is asked where it really ends, before that is an OFFSET_OUT_OF_RANGE.
    """
    followed = part.followed
    assert followed.shard is not None
    assert followed.key is not None
    row = followed.shard.state.partition(followed.key)
    return followed.shard if row is not None and followed.offset > row.next_offset else None


async def _catch_up(shards: set[Shard]) -> None:
    for shard in shards:
        try:
            await shard.log.catch_up()
        except KafkaError:
            return  # no longer ours, or the cluster is away: what is known is the answer
