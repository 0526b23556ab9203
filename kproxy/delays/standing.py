"""The records that wait for a partition, for people: how many, and when the next are due."""

from typing import TypedDict

from kproxy.shard.shard import Shard
from kproxy.virtual.rows.delays import DELAY_ENTRIES, WAITING_BATCHES, waiting_in, waiting_range
from kproxy.virtual.schema import decode_count
from kproxy.virtual.types import PartitionKey


class DelayStanding(TypedDict):
    """The standing of a partition with waiting records; times are milliseconds since the epoch."""

    partition: int
    records: int
    next_ms: int


def waiting_for(shard: Shard, key: PartitionKey) -> DelayStanding | None:
    """Return how many records wait, and when the next is due. None: nothing waits."""
    waiting = waiting_in(shard.state.get, key)
    if not waiting.batches:
        return None
    entry = shard.kv.get(DELAY_ENTRIES.key(key))  # before lies what was deleted
    from_ms = 0 if entry is None else decode_count(entry)
    found = next(shard.kv.walk(*waiting_range(key, from_ms)), None)
    next_ms = -1 if found is None else WAITING_BATCHES.parts(found[0])[1:][0]
    return DelayStanding(partition=key[1], records=waiting.records, next_ms=next_ms)
