"""A look at a share partition: what a fetch may take from."""

from kproxy.shares.taking import EXPIRED, Range, Stretch
from kproxy.virtual.rows.batches import StoredBatch


class Readable:
    """A look at a share partition: batches with something for a member, and holes between them.

    A hole is a stretch that the look saw to have nothing to be given: nothing lies there any more,
    or all of it was aborted. `cut_short`: there may be more behind what was looked at.
    """

    __slots__ = ("cut_short", "stretches")

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.cut_short = False

    @property
    def batches(self) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        for _, _, batch in self.stretches:
            if batch is not None and batch is not EXPIRED and (not found or found[-1] != batch):
                found.append(batch)
        return found

    def overlapping(self, ranges: list[Range]) -> list[StoredBatch]:
        """Return the batches that have any of the records of ascending ranges."""
        found: list[StoredBatch] = []
        at = 0
        for first, last, batch in self.stretches:
            if batch is None or batch is EXPIRED:
                continue
            while at < len(ranges) and ranges[at].last < first:
                at += 1
            if at == len(ranges):
                break
            if ranges[at].first <= last and (not found or found[-1] != batch):
                found.append(batch)
        return found

    def add(self, first: int, last: int, batch: StoredBatch | None) -> None:
        """Add what comes next; holes that touch are one."""
        if batch is None and self.stretches:
            before = self.stretches[-1]
            if before[2] is None and before[1] + 1 == first:
                self.stretches[-1] = before[0], last, None
                return
        self.stretches.append((first, last, batch))

    def cut(self, size_max: int) -> None:
        """Leave out batches that are more bytes than fit; the first one stays whatever its size."""
        size, before = 0, None
        for number, (_, _, batch) in enumerate(self.stretches):
            length = 0 if batch is None or batch == before else batch[3]
            before = before if batch is None or batch is EXPIRED else batch
            if size and size + length > size_max:
                del self.stretches[number:]
                return
            size += length
