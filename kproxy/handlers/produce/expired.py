"""Counts and reports records that retention takes at once: they are older than `retention.ms`."""

import structlog

from kproxy.handlers.common.needs import ProduceNeeds
from kproxy.protocol.batch import BatchHeader
from kproxy.shard.shard import Shard
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()


def note_expired(
    worker: ProduceNeeds, shard: Shard, queue: Queue, key: PartitionKey, header: BatchHeader
) -> None:
    """Note a batch that is older than its queue keeps records; not behind one that is kept."""
    row = shard.state.partition(key)
    if row is not None and row.log_start < row.next_offset:
        if row.max_time_ms > header.max_timestamp:  # retention judges by the newest up to a batch
            return
    records = header.last_offset_delta + 1
    worker.counters.expired_at_once += records
    _log.warning(
        "records_expire_at_once", queue=queue.name, partition=key[1], records=records,
        newest_ms=header.max_timestamp,
    )  # fmt: skip
