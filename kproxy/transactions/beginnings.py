"""Beginnings of transactions where partitions and groups take part, a command for each shard."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kproxy.loop.pace import slices
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.transactions import NAMED_MAX, Begin, Enlist
from kproxy.virtual.rows.transactions import Participant, tag_of


class Enlisting(NamedTuple):
    """A request that partitions and groups take part in a producer's transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    participants: Sequence[Participant]

    def enlists(self, version: int, time_ms: int) -> Iterator[Envelope]:
        """Yield the ENLISTs for the coordinator, one at least."""
        for some in slices(self.participants, NAMED_MAX) if self.participants else ([],):
            yield Enlist(*self[:3], version, some, time_ms).envelope()

    def begins(self, version: int, number: int, time_ms: int) -> Iterator[tuple[int, Envelope]]:
        """Yield (shard, a BEGIN for it), with as many participants as one command names."""
        by_shard: dict[int, list[Participant]] = {}
        for one in self.participants:
            by_shard.setdefault(one.shard, []).append(one)
        tag = tag_of(self.transactional_id)
        for index, mine in by_shard.items():
            for some in slices(mine, NAMED_MAX):
                keys = [one.key for one in some if one.key is not None]
                groups = [one.group for one in some if one.key is None]
                begin = Begin(
                    self.producer_id, self.epoch, version, number, tag, keys, groups, time_ms
                )
                yield index, begin.envelope()
