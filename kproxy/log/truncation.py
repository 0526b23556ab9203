"""A look for the loss of a shared log's end, while the log is followed.

A log that is shorter than what was applied shows it. So does a leader of a later epoch that holds
something else where the last envelope was applied: the log may be as long again by then.
"""

from kproxy.log.sequencer import LogChanged
from kproxy.loop.clock import Clock
from kproxy.virtual.commands.envelope import Envelope

_SHORT_S = 2.0


class Truncation:
    """The state of a look at one log's end. A call returns the loss, if it finds one."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._short_since: float | None = None
        self._epoch = -1  # the leader's, whose log has what was applied
        self._wanted: tuple[int, int, tuple[int, int]] | None = None

    def saw_end(self, end: int, applied: int) -> LogChanged | None:
        """Take where the log ends. A new leader may not know its end at once."""
        if end >= applied:
            self._short_since = None
            return None
        now = self._monotonic()
        self._short_since = self._short_since or now
        if now - self._short_since > _SHORT_S:
            reason = f"the log ends at {end}, but {applied} envelopes were applied"
            return LogChanged(reason, applied - 1)
        return None

    def led_anew(self, epoch: int, last_offset: int, last: tuple[int, int]) -> int | None:
        """Take the leader's epoch; return which log offset is to be read, if any.

        `last`: writer and counter of what was applied there.
        """
        if epoch < 0 or epoch == self._epoch:
            return None
        if self._epoch < 0 or last_offset < 0:
            self._epoch = epoch
            return None
        if self._wanted is None or self._wanted[0] != epoch:
            self._wanted = epoch, last_offset, last
        return self._wanted[1]

    def look_at(self, records: list[tuple[int, Envelope]]) -> LogChanged | None:
        """Take what was read, and look for what is wanted."""
        if self._wanted is None:
            return None
        epoch, wanted, last = self._wanted
        for offset, envelope in records:
            if offset == wanted:
                self._epoch, self._wanted = epoch, None
                if (envelope.writer, envelope.counter) != last:
                    reason = f"log offset {offset} holds something else than was applied"
                    return LogChanged(reason, offset)
        return None
