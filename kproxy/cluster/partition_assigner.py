"""A teller of other shards about the partitions that they hold of a queue.

A queue over several shards is one command in its home shard. The owner of the home shard then
appends ASSIGN_PARTITIONS to each other shard, and repeats it until each shard has folded it. Then
it appends QUEUE_READY in the home shard, and only then can any client use the queue.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import anyio
import structlog

from kproxy.cluster.announcer import ClusterContext
from kproxy.common.errors import Code
from kproxy.log.base import Ticket
from kproxy.shard.appends import outcomes_of
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import AssignPartitions, QueueReady
from kproxy.virtual.commands.routes import DefineRoute
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.types import QueueId

_log = structlog.get_logger()

_AGAIN_S = 1.0


class _Ask(Protocol):
    def __call__(self, index: int, envelope: Envelope, *, landed: bool) -> Ticket: ...


class PartitionAssigner:
    """The queues of which the shards served here have something to tell others."""

    def __init__(self, context: ClusterContext, ask: _Ask, now_ms: Callable[[], int]) -> None:
        """Take `ask`, which appends a command to a shard's log, whoever serves it."""
        self._shards = context.shards
        self._tasks = context.tasks
        self._ask = ask
        self._now_ms = now_ms
        self._driven: set[tuple[int, QueueId]] = set()

    def drive(self, shard: Shard, queue_id: QueueId) -> None:
        """Begin to tell the other shards of a queue, unless that is under way."""
        if (shard.shard, queue_id) not in self._driven:
            self._driven.add((shard.shard, queue_id))
            (shard.tasks or self._tasks).start_soon(self._assign_partitions, shard, queue_id)

    async def _assign_partitions(self, shard: Shard, queue_id: QueueId) -> None:
        """Tell all shards that hold a part of a queue, until all know the latest."""
        try:
            while shard.serving:
                data = shard.state.get(rows.pending_assignment_key(queue_id))
                if data is None:
                    return
                work = json.loads(data)
                told = await self._tell_all(shard, queue_id, work)
                if told is None:
                    await anyio.sleep(_AGAIN_S)
                else:
                    ready = QueueReady(queue_id, work["as_of"], refused=not told).envelope()
                    await outcomes_of([shard.append([ready])])
        finally:
            self._driven.discard((shard.shard, queue_id))

    async def _tell_all(self, shard: Shard, queue_id: QueueId, work: dict[str, Any]) -> bool | None:
        """Whether all know; False: its source has no room for its route; None: not all, yet."""
        assign = AssignPartitions(
            queue_id, work["name"], work["partitions"], work["as_of"], self._now_ms(),
            work.get("routes", ()), work.get("waits", False),
        )  # fmt: skip
        others = self._others(shard, work)
        tickets = [self._ask(index, assign.envelope(), landed=False) for index in others]
        for source, (spec, from_start) in work.get("define", {}).items():
            waits = work.get("waits", False)
            route = DefineRoute(queue_id, source, spec, from_start, work["as_of"], waits)
            home = shard_of(source, self._shards)
            tickets.append(self._ask(home, route.envelope(), landed=True))
        refusals = {outcome.code.name for outcome in await outcomes_of(tickets) if outcome.code}
        if refusals:
            if refusals == {Code.POLICY_VIOLATION.name}:
                _log.warning("route_refused", queue=work["name"], sources=sorted(work["define"]))
                return False
            _log.warning("queue_not_spread_yet", queue=work["name"], reasons=sorted(refusals))
        return None if refusals else True

    def _others(self, shard: Shard, work: dict[str, Any]) -> Iterator[int]:
        """Yield the other shards that hold partitions of the queue."""
        for i in range(1, min(work["over"], self._shards)):
            yield (shard.shard + i) % self._shards
