"""Records of a member that lie scattered over batches of a share partition, and are cut out."""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anyio import to_thread

from kproxy.protocol.varint import Malformed
from kproxy.shares.lanes.cutting import CUT_BYTES_MAX, CutOut, Span, cut_out, in_memory
from kproxy.shares.lanes.reading import NotAtOnce
from kproxy.shares.taking import Range, parted
from kproxy.shares.window import GAP, BeyondEnd, InvalidState, Pending

if TYPE_CHECKING:
    from kproxy.shares.share_partition import SharePartition
    from kproxy.shares.share_partitions import SharePartitions


class Given(NamedTuple):
    """The batch that a member is given, and the records in it."""

    ranges: list[Range]
    batch: bytes
    left: list[Range]
    """The records for which no room was left: they are available again."""
    gone: Pending
    """The records that there are none of any more: they are to be logged as gaps."""


class Scattered(NamedTuple):
    """Records that a member holds: `ranges`, in batches of which each span has some."""

    share: "SharePartition"
    spans: list[Span]
    bytes_max: int

    async def cut(
        self, shares: "SharePartitions", member: str, ranges: list[Range], deliveries_max: int
    ) -> Given | None:
        """Cut them out; None: they cannot be read, and are given as they lie."""
        share, segments = self.share, self.share.shard.segments
        cache = shares.lane_memory.opened
        known = in_memory(segments, cache, self.spans)
        work = partial(
            cut_out, segments, cache, self.spans, ranges, min(self.bytes_max, CUT_BYTES_MAX), known
        )
        try:
            found: CutOut | None = None
            if known is not None:
                with suppress(NotAtOnce):
                    found = work(at_once=True)
            if found is None:
                with segments.pinned({batch[1] for batch, _ in self.spans}):
                    found = await to_thread.run_sync(work, limiter=shares.readers)
        except (Malformed, OSError):
            return None
        kept, left = parted(ranges, frozenset(found.left))
        kept, missing = parted(kept, frozenset(found.missing))
        share.window.give_back(left)
        gone = Pending([], [])
        for first, last, _ in missing:
            try:
                share.window.check(member, first, last)
            except (InvalidState, BeyondEnd):
                continue  # it is nobody's any more, or another's
            pending = share.window.acknowledge(first, last, [GAP], deliveries_max, [])
            gone.runs.extend(pending.runs)
            gone.held.extend(pending.held)
        return Given(kept, found.batch, left, gone)
