"""Frames: a 4-byte big-endian length, then that many bytes. Bytes in, frames out; no I/O.

The assembler checks the length before it keeps a byte of the body. A peer that announces much and
sends little costs little: memory for a whole frame is taken once a good part of it has arrived.
From then on the socket can be read into that memory (`room`), and the bytes are not copied again.
"""

import struct
from mmap import mmap
from typing import cast

from kproxy.protocol.varint import Malformed

LENGTH_BYTES = 4
_SMALL_BYTES = (
    4096  # a chunk below is kept in one with its neighbours: alone it costs as much again
)
SHORTEST_REQUEST_BYTES = 8  # api key, api version, correlation id
_LARGE_BYTES = 32 << 10  # a frame that has memory of its own before it is whole
_ARRIVED = 4  # one part in so many of a large frame
_LENGTH = struct.Struct(">i")

_TLS = b"\x16\x03"  # a handshake, and the version's first half
_HTTP = frozenset(
    (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ")
)
"""The beginnings of other protocols, seen where a length is expected."""
_HUGE_BYTES = 8 << 20
"""A frame from here on has its memory at once, whose pages are made as they are filled. A bytearray
is zeroed as a whole first, and a quarter of the frame copied: 100 ms of 100 MiB."""

Frame = bytes | bytearray | mmap
"""A frame, never changed once it is given out."""


def readable(frame: Frame) -> bytes:
    """Return a frame as kio reads it: in memory that cannot change. A huge one is not copied."""
    return cast(bytes, memoryview(frame).toreadonly()) if isinstance(frame, mmap) else bytes(frame)


def _put(frame: bytearray | mmap, at: int, data: bytes | bytearray | memoryview) -> None:
    """Copy bytes into a frame once: a bytearray copies what it is given before it copies it."""
    memoryview(frame)[at : at + len(data)] = data


class FrameAssembler:
    """A cutter of a byte stream into frames. Not thread-safe; one per connection."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._shortest = SHORTEST_REQUEST_BYTES
        self._prefix = b""  # a length that has come in part
        self._length = 0  # length of the frame under way, or 0
        self._chunks: list[bytes | bytearray] = []  # pieces of that frame
        self._chunk_bytes = 0
        self._large: bytearray | mmap | None = None  # that frame, as long as it will be
        self._filled = 0  # bytes of it that have come

    def expect(self, frame_bytes_max: int, shortest: int = SHORTEST_REQUEST_BYTES) -> None:
        """Take frames of another size from the next one on."""
        self._frame_bytes_max = frame_bytes_max
        self._shortest = shortest

    @property
    def buffered_bytes(self) -> int:
        """Bytes of memory kept for a frame that is not complete yet."""
        if self._large is not None:
            huge = isinstance(self._large, mmap)
            return LENGTH_BYTES + (self._filled if huge else len(self._large))
        return LENGTH_BYTES + self._chunk_bytes if self._length else len(self._prefix)

    def room(self) -> memoryview | None:
        """Return the memory for the bytes that come next, or None: give them to `feed`."""
        return None if self._large is None else memoryview(self._large)[self._filled :]

    def filled(self, count: int) -> list[Frame]:
        """Note that so many bytes were put into `room`; return the frame if that completes it."""
        large = self._large
        assert large is not None
        self._filled += count
        if self._filled < len(large):
            return []
        self._large, self._length = None, 0
        return [large]

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Return the frames (without their length) that `data` completes. Raise Malformed."""
        frames: list[Frame] = []
        at, end = 0, len(data)
        while at < end:
            if self._large is not None:
                count = min(end - at, len(self._large) - self._filled)
                _put(self._large, self._filled, data[at : at + count])
                frames += self.filled(count)
                at += count
                continue
            if not self._length:
                length, at = self._read_length(data, at)
                if length and length <= end - at:
                    frames.append(bytes(data[at : at + length]))
                    at += length
                    continue
                if not length:
                    break
                self._length = length
            missing = self._length - self._chunk_bytes
            if missing > end - at:
                self._keep(data[at:])
                break
            frames.append(b"".join((*self._chunks, data[at : at + missing])))
            self._forget_chunks()
            at += missing
        return frames

    def _read_length(self, data: bytes | memoryview, at: int) -> tuple[int, int]:
        """Return the length of the frame that begins here, 0 if cut; and where that goes on."""
        prefix = self._prefix
        if not prefix and len(data) - at >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, at)
            at += LENGTH_BYTES
        else:
            missing = LENGTH_BYTES - len(prefix)
            prefix += data[at : at + missing]
            at += missing
            if len(prefix) < LENGTH_BYTES:
                self._prefix = prefix
                return 0, len(data)
            self._prefix = b""
            (length,) = _LENGTH.unpack(prefix)
        self._check(length)
        return length, at

    def _keep(self, data: bytes | memoryview) -> None:
        """Keep a part of the frame under way; nothing where only its length is there."""
        if not data:
            return
        self._chunk_bytes += len(data)
        chunks = self._chunks
        huge = self._length >= _HUGE_BYTES
        arrived = huge or self._chunk_bytes * _ARRIVED >= self._length
        if self._length >= _LARGE_BYTES and arrived:
            large: bytearray | mmap = mmap(-1, self._length) if huge else bytearray(self._length)
            at = 0
            for chunk in (*chunks, data):
                _put(large, at, chunk)
                at += len(chunk)
            self._large, self._filled = large, at
            self._chunks.clear()
            self._chunk_bytes = 0
        elif len(data) >= _SMALL_BYTES:
            chunks.append(bytes(data))
        elif chunks and isinstance(last := chunks[-1], bytearray):
            last += data
        else:
            chunks.append(bytearray(data))

    def _forget_chunks(self) -> None:
        self._chunks.clear()
        self._chunk_bytes = self._length = 0

    def _check(self, length: int) -> None:
        if length < self._shortest:
            raise Malformed(f"a frame of {length} bytes is shorter than a request header")
        if length > self._frame_bytes_max:
            begins = _LENGTH.pack(length)
            if begins.startswith(_TLS):
                raise Malformed("TLS on a plaintext listener: is security.protocol right?")
            if begins in _HTTP:
                raise Malformed("HTTP on a Kafka listener: metrics and health are at --http-listen")
            raise Malformed(
                f"a frame of {length} bytes is over the limit of {self._frame_bytes_max}"
                " (frame_bytes_max)"
            )
