"""A list of what waits for a partition, by when it is due: some records at a time.

A place in the list is a WAITING row, and how many records of its batch come before. Batches are
read on a thread. A mixed batch has records of several times: it lies where the first of them is.
"""

from itertools import islice
from typing import Any, NamedTuple

from anyio import CapacityLimiter, to_thread

from kproxy.protocol.batch import read_header
from kproxy.protocol.record_runs import body_runs
from kproxy.protocol.varint import Malformed
from kproxy.shard.shard import Shard
from kproxy.store.damage import DamagedBatch
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.delays import WAITING_BATCHES, hidden, waiting_range
from kproxy.virtual.types import PartitionKey

_BATCHES_MAX = 100
_RECORDS_MAX = 500
_PAGE_BYTES = 1 << 20
_KEY_BYTES = 256
"""The bytes of a key that are told."""


class Place(NamedTuple):
    """A place in a partition's list: due time, the hidden partition's last offset, records of that
    batch that were told."""

    due_ms: int
    offset: int
    told: int


def read_place(text: str) -> Place:
    """Read a place. Raise ValueError."""
    due_ms, offset, told = (int(one) for one in text.split(":"))
    if min(due_ms, offset, told) < 0 or max(due_ms, offset, told) >= 1 << 63:
        raise ValueError("a place is three numbers of 0 or more")
    return Place(due_ms, offset, told)


async def page_of(
    shard: Shard, key: PartitionKey, start: Place, readers: CapacityLimiter
) -> tuple[list[dict[str, Any]], Place | None]:
    """Return records that wait from a place on, and where the next ones are; None: that is all.

    Raise OSError, EOFError.
    """
    found: list[tuple[Place, Batch]] = []
    size, following = 0, None
    rows = shard.kv.walk(*waiting_range(key, start.due_ms, start.offset))
    for row, _ in islice(rows, _BATCHES_MAX + 1):
        due_ms, offset = WAITING_BATCHES.parts(row)[1:]
        place = Place(due_ms, offset, start.told if (due_ms, offset) == start[:2] else 0)
        batch = shard.state.batch_at(hidden(key), offset)
        if batch is None:
            continue
        if len(found) == _BATCHES_MAX or (found and size + batch.length > _PAGE_BYTES):
            following = place
            break
        found.append((place, batch))
        size += batch.length
    if not found:
        return [], None
    with shard.segments.pinned({batch.segment for _, batch in found}):
        told, cut = await to_thread.run_sync(_read, shard.segments, found, limiter=readers)
    return told, cut or following


def _read(
    segments: Segments, found: list[tuple[Place, Batch]]
) -> tuple[list[dict[str, Any]], Place | None]:
    told: list[dict[str, Any]] = []
    for place, batch in found:
        number = 0
        try:
            data = bytes(segments.batch(batch.segment, batch.position, batch.length) or b"")
            for run in body_runs(read_header(data), data, headers=False):
                for _, due_ms, name, body, _ in run:
                    number += 1
                    if number <= place.told:
                        continue
                    if len(told) == _RECORDS_MAX:
                        return told, place._replace(told=number - 1)
                    key = None if name is None else name[:_KEY_BYTES].hex()
                    told.append({"due_ms": due_ms, "key": key, "bytes": len(body)})
        except (Malformed, DamagedBatch) as error:
            told.append({"due_ms": place.due_ms, "key": None, "bytes": 0, "fault": str(error)})
    return told, None
