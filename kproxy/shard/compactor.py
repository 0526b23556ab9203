"""Compaction: of each key the last record stays (`cleanup.policy=compact`).

A pass over a partition has two parts, as Kafka's cleaner has. The first reads what is new since the
last pass, and notes the last offset of each key, of as many keys as memory is given for. The second
reads the partition from its start, and drops each record whose key has a later one noted. The
decision on dropped records is made here and logged: REPLACE writes a batch again without some
records, COMPACT names batches of which nothing is left, and at the end how far the pass came. So
all workers and every rebuild agree. A crash between two of them leaves records that the next pass
drops.

A batch stays as it is where the log would not take it with fewer records, for it grows when it is
packed again, or where it holds more than is looked at. Then no tombstone goes: there may be older
records of its key in that batch.

A key's last record is never dropped, so an older one cannot be seen to come back. A record without
a value (a tombstone) goes `delete.retention.ms` after a pass that left nothing older of its key.

The partition's last record stays, whatever it is: a reader that waits for the end gets there. A
batch that cannot be read is left as it is, with all of its partition.

A transaction's records are looked at once all before them is decided. Records of an aborted one go,
and stand for no key. The marker of a committed one goes, for it says nothing to a reader. That of
an aborted one stays until the next pass, as its ABORTED row does: a reader drops all of the
producer's records from the row's offset to the marker's, and then there are none.
"""

from collections.abc import Callable

import structlog
from anyio import CapacityLimiter, Semaphore, create_task_group
from anyio.lowlevel import checkpoint

from kproxy.common.counters import Counters
from kproxy.common.errors import KafkaError
from kproxy.config.server import Config
from kproxy.loop.pulse import pulse
from kproxy.metadata.catalogue import Lookup
from kproxy.metadata.queue_settings import settings_of
from kproxy.shard.compaction_pass import Pass, Stopped, Unreadable
from kproxy.shard.compaction_plan import Plan, plan
from kproxy.shard.shard import Shard
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

_UNREADABLE_MAX = 10_000
_FRAME_BYTES = 1024  # around a batch that is written again
_LOOKS_AT_ONCE = 50
_PASSES = 16
"""The number of passes at a time in a shard, so that small partitions share the log's fsync."""
_SMALL_BYTES = 64 << 10
"""A pass over no more takes little memory, whatever is in it."""


class CompactionLimits:
    """The bounds on a worker's compaction at a time, over all of its shards."""

    def __init__(self) -> None:
        self.large = CapacityLimiter(1)  # passes over large partitions: each notes many keys
        self.unpacking = CapacityLimiter(1)  # threads: a batch may unpack to 32 MiB


class Compactor:
    """The compaction of one shard's partitions, of queues that ask for it; `run` until
    cancelled.
    """

    def __init__(
        self,
        shard: Shard,
        config: Config,
        lookup: Lookup,
        now_ms: Callable[[], int],
        limits: CompactionLimits | None = None,
        counters: Counters | None = None,
    ) -> None:
        """Take the worker's `limits` and `counters`, which all of its shards share."""
        self._shard = shard
        self._lookup = lookup
        self._now_ms = now_ms
        self._period_s = config.compaction_check_ms / 1000
        self._batch_bytes_max = config.log_bytes_max - _FRAME_BYTES
        self._limits = limits or CompactionLimits()
        self._counters = counters or Counters()
        self._passes = Semaphore(_PASSES)
        self._unreadable: set[PartitionKey] = set()

    async def run(self) -> None:
        while True:
            await pulse(self._period_s)
            await self.round()

    async def round(self) -> None:
        """Look at each partition that may have something to compact."""
        taken, self._shard.uncompacted = list(self._shard.uncompacted), set()
        async with create_task_group() as tasks:
            for number, key in enumerate(taken, 1):
                if not self._shard.serving:  # it may come back, with all that is in memory
                    for left in taken[number - 1 :]:
                        self._shard.note_uncompacted(left)
                    return
                if isinstance(self._look(key), Plan):
                    await self._passes.acquire()
                    tasks.start_soon(self._pass_over, key)
                if number % _LOOKS_AT_ONCE == 0:
                    await checkpoint()

    def _look(self, key: PartitionKey) -> Plan | None:
        """Return the plan that is due, if any; file the partition under the time of a later one."""
        queue = self._lookup.find_id(key[0])
        if queue is None and self._shard.state.partition(key) is not None:
            self._shard.note_uncompacted(key)  # it is not announced here yet, or going
        settings = None if queue is None else settings_of(queue.configs)
        if settings is None or not settings.compacted or key in self._unreadable:
            return None
        due = plan(self._shard.state, key, settings, self._now_ms())
        if isinstance(due, Plan):
            return due
        if due.undecided:
            self._shard.note_uncompacted(key)
        if not due.never:
            self._file(key, due.again_ms)
        return None

    async def _pass_over(self, key: PartitionKey) -> None:
        """Run one pass, and look at the rest: there may be more keys than one pass notes."""
        try:
            due = self._look(key)
            if due is not None and due.size <= _SMALL_BYTES:
                await self._run(key, due)
            elif due is not None:
                async with self._limits.large:
                    await self._run(key, due)
            self._counters.compaction_passes += due is not None
            if self._look(key) is not None:
                self._shard.note_uncompacted(key)
        except Unreadable as error:
            _log.error("not_compacted", queue=self._name(key), partition=key[1],
                       reason=str(error))  # fmt: skip
            self._counters.not_compacted += 1
            if len(self._unreadable) < _UNREADABLE_MAX:
                self._unreadable.add(key)
        except (Stopped, KafkaError, OSError) as error:
            _log.warning("compaction_stopped", queue=self._name(key), reason=str(error))
            self._shard.note_uncompacted(key)
        finally:
            self._passes.release()

    async def _run(self, key: PartitionKey, due: Plan) -> None:
        one = Pass(self._shard, key, due, self._limits.unpacking, self._batch_bytes_max)
        try:
            await one.run()
        finally:
            self._counters.batches_not_compacted += one.left_as_is
            if one.left_as_is:
                _log.warning(
                    "batches_not_compacted", queue=self._name(key), partition=key[1],
                    batches=one.left_as_is, reason=one.why,
                )  # fmt: skip

    def _name(self, key: PartitionKey) -> str | None:
        queue = self._lookup.find_id(key[0])
        return None if queue is None else queue.name

    def _file(self, key: PartitionKey, again_ms: int) -> None:
        """Let retention's look at a partition bring it here then."""
        filed = self._shard.kv.get(entry_key := rows.retention_entry_key(*key))
        if filed is not None and int.from_bytes(filed, "big") <= again_ms:
            return
        self._shard.commit(
            {entry_key: again_ms.to_bytes(8, "big"), rows.retention_due_key(again_ms, *key): b""}
        )
