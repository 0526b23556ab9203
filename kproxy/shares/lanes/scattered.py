"""Records of a member that lie scattered over batches of a share partition, and are cut out."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anyio import to_thread

from kproxy.fetching.streamed_response import Stored
from kproxy.protocol.varint import Malformed
from kproxy.shares.lanes.cutting import (
    CUT_BYTES_MAX,
    CutOut,
    Opened,
    OpenedBatches,
    Piece,
    cut_out,
    in_memory,
    offsets_of,
)
from kproxy.shares.lanes.reading import NotAtOnce
from kproxy.shares.taking import Range, parted
from kproxy.shares.window import GAP, BeyondEnd, InvalidState, Pending

if TYPE_CHECKING:
    from kproxy.shares.share_partition import SharePartition
    from kproxy.shares.share_partitions import SharePartitions


class Given(NamedTuple):
    """The batches that a member is given, and the records in them."""

    ranges: list[Range]
    batches: list[bytes | Stored]
    size: int
    left: list[Range]
    """The records for which no room was left: they are available again."""
    gone: Pending
    """The records that there are none of any more: they are to be logged as gaps."""


class Scattered(NamedTuple):
    """Records that a member holds, in pieces of an answer."""

    share: "SharePartition"
    pieces: list[Piece]
    bytes_max: int

    def _cut(
        self, cache: OpenedBatches, known: Sequence[list[Opened] | None], *, at_once: bool = False
    ) -> list[CutOut | None]:
        """Return what is cut out, by piece. Raise Malformed, OSError, NotAtOnce."""
        segments = self.share.shard.segments
        whole = sum([piece.whole[3] for piece in self.pieces if piece.whole is not None])
        left = min(max(1, self.bytes_max - whole), CUT_BYTES_MAX)
        found: list[CutOut | None] = []
        for piece, opened in zip(self.pieces, known, strict=True):
            if piece.whole is not None:
                found.append(None)
                continue
            if left > 0:
                one = cut_out(
                    segments, cache, piece.spans, piece.ranges, left, opened, at_once=at_once
                )
            else:
                one = CutOut(b"", [], offsets_of(piece.ranges))
            left -= len(one.batch)
            found.append(one)
        return found

    async def cut(
        self, shares: "SharePartitions", member: str, ranges: list[Range], deliveries_max: int
    ) -> Given | None:
        """Cut them out; None: they cannot be read, and are given as they lie."""
        share, segments = self.share, self.share.shard.segments
        cache = shares.lane_memory.opened
        known = [
            [] if piece.whole is not None else in_memory(segments, cache, piece.spans)
            for piece in self.pieces
        ]
        work = partial(self._cut, cache, known)
        try:
            found: list[CutOut | None] | None = None
            if None not in known:
                with suppress(NotAtOnce):
                    found = work(at_once=True)
            if found is None:
                numbers = {batch[1] for piece in self.pieces for batch, _ in piece.spans}
                with segments.pinned(numbers):
                    found = await to_thread.run_sync(work, limiter=shares.readers)
        except (Malformed, OSError):
            return None
        cuts = [one for one in found if one is not None]
        kept, left = parted(ranges, frozenset(at for one in cuts for at in one.left))
        kept, missing = parted(kept, frozenset(at for one in cuts for at in one.missing))
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
        batches: list[bytes | Stored] = []
        for piece, one in zip(self.pieces, found, strict=True):
            if piece.whole is not None:
                batches.append(Stored([piece.whole], segments))
            elif one is not None and one.batch:
                batches.append(one.batch)
        size = sum([len(it) if isinstance(it, bytes) else it.batches[0][3] for it in batches])
        return Given(kept, batches, size, left, gone)
