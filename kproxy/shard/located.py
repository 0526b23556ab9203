"""The place of a queue's partition."""

from typing import NamedTuple

from kproxy.shard.shard import Shard
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import PartitionKey


class Located(NamedTuple):
    """A partition that this worker serves: its queue, its key, and its shard."""

    queue: Queue
    key: PartitionKey
    shard: Shard
