"""The share partitions that are followed on this worker, what they log, and their timers.

A change of records is logged before anybody is told: one SHARE for each request and shard. Locks
that run out are gathered, one SHARE for each group and shard.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import inf
from typing import NamedTuple

import anyio

from kproxy.common.counters import Counters
from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.loop.pace import Pace
from kproxy.metadata.group_settings import GroupSettings
from kproxy.shard.shard import Shard
from kproxy.shares.counting import By
from kproxy.shares.counting import count as count_runs
from kproxy.shares.lanes.share_lanes import LaneMemory
from kproxy.shares.share_partition import SharePartition
from kproxy.shares.window import Pending
from kproxy.virtual.commands.shares import OWED, Cause, ChangeShares, Run, ShareRuns
from kproxy.virtual.rows.shares import CHUNK, SHARE_PARTITIONS, TERMINAL
from kproxy.virtual.rows.shares import SharePartition as Row
from kproxy.virtual.types import PartitionKey

_COST_MAX = 500  # cost of one SHARE, which is applied in one turn of the loop: some milliseconds
_TICK_S = 0.1  # locks that run out within it are logged together
_AGAIN_S = 1.0  # after the log took nothing
_READERS = 2
_LANES_BYTES = 256 << 20


class PartitionChange(NamedTuple):
    """A change to be logged of a share partition; `pending`: what waits for that."""

    share: SharePartition
    runs: list[Run]
    pending: Pending | None
    by: By = By.FETCH


class SharePartitions:
    """All of a worker, by group and queue partition."""

    def __init__(
        self,
        settings: Callable[[str], GroupSettings],
        owes: Callable[[Shard, str, int], bool],
        now_ms: Callable[[], int],
        counters: Counters,
        lane_memory: LaneMemory | None = None,
    ) -> None:
        """Set up; `owes`: whether so many archived records of a group go to a dead-letter queue."""
        self.lane_memory = lane_memory or LaneMemory(_LANES_BYTES, counters)
        self.settings = settings
        self._owes = owes
        self.now_ms = now_ms
        self._counters = counters
        self._shares: dict[tuple[str, PartitionKey], SharePartition] = {}
        self._timers: list[tuple[float, int, SharePartition]] = []
        self._numbers = count(1)
        self._sooner = anyio.Event()
        self.readers = anyio.CapacityLimiter(_READERS)
        """Threads that read what rows do not say."""

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(self._shares.values())

    def next_number(self) -> int:
        """Return a number that orders acquisitions and ends of sessions."""
        return next(self._numbers)

    def now(self) -> float:
        """Return the seconds of the loop's clock, by which locks run out."""
        return asyncio.get_running_loop().time()

    # -- finding

    def row(self, shard: Shard, key: PartitionKey, group: str) -> Row | None:
        return SHARE_PARTITIONS.get(shard.state.get, key, group)

    def find(self, shard: Shard, key: PartitionKey, group: str) -> SharePartition:
        """Return the share partition. Raise KafkaError: it is not initialised, or not resolved."""
        ident = (group, key)
        known = self._shares.get(ident)
        if known is not None:
            if known.shard is shard and known.is_current:
                return known
            self._drop(known)
        row = self.row(shard, key, group)
        if row is None or row.since_ms >= 0:
            raise KafkaError(Code.UNKNOWN_SERVER_ERROR)  # as Kafka says it
        made = self._shares[ident] = SharePartition(shard, key, group, row)
        return made

    def known(self, key: PartitionKey, group: str) -> SharePartition | None:
        """Return the share partition, if somebody follows it."""
        found = self._shares.get((group, key))
        return found if found is not None and found.is_current else None

    def _drop(self, share: SharePartition) -> None:
        self._shares.pop((share.group, share.key), None)
        share.shard.watchers.discard(share.key, share)
        share.leave_lanes()
        share.shard.used.add(share.key)
        share.give_up()

    def follow(self, share: SharePartition) -> None:
        if not share.followers:
            share.shard.watchers.add(share.key, share)
        share.followers += 1

    def unfollow(self, share: SharePartition) -> None:
        share.followers -= 1
        if not share.followers:
            share.shard.watchers.discard(share.key, share)
            share.shard.used.add(share.key)
        self.let_go(share)

    def let_go(self, share: SharePartition) -> None:
        """Forget what nobody follows, if the rows say all of it."""
        if share.is_idle and self._shares.get((share.group, share.key)) is share:
            self._drop(share)

    # -- logging

    def log(
        self, group: str, changes: Iterable[PartitionChange]
    ) -> list[tuple[Ticket, list[PartitionChange]]]:
        """Put what becomes of records in line, a ticket for each shard.

        Once that is durable, or was refused, the share partitions know it; then who waits for the
        ticket does.
        """
        by_shard: dict[Shard, list[PartitionChange]] = {}
        for change in changes:
            by_shard.setdefault(change.share.shard, []).append(change)
        tickets = []
        for shard, all_of_shard in by_shard.items():
            for some in _portions(all_of_shard):
                ticket = self._append(shard, group, some)
                tickets.append((ticket, some))
        return tickets

    def _append(self, shard: Shard, group: str, changes: list[PartitionChange]) -> Ticket:
        lost = sum(run.records for one in changes for run in one.runs if run.cause)
        owed = OWED if lost and self._owes(shard, group, lost) else 0
        partitions = [
            ShareRuns(one.share.key, one.share.epoch, _owing(one.runs, owed)) for one in changes
        ]
        holds = {
            id(one): found for one in changes
            if one.share.lanes is not None and (found := one.share.lanes.holds_of(one.runs))
        }  # fmt: skip
        every = tuple(hold for found in holds.values() for hold in found)
        command = ChangeShares(group, partitions, self.now_ms(), every)
        ticket = shard.append([command.envelope()])
        backoff: tuple[float, ...] = ()
        if not all(TERMINAL[run.byte] for one in changes for run in one.runs):
            backoff = tuple(ms / 1000 for ms in self.settings(group).retry_backoff_ms)

        def done() -> None:
            now = self.now()
            for change, code in zip(changes, codes_of(ticket, len(changes)), strict=True):
                if not code:
                    count_runs(self._counters, change.runs, change.by)
                if change.pending is None:
                    continue
                if code:
                    self.take_back(change.share, change.pending)
                else:
                    lanes = change.share.lanes
                    if lanes is not None and lanes.rules.holds:
                        for hold in holds.get(id(change), ()):
                            lanes.hold(hold.lane)
                    change.share.settle(change.pending, backoff, now)
                    self.held_until(change.share, change.share.window.delayed_until)
                self.let_go(change.share)

        ticket.add_done_callback(done)
        return ticket

    def take_back(self, share: SharePartition, pending: Pending) -> None:
        """Leave records to who held them: what was to become of them is not in the log."""
        now = self.now()
        share.take_back(pending, now + _AGAIN_S)
        self.set_timer(share, now + _TICK_S)

    # -- timers

    def held_until(self, share: SharePartition, deadline: float) -> None:
        """Note that somebody holds records of it so long."""
        if deadline < share.due:
            self._push(share, deadline)

    def set_timer(self, share: SharePartition, earliest: float) -> None:
        due = share.window.due
        if due < share.due and due < inf:
            self._push(share, max(due, earliest))

    def _push(self, share: SharePartition, due: float) -> None:
        share.due = due
        first = self._timers[0][0] if self._timers else inf
        heapq.heappush(self._timers, (due, next(self._numbers), share))
        if due < first:
            self._sooner.set()

    async def run(self) -> None:
        """Let locks run out, and give again what was delayed, until cancelled."""
        while True:
            self._sooner = anyio.Event()
            due = self._timers[0][0] if self._timers else inf
            with anyio.move_on_after(max(0.0, due - self.now())):
                await self._sooner.wait()
            if self._timers and self._timers[0][0] <= self.now():
                await self._run_due(self.now())
                await anyio.sleep(_TICK_S)

    async def _run_due(self, now: float) -> None:
        by_group: dict[str, list[PartitionChange]] = {}
        pace = Pace()
        while self._timers and self._timers[0][0] <= now:
            due, _, share = heapq.heappop(self._timers)
            if due == share.due:
                share.due = inf
                self._expire(share, now, by_group)
            if pace.due:
                self._log_all(by_group)
                await pace.rest()
        self._log_all(by_group)

    def _expire(
        self, share: SharePartition, now: float, by_group: dict[str, list[PartitionChange]]
    ) -> None:
        if not share.is_current:
            if self._shares.get((share.group, share.key)) is share:
                self._drop(share)
            return
        limit = self.settings(share.group).delivery_count_limit
        if share.window.resume(now):
            share.wake_next()
        pending = share.window.expire(now, limit)
        if pending.runs:
            by_group.setdefault(share.group, []).append(
                PartitionChange(share, pending.runs, pending, By.TIME)
            )
        self.set_timer(share, now + _AGAIN_S if pending.runs else now)
        self.let_go(share)

    def _log_all(self, by_group: dict[str, list[PartitionChange]]) -> None:
        for group, changes in by_group.items():
            self.log(group, changes)
        by_group.clear()


