"""Share partitions written down as plainly as possible: what the fold must agree with."""

from dataclasses import dataclass, field

from kproxy.common.errors import Code
from kproxy.virtual.commands.shares import EARLIEST, LATEST, Run, ShareAction, ShareChange
from kproxy.virtual.rows.shares import COUNT_SHIFT, STATE_BITS, RecordState
from kproxy.virtual.types import PartitionKey

_DONE = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass
class PlainQueue:
    start: int = 0
    end: int = 0


@dataclass
class PlainShare:
    """Records that are not in `states` are available, and were never delivered."""

    start: int
    epoch: int
    since_ms: int = -1
    end: int = 0
    states: dict[int, tuple[int, int]] = field(default_factory=dict)  # state, count

    def is_done(self, offset: int) -> bool:
        return self.states.get(offset, (0, 0))[0] in _DONE

    def done(self, start: int, end: int) -> int:
        return sum(start <= at < end and self.is_done(at) for at in self.states)


class ShareModel:
    def __init__(self) -> None:
        self.queues: dict[PartitionKey, PlainQueue] = {}
        self.shares: dict[tuple[PartitionKey, str], PlainShare] = {}
        self.owed: list[tuple[PartitionKey, str, int, int]] = []  # single records: offset, count

    def set(self, group: str, change: ShareChange, since: int) -> None:
        queue, place = self.queues.get(change.key), (change.key, group)
        if queue is None:
            return
        known = self.shares.get(place)
        start = {LATEST: queue.end, EARLIEST: queue.start}.get(change.start, change.start)
        if change.action == ShareAction.RESOLVE:
            if known is not None and known.epoch == change.epoch and known.since_ms >= 0:
                self.shares[place] = PlainShare(start, known.epoch, -1, start)
        elif known is None or known.epoch < change.epoch:
            if change.action == ShareAction.DROP:
                self.shares.pop(place, None)
            elif change.action == ShareAction.RESET or known is None or known.epoch < since:
                self.shares[place] = PlainShare(start, change.epoch, change.since_ms, start)

    def share(self, group: str, key: PartitionKey, epoch: int, runs: list[Run]) -> Code:
        queue, known = self.queues.get(key), self.shares.get((key, group))
        if queue is None or known is None or known.epoch != epoch or known.since_ms >= 0:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        known.start = max(known.start, queue.start)
        known.end = max(known.end, known.start)
        for first, records, byte, cause in runs:
            for at in range(max(first, known.start), first + records):
                state, count = known.states.get(at, (0, 0))
                if state not in _DONE:
                    now = byte & STATE_BITS, max(count, byte >> COUNT_SHIFT)
                    known.states[at] = now
                    if now[0] in _DONE and cause & 0x80:
                        self.owed.append((key, group, at, byte >> COUNT_SHIFT))
                known.end = max(known.end, at + 1)
        while known.is_done(known.start):
            known.start += 1
        known.states = {at: one for at, one in known.states.items() if at >= known.start}
        return Code.NONE

    def look(self, group: str, key: PartitionKey) -> tuple[int, int]:
        queue, known = self.queues.get(key), self.shares.get((key, group))
        if queue is None or known is None or known.since_ms >= 0:
            return -1, -1
        start = max(known.start, queue.start)
        return start, queue.end - start - known.done(start, queue.end)
