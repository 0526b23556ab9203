"""The SHIPs of a cut: its batches by shards and parts, by either lane."""

from kproxy.protocol.codecs import Unfit
from kproxy.routes.cutting import Gathered, batch_of
from kproxy.virtual.commands.routes import Batches
from kproxy.virtual.partitioner import hash_of

Parts = list[tuple[int, int, list[tuple[str, bytes]]]]
"""(shard, part, [(queue, its batch)])."""


def parts_of(gathered: Gathered, parts: int) -> Parts:
    """Return what is shipped, in as many parts for each shard as the cut has, without empty
    ones."""
    shards = gathered.shards
    made: dict[tuple[int, int], list[tuple[str, bytes]]] = {}
    for index, targets in enumerate(gathered.by_shard):
        for name, pieces in targets.items():
            part = hash_of(name) // shards % parts if parts > 1 else 0
            batch = batch_of(pieces, gathered.batch_bytes_max)
            made.setdefault((index, part), []).append((name, batch))
    if gathered.whole is not None:
        bucket, index = divmod(hash_of(gathered.whole[0]), shards)
        made[index, bucket % parts] = [gathered.whole]
    return [(*key, batches) for key, batches in sorted(made.items())]


def shipped(gathered: Gathered, parts: int) -> list[tuple[int, int, Batches]]:
    """Return (shard, part, what a SHIP has of it). Raise Unfit: no cut that has ended by its bounds
    has such a batch.

    On a thread: it may be of 200,000 queues.
    """
    plain, native = gathered.spec.unroutable, gathered.native
    if native is None:
        made = parts_of(gathered, parts)
        return [(index, part, Batches.of(batches, plain)) for index, part, batches in made]
    ships = native.ships(parts)
    if ships is None:
        raise Unfit(f"a batch takes more than {gathered.batch_bytes_max} bytes")
    return [(index, part, Batches(count, data)) for index, part, count, data in ships]