def _portions(changes: list[PartitionChange]) -> Iterator[list[PartitionChange]]:
    """Yield what goes into one SHARE each: a partition costs about as much as 256 of its records,
    or a few runs."""
    some: list[PartitionChange] = []
    cost = 0
    for change in changes:
        records = sum([run[1] for run in change.runs])
        one = 1 + records // CHUNK + len(change.runs) // 4
        if some and cost + one > _COST_MAX:
            yield some
            some, cost = [], 0
        some.append(change)
        cost += one
    if some:
        yield some


def _owing(runs: list[Run], owed: int) -> list[Run]:
    runs.sort()
    if not owed:
        return runs
    return [
        run._replace(cause=run.cause | owed) if run.cause != Cause.NONE else run for run in runs
    ]


Logged = tuple[Ticket, list[PartitionChange]]
"""A SHARE on its way, and what it says."""


async def codes_once_done(ticket: Ticket, partitions: int) -> list[Code]:
    """Return `codes_of` once the ticket is done."""
    if not ticket.done:
        event = asyncio.Event()
        ticket.add_done_callback(event.set)
        await event.wait()
    return codes_of(ticket, partitions)


def codes_of(ticket: Ticket, partitions: int) -> list[Code]:
    """Return what became of each share partition of a SHARE that is done."""
    if ticket.error is not None:
        return [ticket.error.code] * partitions
    outcome = ticket.outcomes()[0]
    return [outcome.code] * partitions if outcome.code else list(outcome.codes)
