"""Damage to batches: their bytes are not those that were written, or the disk does not give them.

A frame's CRC covers what a start replays. A reader takes a batch from the middle of a frame, so it
holds the batch's own length and CRC against its bytes. An answer overwrites the base offset and the
leader epoch, which these do not cover.
"""

import errno
import math
import struct
from time import monotonic

import structlog
from crc32c import crc32c

from kproxy.common.counters import Counters

_log = structlog.get_logger()

_LENGTH_MAGIC_CRC = struct.Struct(">8xi4xbI")
_LENGTH_FROM = 12
_CRC_FROM = _LENGTH_MAGIC_CRC.size
_MAGIC = 2
_KNOWN_MAX = 10_000
_AGAIN_S = 30.0  # until a disk that gave an error is asked again


class Damaged(Exception):
    """A batch, or rows, that cannot be read: the log has said where."""


class DamagedBatch(Damaged, OSError):
    """A batch that cannot be read; its partition waits here, and no other."""

    def __init__(self, reason: str) -> None:
        OSError.__init__(self, errno.EIO, reason)


def is_sound(batch: bytearray | memoryview) -> bool:
    """Whether these are the bytes of a record batch as it was written."""
    if len(batch) < _CRC_FROM:
        return False
    length, magic, crc = _LENGTH_MAGIC_CRC.unpack_from(batch)
    if (length, magic) != (len(batch) - _LENGTH_FROM, _MAGIC):
        return False
    return bool(crc32c(memoryview(batch)[_CRC_FROM:]) == crc)


class Damage:
    """The damage that was seen in a log's segments, by place, or in rows. From any thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], float] = {}
        self._rows: set[str] = set()
        self.seen = False
        """Whether there was any, ever: else nobody need ask for a place."""
        self.counters = Counters()
        """The worker's, once it has the shard."""

    def note(self, segment: int, position: int, reason: str, *, lasts: bool) -> DamagedBatch:
        """Note that the batch at a place cannot be read; return the error that says so."""
        place = segment, position
        _log.error("batch_damaged", segment=segment, position=position, reason=reason)
        if len(self._known) >= _KNOWN_MAX:
            self._known.pop(next(iter(self._known)), None)
        self._known[place] = math.inf if lasts else monotonic() + _AGAIN_S
        self.seen = True
        self.counters.batches_damaged += 1
        return DamagedBatch(f"the batch at {position} in segment {segment} {reason}")

    def note_rows(self, reason: str) -> None:
        """Note that rows cannot be read; the log says once where."""
        if reason not in self._rows and len(self._rows) < _KNOWN_MAX:
            self._rows.add(reason)
            _log.error("rows_damaged", reason=reason)
        self.seen = True
        self.counters.batches_damaged += 1

    def at(self, segment: int, position: int) -> bool:
        """Whether the batch there could not be read a short while ago."""
        return self._known.get((segment, position), 0.0) > monotonic()
