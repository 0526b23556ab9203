"""The standing of lanes, for people: the largest backlogs, those that are held or rest."""

from collections import Counter
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import TypedDict

from anyio import to_thread

from kproxy.loop.pace import Pace, scanned, slices
from kproxy.metadata.lane_settings import LaneRules
from kproxy.protocol.made_batches import content_of_body
from kproxy.protocol.records import headers_in
from kproxy.protocol.varint import Malformed, uvarint
from kproxy.shard.shard import Shard
from kproxy.shares.lanes.cutting import OpenedBatches, Span, cut_record
from kproxy.shares.lanes.reading import LaneReader
from kproxy.shares.share_partition import SharePartition
from kproxy.shares.share_partitions import SharePartitions
from kproxy.virtual.rows.shares import HELD_LANES, SHARE_PARTITIONS
from kproxy.virtual.types import PartitionKey

_SHOWN_MAX = 20  # lanes of a kind, in each partition
_COUNTED_AT_ONCE = 50_000
_NAME_BYTES = 200


class LaneStanding(TypedDict):
    """A lane: `records` of it that are not done, as far as was looked ahead; `held_at`: the offset
    of the record that was given up."""

    lane: str
    hash: str
    records: int
    held_at: int
    since_ms: int


class LanesStanding(TypedDict):
    """The lanes of a share partition: how many there are, and some of them."""

    lanes: int
    looked_ahead: int
    available: int
    resting: int
    held: int
    largest: list[LaneStanding]
    held_lanes: list[LaneStanding]


async def lanes_of(
    shares: SharePartitions, shard: Shard, key: PartitionKey, group: str, pace: Pace,
    *, named: bool,
) -> LanesStanding | None:  # fmt: skip
    """Return how the lanes of a share partition stand; None: there are none.

    `named`: with their names, which are parts of records.
    """
    rules = shares.settings(group).lanes
    row = SHARE_PARTITIONS.get(shard.state.get, key, group)
    if rules is None or row is None:
        return None
    namer = _Namer(shard, key, rules, shares.lane_memory.opened, named=named)
    told = LanesStanding(
        lanes=0, looked_ahead=0, available=0, resting=0, held=0, largest=[], held_lanes=[]
    )
    found = [
        (HELD_LANES.parts(name)[2], HELD_LANES.decode(data))
        async for rows in scanned(shard.state.kv.walk, *HELD_LANES.range(key, group))
        for name, data in rows
    ]
    held = [(lane, one) for lane, one in found if one.epoch == row.epoch]
    share = shares.known(key, group)
    counts: dict[int, int] = {}
    if share is not None and share.lanes is not None:
        counts = await _counted(share, told, pace)
    told["held"] = len(held)
    largest = await _largest(counts, pace)
    firsts = await _firsts(share, {lane for lane, _ in largest}, pace)
    for lane, records in largest:
        name = await namer.name(firsts.get(lane, -1), shares)
        told["largest"].append(_standing(lane, name, records))
    for lane, one in held[:_SHOWN_MAX]:
        name = await namer.name(one.offset, shares)
        line = _standing(lane, name, counts.get(lane, 0))
        line["held_at"], line["since_ms"] = one.offset, one.since_ms
        told["held_lanes"].append(line)
    return told


def _standing(lane: int, name: bytes | None, records: int) -> LaneStanding:
    shown = "?" if name is None else name[:_NAME_BYTES].decode("utf-8", "backslashreplace")
    return LaneStanding(lane=shown, hash=f"{lane:016x}", records=records, held_at=-1, since_ms=-1)


async def _counted(share: SharePartition, told: LanesStanding, pace: Pace) -> dict[int, int]:
    """Return the records of each lane, by its hash; others have their turn meanwhile."""
    lanes = share.lanes
    assert lanes is not None
    index = lanes.index
    counts: Counter[int] = Counter()
    at = index.start
    while at < index.end and share.lanes is lanes:
        end = min(at + _COUNTED_AT_ONCE, index.end)
        counts.update([lane for _, lane in index.lanes_of(at, end)])
        at = end
        await pace.rest()
    told["looked_ahead"] = index.end - index.start
    told["available"], told["resting"] = index.available, index.resting
    told["lanes"] = len(counts)
    found: dict[int, int] = {}
    for some in slices(list(counts.items()), _COUNTED_AT_ONCE):
        found.update((index.table.hashes[lane], count) for lane, count in some)
        await pace.rest()
    return found


async def _largest(counts: dict[int, int], pace: Pace) -> list[tuple[int, int]]:
    """Return the lanes with the most records, and how many these are."""
    found: list[tuple[int, int]] = []
    for some in slices(list(counts.items()), _COUNTED_AT_ONCE):
        found = nlargest(_SHOWN_MAX, [*found, *some], key=itemgetter(1))
        await pace.rest()
    return found


async def _firsts(share: SharePartition | None, wanted: set[int], pace: Pace) -> dict[int, int]:
    """Return the first record of each of these lanes that is not done, by its hash."""
    found: dict[int, int] = {}
    lanes = None if share is None else share.lanes
    if share is None or lanes is None:
        return found
    index = lanes.index
    numbers = {index.table.find(hashed): hashed for hashed in wanted}
    at = index.start
    while at < index.end and len(found) < len(numbers) and share.lanes is lanes:
        end = min(at + _COUNTED_AT_ONCE, index.end)
        for offset, lane in index.lanes_of(at, end):
            if lane in numbers:
                found.setdefault(numbers[lane], offset)
        at = end
        await pace.rest()
    return found


class _Namer:
    """A reader of the names of lanes, from records of theirs."""

    def __init__(
        self, shard: Shard, key: PartitionKey, rules: LaneRules, opened: OpenedBatches,
        *, named: bool,
    ) -> None:  # fmt: skip
        self._named = named
        self._shard, self._key, self._opened = shard, key, opened
        self._reader = LaneReader(rules)

    async def name(self, offset: int, shares: SharePartitions) -> bytes | None:
        """Return the lane of the record at an offset; None: it is not there any more."""
        if not self._named or offset < 0:
            return None
        segments = self._shard.segments
        span = next(self._shard.state.stored_spans(self._key, offset, offset + 1), None)
        if span is None:
            return None
        with segments.pinned({span[0][1]}):
            return await to_thread.run_sync(
                partial(self._read, span, offset), limiter=shares.readers
            )

    def _read(self, span: Span, offset: int) -> bytes | None:
        try:
            batch = self._opened.read(self._shard.segments, span[0])
            found = cut_record(batch, span[0][0], offset)
            if found is None:
                return None
            content = content_of_body(found[2])
            names = self._reader.names
            headers = (
                headers_in(uvarint(2 * content.headers) + content.header_bytes, names)
                if isinstance(names, frozenset) else {}
            )  # fmt: skip
        except (Malformed, OSError):
            return None
        return self._reader.lane(content.key, headers)
