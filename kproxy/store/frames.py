"""Frames of a segment file: length (uint32, of what follows the CRC), CRC-32C (uint32, of the
same), log offset (uint64), envelope."""

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from crc32c import crc32c

from kproxy.virtual.commands import envelope as envelopes
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.types import PartitionKey, QueueId

_START = struct.Struct(">IIQ")
_HEAD = struct.Struct(">IIQBB16si")  # and of the envelope: kind, form, queue, partition
CRC_FROM = 8
BODY_AT = _START.size + envelopes.HEAD_BYTES

Frame = tuple[int, Envelope, LogLocation, int]
"""(log offset, envelope, location, position behind it)"""


class FrameReader:
    """A reader of one segment's file, to a size that it had; to be closed."""

    def __init__(self, path: Path, segment: int, size: int) -> None:
        self._segment = segment
        self._data: mmap.mmap | bytes = b""
        self._file = path.open("rb", buffering=0)
        try:
            self._size = min(os.fstat(self._file.fileno()).st_size, size)
            if self._size:
                self._data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        if isinstance(self._data, mmap.mmap):
            self._data.close()

    def read_ahead(self, position: int, size: int) -> None:
        """Bring some of it into the page cache. Blocks."""
        os.pread(self._file.fileno(), size, position)

    def at(self, position: int) -> Frame | None:
        """Return the frame at this position; None where it is not sound, or there is none."""
        if position + BODY_AT > self._size:
            return None
        length, crc, log_offset = _START.unpack_from(self._data, position)
        after = position + CRC_FROM + length
        if length < BODY_AT - CRC_FROM or after > self._size:
            return None
        content = self._data[position + CRC_FROM : after]
        if crc32c(content) != crc:
            return None
        envelope = envelopes.decode(content, 8)
        location = LogLocation(self._segment, position + BODY_AT, len(envelope.body))
        return log_offset, envelope, location, after

    def part(self, position: int, length: int) -> bytes | None:
        """Return these bytes; None where the file ends before."""
        if position + length > self._size:
            return None
        return self._data[position : position + length]

    def frames(self, position: int) -> Iterator[Frame]:
        """Yield the sound frames from `position` on, up to the first that is not."""
        while (frame := self.at(position)) is not None:
            yield frame
            position = frame[3]

    def heads(self) -> Iterator[tuple[int, int, PartitionKey, int, int]]:
        """(log offset, kind, queue partition, position, position behind it) of all frames.

        Bodies are not looked at, and so not checked. Ends where log offsets do not follow.
        """
        data, size, position, expected = self._data, self._size, 0, self._segment
        while position + BODY_AT <= size:
            length, _, log_offset, kind, _, queue_id, index = _HEAD.unpack_from(data, position)
            after = position + CRC_FROM + length
            if log_offset != expected or length < BODY_AT - CRC_FROM or after > size:
                return
            yield log_offset, kind, (QueueId(queue_id), index), position, after
            position, expected = after, expected + 1
