"""Beginnings of transactions where partitions and groups take part, a command for each shard."""

from collections.abc import Iterator, Sequence

from kproxy.loop.pace import slices
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.transactions import NAMED_MAX, Begin
from kproxy.virtual.rows.transactions import Participant


def by_shard(participants: Sequence[Participant]) -> Iterator[tuple[int, list[Participant]]]:
    """Yield (shard, participants in it), as many at once as one command names."""
    found: dict[int, list[Participant]] = {}
    for one in participants:
        found.setdefault(one.shard, []).append(one)
    for index, mine in found.items():
        for some in slices(mine, NAMED_MAX):
            yield index, some


def begun(
    producer_id: int,
    epoch: int,
    version: int,
    number: int,
    tag: bytes,
    time_ms: int,
    participants: Sequence[Participant],
) -> Envelope:
    """Return the BEGIN for the participants of one shard."""
    keys = [one.key for one in participants if one.key is not None]
    groups = [one.group for one in participants if one.key is None]
    return Begin(producer_id, epoch, version, number, tag, keys, groups, time_ms).envelope()
