"""The page that `kproxy top` reads: plain numbers, and the busiest queues and groups, as JSON.

The event loop gathers it, as the rows are its own. A client makes rates of two pages.
"""

import json
from time import monotonic
from typing import Any

from kproxy.loop.pace import Pace
from kproxy.observe.health import Health
from kproxy.observe.on_loop import OnLoop
from kproxy.observe.selected import group_lines
from kproxy.virtual.types import QueueId
from kproxy.worker.worker import Worker

SHOWN = 20
_WAIT_S = 4.0
_PARTITIONS_MAX = 2000  # the partitions of a group that its lag is summed up over


class TopPage(OnLoop):
    """The top page of one worker. `page` is called on the HTTP thread."""

    def __init__(self, health: Health) -> None:
        super().__init__()
        self._health = health

    def page(self) -> bytes:
        """Return a JSON object; of a worker that does not serve yet, or is stuck, only its
        health.
        """
        said: dict[str, Any] = {"health": self._health.report()}
        worker = self._health.worker
        if worker is not None:
            said |= self.gathered(lambda: _gathered(worker), _WAIT_S) or {}
        return json.dumps(said).encode()


async def _gathered(worker: Worker) -> dict[str, Any]:
    counters, pace = worker.counters, Pace()
    groups = []
    for group, commits in counters.busy_groups.top(SHOWN):
        known = await group_lines(worker, str(group), pace, _PARTITIONS_MAX)
        lines = {line.name: line.value for line in known if len(line.labels) == 1}
        groups.append(
            {"group": group, "commits": commits, "lag": lines.get("group_lag_sum"),
             "members": lines.get("group_members")}
        )  # fmt: skip
        await pace.step()
    standing = worker.standing
    shards = [] if standing is None else standing.shards()
    served = [one.shard for one in shards if one.shard is not None]
    timed = counters.request_seconds[0]
    return {
        "at": monotonic(),
        "address": f"{worker.cluster.me.host}:{worker.cluster.me.port}",
        "shards_configured": worker.routes.shards,
        "counters": counters.values() | {"answered": sum(counters.answered),
                                         "failed": sum(counters.failed.values())},
        "produce_seconds": [list(timed.bounds), list(timed.counts)],
        "loop_lag": [list(counters.loop_lag.bounds), list(counters.loop_lag.counts)],
        "shards": [[one.number, one.phase, one.lag] for one in shards],
        "queues": _queues(worker), "groups": groups,
        "queues_count": sum(shard.state.counts.queues for shard in served),
        "partitions_count": sum(shard.state.counts.partitions for shard in served),
        "groups_count": sum(sum(shard.state.counts.groups.values()) for shard in served),
        "live_bytes": sum(shard.state.counts.bytes for shard in served),
        "appends_waiting": sum(shard.log.waiting for shard in served),
        "long_polls": worker.long_polls,
        "buffered": worker.request_memory.used + worker.answer_memory.held,
    }  # fmt: skip


def _queues(worker: Worker) -> list[list[Any]]:
    """Return [name, bytes in, bytes out] of the busiest; a queue that is gone is left out."""
    counters = worker.counters
    found: dict[str, list[int]] = {}
    for column, busiest in enumerate((counters.busy_in, counters.busy_out)):
        for ident, amount in busiest.top(2 * SHOWN):
            name = ident
            if isinstance(ident, bytes):
                queue = worker.catalogue.find_id(QueueId(ident))
                if queue is None:
                    continue
                name = queue.name
            found.setdefault(str(name), [0, 0])[column] += amount
    return [[name, *amounts] for name, amounts in found.items()]
