"""The cleanup of this worker's shards after a queue of another home shard changed or was deleted.

Neither changes an answer: offsets under a deleted queue's id are invisible at once, and retention
checks each partition once a day anyway. Cleaning therefore waits wherever the catalogue may be
behind.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator

import structlog
from anyio.lowlevel import checkpoint

from kproxy.common.errors import KafkaError
from kproxy.loop.pulse import pulse
from kproxy.metadata.catalogue import Lookup
from kproxy.shard.housekeeper import sweep_commits
from kproxy.shard.shard import Shard
from kproxy.virtual.changes import Kv
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId

_log = structlog.get_logger()

_PERIOD_S = 1.0


class RemoteQueueCleanup:
    """A cleanup that hears announcements, and works through them once a second, among a shard's
    tasks.
    """

    def __init__(
        self,
        shards: int,
        serving: Callable[[], list[Shard]],
        lookup: Lookup,
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        """Take `settle`, which waits until the lookup is as new as the cluster's."""
        self._shards = shards
        self._serving = serving
        self._lookup = lookup
        self._settle = settle
        self._gone: set[QueueId] = set()
        self._changed: dict[str, Queue] = {}

    def queue_gone(self, queue_id: QueueId) -> None:
        self._gone.add(queue_id)

    def settings_changed(self, queue: Queue) -> None:
        self._changed[queue.name] = queue

    async def run(self) -> None:
        while True:
            await pulse(_PERIOD_S)
            await self.round()

    async def round(self) -> None:
        """Work through what was heard so far."""
        changed, self._changed = list(self._changed.values()), {}
        gone = await self._surely_gone()
        if gone or changed:
            for shard in self._serving():
                if shard.tasks is not None:
                    shard.tasks.start_soon(self.look_at, shard, gone, changed)

    async def _surely_gone(self) -> list[QueueId]:
        """Return the queues heard to be gone that do not exist as the cluster has it now."""
        gone, self._gone = sorted(self._gone), set()
        if not gone:
            return []
        try:
            await self._settle()
        except KafkaError as error:
            _log.debug("remote_cleanup_deferred", reason=str(error))
            self._gone.update(gone)
            return []
        return [queue_id for queue_id in gone if self._lookup.find_id(queue_id) is None]

    async def look_at(self, shard: Shard, gone: list[QueueId], changed: list[Queue]) -> None:
        """Clean up one shard after these deletions and changes."""
        for queue_id in tracked_among(shard.kv, gone):
            if shard.serving:
                await sweep_commits(shard, queue_id)
        for queue in changed:
            self._file(shard, queue)
            await checkpoint()

    def _file(self, shard: Shard, queue: Queue) -> None:
        """File the queue's partitions for a look at their retention, and tell its readers."""
        first = (shard.shard - shard_of(queue.name, self._shards)) % self._shards
        mine = range(first, queue.partitions, self._shards)
        if mine:
            shard.commit({rows.retention_due_key(0, queue.queue_id, index): b"" for index in mine})
            shard.watchers.wake({(queue.queue_id, index) for index in mine})


def tracked_among(kv: Kv, queue_ids: list[QueueId]) -> Iterator[QueueId]:
    """Yield the ids, in order, of queues for which groups have committed offsets."""
    at = 0
    while at < len(queue_ids):
        start = RowKind.OFFSET_BY_QUEUE + queue_ids[at]
        key = next((k for k, _ in kv.scan(start, RowKind.OFFSET_BY_QUEUE.range()[1])), None)
        if key is None:
            return
        found = rows.queue_id_of(key)
        at = bisect_left(queue_ids, found, at)
        if at < len(queue_ids) and queue_ids[at] == found:
            yield found
            at += 1
