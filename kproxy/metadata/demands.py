"""The demands that a queue's settings make of whatever is appended to it, by whichever way.

A batch of each way in meets them, or is not appended:

- Produce (`handlers.produce.inspection`) refuses what does not, and packs again what is packed
  otherwise.
- FORWARD, dead letters (`shares.dead_letter_batches`): a record without a key gets one, and one
  that is too large goes without what it holds. Its time is now.
- DUE, delays: Produce has asked when the records came. As in Kafka a setting that is changed is for
  what comes from then on.
- SHIP, routes (`routes.cutting`): an entrance asks for keys where the queues that it makes are
  compacted, and passes on what has none to its unroutable queue; where that one is compacted it
  gets a key. A filter passes over what has none where its queue is compacted, and says so. By a
  template to a compacted queue that was there before it goes: where a record goes must not depend
  on another queue's settings, which another owner that ships the cut again may see changed.
- MARKER: a control batch has no record of a client. Compaction knows it by its attributes.
"""

from enum import Enum, auto
from typing import NamedTuple

from kproxy.metadata.setting import LONG_MAX

_NO_TIME = -1  # the time of a record that has none


class Fault(Enum):
    """The reason why a queue does not take a record."""

    NO_KEY = auto()
    """The queue is compacted: compaction drops what has no key."""
    TIME = auto()
    """The record's time is too far from now."""


class Demands(NamedTuple):
    """The demands of one queue."""

    keyed: bool
    bytes_max: int | None
    """The largest batch; None: the worker's default, `batch_bytes_max`."""
    log_append_time: bool
    before_max_ms: int
    after_max_ms: int
    codec: int | None
    """An index into CODECS; None: batches stay as they come."""
    compression_level: int | None

    @property
    def of_records(self) -> bool:
        """Whether a producer's batch has to be looked into."""
        return self.keyed or self.codec is not None or self.before_max_ms < LONG_MAX

    def fault_of(self, key: bytes | None, time_ms: int, now_ms: int) -> Fault | None:
        """Return why a record is not taken; None where it is."""
        if self.keyed and key is None:
            return Fault.NO_KEY
        if self.log_append_time or time_ms == _NO_TIME:
            return None
        in_time = -self.before_max_ms <= time_ms - now_ms <= self.after_max_ms
        return None if in_time else Fault.TIME
