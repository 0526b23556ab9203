"""The standing of a share partition, for people: what is held, how often records were delivered."""

from typing import TypedDict

from kproxy.shard.shard import Shard
from kproxy.shares.record_states import delivered
from kproxy.shares.share_partitions import SharePartitions
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.shares import SHARE_PARTITIONS, STATE_BITS, RecordState
from kproxy.virtual.types import PartitionKey

_STATE = bytes(byte & STATE_BITS for byte in range(256))


class Standing(TypedDict):
    """Numbers of records of a share partition, and a time in ms since the epoch."""

    in_flight: int
    deliveries: dict[str, int]
    """The records in the window that were delivered and are not done, by how often that was."""
    acknowledged: int
    """The records acknowledged behind the start, out of turn."""
    archived: int
    """The records archived behind the start, out of turn."""
    oldest_ms: int
    """The time of the first record that is not done; -1: there is none."""


def standing(
    shares: SharePartitions, shard: Shard, key: PartitionKey, group: str
) -> Standing | None:
    """Return a share partition's standing. None: there is no such share partition."""
    state = shard.state
    row, partition = SHARE_PARTITIONS.get(state.get, key, group), state.partition(key)
    if row is None or partition is None or row.since_ms >= 0:
        return None
    known = shares.known(key, group)
    states = share_rows.states(state.get, key, group, row.start, row.end)
    if known is not None:
        deliveries = known.window.counts()
        in_flight = known.window.held
    else:
        deliveries, in_flight = delivered(states), 0
    done = states.translate(_STATE)  # there may be as many as lanes look ahead at
    start = max(row.start, partition.log_start)
    first = next(state.stored_spans(key, start, partition.next_offset), None)
    oldest = None if first is None else state.batch_at(key, first[1])
    return Standing(
        in_flight=in_flight,
        deliveries={str(count): deliveries[count] for count in sorted(deliveries)},
        acknowledged=done.count(RecordState.ACKNOWLEDGED),
        archived=done.count(RecordState.ARCHIVED),
        oldest_ms=-1 if oldest is None else oldest.max_time_ms,
    )
