"""The mark of how far a log is known to be on disk, in a small file beside it.

The log writes the file after each fsync and does not force it. After a kill it is exact. After a
power cut it may say less than the log has, never more. A log that ends before it has lost
something.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

_MARK = struct.Struct(">QQQ")
_CRC = struct.Struct(">I")
NAME = "synced"


class Mark(NamedTuple):
    """All before log offset `through` is on disk; it ends in `segment`, at `position`."""

    through: int
    segment: int
    position: int


def read(directory: Path) -> Mark | None:
    """Return the mark of the log in this directory; None where there is none that can be read."""
    try:
        data = (directory / NAME).read_bytes()
    except OSError:
        return None
    if len(data) != _MARK.size + _CRC.size:
        return None
    (crc,) = _CRC.unpack_from(data, _MARK.size)
    if crc32c(data[: _MARK.size]) != crc:
        return None
    return Mark._make(_MARK.unpack_from(data))


class Synced:
    """The mark of one log that is being written. Without room on the disk there is none."""

    def __init__(self, directory: Path) -> None:
        self._fd = -1
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(directory / NAME, flags, 0o644)
        self._through = -1

    def note(self, through: int, segment: int, position: int) -> None:
        """Note that all before this log offset is on disk: some microseconds, from any thread.

        If it cannot be written the last one stands, which is no less true.
        """
        if through <= self._through or self._fd < 0:
            return
        self._through = through
        data = _MARK.pack(through, segment, position)
        with suppress(OSError):
            os.pwrite(self._fd, data + _CRC.pack(crc32c(data)), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
