"""Types of ids and offsets that must not be mixed up."""

from typing import NewType

QueueId = NewType("QueueId", bytes)
"""16 bytes, new at each creation; the topic id that clients see."""
QueueOffset = NewType("QueueOffset", int)
"""A record's dense offset in one partition of a queue."""
LogOffset = NewType("LogOffset", int)
"""An envelope's dense offset in a shard's log."""
ShardId = NewType("ShardId", int)

PartitionKey = tuple[QueueId, int]
"""A queue's id and the index of one of its virtual partitions."""
