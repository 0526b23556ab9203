"""The dead letters that one share partition owes, in the order of their rows."""

from collections import deque

from kproxy.shares.dead_letter_batches import Place, Run
from kproxy.virtual.rows.shares import Position
from kproxy.virtual.types import PartitionKey

AGAIN_S, _AGAIN_MAX_S = 0.1, 2.0

StreamKey = tuple[PartitionKey, str]
"""A share partition: its source and its group."""


class Stream:
    """The records that a share partition owes, as far as it is read."""

    def __init__(self, key: StreamKey, doubt: Place) -> None:
        self.source, self.group = key
        self.runs: deque[Run] = deque()
        self.read_to: Place = (-1, -1)
        self.in_doubt = doubt
        """Rows up to here may have been sent already."""
        self.busy = False
        self.wait_s = AGAIN_S
        self.rests_until_s = 0.0
        """The time when it may be sent again, after a failure: meanwhile it takes no place."""
        self.is_passed_over = False
        """Whether its rows are read again then."""

    def advance(self, taken: Position) -> int:
        """Return how many rows are taken as a whole; note what is left of the next one."""
        count = 0
        for run in self.runs:
            if Position(*run.place, run.last) > taken:
                break
            count += 1
        if count < len(self.runs):
            run = self.runs[count]
            if run.place == taken[:2]:
                self.runs[count] = run._replace(first=max(run.first, taken.offset + 1))
        return count

    def rest(self, now_s: float) -> None:
        """Let others be sent first, for longer each time."""
        self.rests_until_s = now_s + self.wait_s
        self.wait_s = min(2 * self.wait_s, _AGAIN_MAX_S)
