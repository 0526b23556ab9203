"""The distinction of a torn tail of a log from damage.

Each frame of an embedded log says up to which log offset everything was on disk when the frame was
written. A sound frame that says so of an unsound frame before it proves damage. The search is
bounded: it reads each byte a few times, whatever clients have put into their records.
"""

import mmap
import os
import re
import struct
from pathlib import Path

from crc32c import crc32c

from kproxy.store import files
from kproxy.store.frames import BODY_AT, CRC_FROM
from kproxy.store.segments import Segments
from kproxy.store.synced import Mark
from kproxy.virtual.commands import envelope as envelopes
from kproxy.virtual.commands.envelope import COPIED, Kind
from kproxy.virtual.commands.records import EXPECTED
from kproxy.virtual.commands.shares import FORWARD_BYTES

_START = struct.Struct(">IIQB")  # length, CRC, log offset, kind
_COUNTER = struct.Struct(">Q")
_COUNTER_AT = BODY_AT - _COUNTER.size
_BATCH_LENGTH = struct.Struct(">I")
_BATCH_LENGTH_AT = 8  # in the bytes that follow, in a record batch
_READ_AGAIN = 3  # times the bytes there are
_TRIES_PER_BYTE = 1 / 16
_KINDS = b"".join(re.escape(bytes([kind])) for kind in Kind)
_LOW_BYTES = 3  # the bytes of a log offset in which frames of one segment differ
_KEPT = 3
_COPIES = (Kind.COPY, Kind.REPLACE)
_CARRYING = (
    Kind.APPEND, Kind.APPEND_IF, Kind.FORWARD, Kind.SHIP, Kind.LATER, Kind.DUE, *_COPIES,
)  # fmt: skip
"""The bytes that follow in other kinds, at the place of a record batch's length."""
_NAME_BYTES_MAX = (1 << 16) - 1
_CHUNK_BYTES = 1 << 20


class _Tail:
    """A segment's bytes from an unsound frame on."""

    def __init__(self, data: mmap.mmap, log_offset: int) -> None:
        self._data = data
        self._size = len(data)
        self._lost = log_offset

    def proof(self, position: int) -> int | None:
        """Return where a sound frame lies that was written once the frame at `position` was on
        disk.
        """
        data, size, known = self._data, self._size, True
        budget = _READ_AGAIN * (size - position)
        tries = 1000 + int((size - position) * _TRIES_PER_BYTE)
        pattern = self._pattern(size - position)
        while position + BODY_AT <= size and budget > 0 and tries > 0:
            length, crc, log_offset, kind = _START.unpack_from(data, position)
            after = position + CRC_FROM + length
            tries -= 1
            if length >= BODY_AT - CRC_FROM and after <= size and log_offset > self._lost:
                budget -= length
                if crc32c(data[position + CRC_FROM : after]) == crc:
                    (forced,) = _COUNTER.unpack_from(data, position + _COUNTER_AT)
                    if self._lost < forced <= log_offset:
                        return position
                    position, known = after, True
                    continue
            if known and self._spans(position, length, kind):
                position = after  # the clients' bytes inside are not searched
                continue
            found = pattern.search(data, position + 9)
            if found is None:
                return None
            position, known = found.start() - CRC_FROM, False
        return None

    def _spans(self, position: int, length: int, kind: int) -> bool:
        """Whether the record batch inside says the same of a frame's length."""
        at = position + BODY_AT + _BATCH_LENGTH_AT + (COPIED.size if kind in _COPIES else 0)
        if kind not in _CARRYING or at + _BATCH_LENGTH.size > self._size:
            return False
        (inside,) = _BATCH_LENGTH.unpack_from(self._data, at)
        behind = position + CRC_FROM + length - (at + _BATCH_LENGTH.size + int(inside))
        if kind == Kind.FORWARD:  # a group's name follows, and numbers
            return 0 <= behind - FORWARD_BYTES <= _NAME_BYTES_MAX
        return behind == (EXPECTED.size if kind == Kind.APPEND_IF else 0)

    def _pattern(self, size: int) -> re.Pattern[bytes]:
        """Return a pattern of a frame of this log from its log offset to its envelope's form."""
        highest = self._lost + size // BODY_AT + 1
        starts = {offset.to_bytes(8, "big")[:-_LOW_BYTES] for offset in (self._lost + 1, highest)}
        start = b"|".join(map(re.escape, sorted(starts)))
        form = re.escape(bytes([envelopes.FORM]))
        return re.compile(b"(?s:(?:%b).{%d}[%b]%b)" % (start, _LOW_BYTES, _KINDS, form))


def proof_of_damage(path: Path, position: int, log_offset: int) -> int | None:
    """Return where a frame lies that was written once the one at `position` was on disk; None:
    nowhere.

    The frame at `position`, of this log offset, is not sound.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= position:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Tail(data, log_offset).proof(position)


def is_whole(
    segments: Segments, live: set[int], mark: Mark | None, segment: int, position: int
) -> bool:
    """Whether all `live` segments are there, and all frames are sound from the mark to a position,
    or from its segment's start.

    Rows of a copy may be on disk before what they are made from; a power cut leaves any of it. So
    does the end of a process that removes a copy.
    """
    if not live <= set(segments.ids):
        return False
    end = segment, position
    expected, at, position = mark or (segment, segment, 0)
    if at not in segments.ids:  # it was deleted
        expected = at = min(one for one in segments.ids if one >= min(at, segment))
        position = 0
    while (at, position) < end:
        for log_offset, _, _, after in segments.replay(at, position):
            if log_offset != expected or (at, position) >= end:
                break
            expected, position = log_offset + 1, after
        if at in (segment, expected) or expected not in segments.ids:
            break
        at, position = expected, 0
    return (at, position) >= end


def keep(path: Path, position: int, free_bytes: int) -> Path | None:
    """Copy a segment's bytes from `position` on to a file beside it, before they are cut off.

    None where there is no room; of such files the newest few are kept.
    """
    size = path.stat().st_size - position
    if free_bytes < 2 * size:
        return None
    cut = path.with_suffix(f".cut-{position}")
    try:
        with path.open("rb") as source, cut.open("wb") as target:
            source.seek(position)
            while chunk := source.read(_CHUNK_BYTES):
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        files.sync_directory(path.parent)
    except OSError:
        cut.unlink(missing_ok=True)
        return None
    kept = sorted(path.parent.glob("*.cut-*"), key=lambda other: other.stat().st_mtime_ns)
    for old in kept[:-_KEPT]:
        old.unlink()
    return cut
