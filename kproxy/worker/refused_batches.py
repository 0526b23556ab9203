"""Batches of idempotent producers that were refused, to be sent again: their shard was not served
here yet, too much of an entrance was not passed on, or their log did not take them.

A client sends several batches before it hears what became of the first. If a shard begins to be
served in between, an entrance goes on, or a disk has room again, the first is refused and the
second would be taken: a partition that does not know a producer takes any sequence from it
(KIP-360). The first is out of order then, and librdkafka counts it as written, as a later one was.
So a later one is refused, too, until the first has come again.

A log says that it refused something, not what. A producer that a partition does not know therefore
begins at sequence 0 there for a while.
"""

from typing import NamedTuple

from kproxy.protocol.batch import BatchHeader
from kproxy.shard.shard import Shard
from kproxy.virtual.producers import find
from kproxy.virtual.types import PartitionKey, ShardId

_MAX = 10_000
_KEPT_S = 30.0  # batches that were sent before the refusal was heard have come by then
_SEQUENCE_MAX = 0x7FFFFFFF


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    at: float


class RefusedBatches:
    """The first refused batch of each producer and partition; of the last `_MAX` of those."""

    def __init__(self) -> None:
        self.refused: dict[tuple[PartitionKey, int], _Refused] = {}
        self.shards: dict[ShardId, float] = {}
        """Shards whose logs have refused something, and when it was heard of."""

    def comes_too_early(
        self, shard: Shard, key: PartitionKey, header: BatchHeader, now: float
    ) -> bool:
        """Whether one before it was refused, and the partition does not know that it lacks one."""
        if shard.refused_some:
            shard.refused_some = False
            self.shards[shard.shard] = now
        if not (self.holds_back(key, header, now) or self._may_overtake(shard, header, now)):
            return False
        row = shard.state.partition(key)
        return row is None or find(shard.state, key, row, header.producer_id) is None

    def _may_overtake(self, shard: Shard, header: BatchHeader, now: float) -> bool:
        """Whether an earlier batch of its producer may be among what its log refused lately."""
        at = self.shards.get(shard.shard)
        if at is None:
            return False
        if now - at > _KEPT_S:
            del self.shards[shard.shard]
            return False
        return header.producer_id >= 0 and header.base_sequence > 0

    def note(self, key: PartitionKey, header: BatchHeader, now: float) -> None:
        """Note a refused batch. `now`: seconds of a clock that is never set."""
        if header.producer_id < 0 or self.holds_back(key, header, now):
            return
        if len(self.refused) >= _MAX:
            del self.refused[next(iter(self.refused))]
        refused = _Refused(header.producer_epoch, header.base_sequence, now)
        self.refused[key, header.producer_id] = refused

    def holds_back(self, key: PartitionKey, header: BatchHeader, now: float) -> bool:
        """Whether one before this batch was refused and has not come again.

        If it is that one, it has come again.
        """
        place = key, header.producer_id
        first = self.refused.get(place)
        if first is None:
            return False
        ahead = (header.base_sequence - first.sequence) & _SEQUENCE_MAX
        if (
            header.producer_epoch == first.epoch
            and 0 < ahead <= _SEQUENCE_MAX // 2
            and now - first.at <= _KEPT_S
        ):
            return True
        del self.refused[place]
        return False
