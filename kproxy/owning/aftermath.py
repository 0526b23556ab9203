"""What follows in this worker's shards when a queue whose home is elsewhere changes or goes.

Neither changes an answer: offsets filed under a dead queue's id are invisible at once, and
retention is looked at once a day anyway.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from anyio.lowlevel import checkpoint

from kproxy.keeper import sweep_commits
from kproxy.pulse import pulse
from kproxy.shard import Shard
from kproxy.virtual import rows
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import Queue
from kproxy.virtual.state import Kv
from kproxy.virtual.types import QueueId

_PERIOD_S = 1.0


class Aftermath:
    """Told of announcements; works through them once a second."""

    def __init__(self, shards: int, serving: Callable[[], list[Shard]]) -> None:
        self._shards = shards
        self._serving = serving
        self._gone: set[QueueId] = set()
        self._changed: dict[str, Queue] = {}

    def queue_gone(self, queue_id: QueueId) -> None:
        self._gone.add(queue_id)

    def settings_changed(self, queue: Queue) -> None:
        self._changed[queue.name] = queue

    async def run(self) -> None:
        while True:
            await pulse(_PERIOD_S)
            gone, self._gone = sorted(self._gone), set()
            changed, self._changed = list(self._changed.values()), {}
            for shard in self._serving():
                for queue_id in tracked_among(shard.kv, gone):
                    await sweep_commits(shard, queue_id)
                await checkpoint()
            for queue in changed:
                self._look_at(queue)
                await checkpoint()

    def _look_at(self, queue: Queue) -> None:
        """File the queue's partitions for a look at their retention."""
        home = shard_of(queue.name, self._shards)
        for shard in self._serving():
            first = (shard.shard - home) % self._shards
            mine = range(first, queue.partitions, self._shards)
            if mine:
                shard.commit({rows.due_key(0, queue.queue_id, index): b"" for index in mine})


def tracked_among(kv: Kv, queue_ids: list[QueueId]) -> Iterator[QueueId]:
    """Those of these ids, in order, on which groups have committed offsets."""
    at = 0
    while at < len(queue_ids):
        key = next((k for k, _ in kv.scan(b"r" + queue_ids[at], b"s")), None)
        if key is None:
            return
        found = QueueId(key[1:17])
        at = bisect_left(queue_ids, found, at)
        if at < len(queue_ids) and queue_ids[at] == found:
            yield found
            at += 1
