"""Frames: a 4-byte big-endian length, then that many bytes. Bytes in, frames out; no I/O.

The assembler checks the length before it keeps a byte of the body, and keeps only bytes that have
arrived. A peer that announces much and sends little costs little.
"""

from kproxy.protocol.varint import Malformed

LENGTH_BYTES = 4
_SMALL_BYTES = (
    4096  # a chunk below is kept in one with its neighbours: alone it costs as much again
)
SHORTEST_REQUEST_BYTES = 8  # api key, api version, correlation id


class FrameAssembler:
    """Cuts a byte stream into frames. Not thread-safe; one per connection."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._chunks: list[bytes | bytearray] = []
        self._kept_bytes = 0
        self._wanted_bytes = LENGTH_BYTES

    @property
    def buffered_bytes(self) -> int:
        """Bytes kept for a frame that is not complete yet."""
        return self._kept_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames (without their length) that `data` completes. Raises Malformed."""
        self._kept_bytes += len(data)
        if self._kept_bytes < self._wanted_bytes:
            self._keep(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            data = b"".join(self._chunks)
            self._chunks.clear()
        frames: list[bytes] = []
        position, end = 0, len(data)
        self._wanted_bytes = LENGTH_BYTES
        while end - position >= LENGTH_BYTES:
            length = int.from_bytes(data[position : position + LENGTH_BYTES], "big", signed=True)
            self._check(length)
            if end - position - LENGTH_BYTES < length:
                self._wanted_bytes = LENGTH_BYTES + length
                break
            position += LENGTH_BYTES
            frames.append(data[position : position + length])
            position += length
        if position < end:
            self._chunks.append(data[position:] if position else data)
        self._kept_bytes = end - position
        return frames

    def _keep(self, data: bytes) -> None:
        chunks = self._chunks
        if len(data) >= _SMALL_BYTES:
            chunks.append(data)
        elif chunks and isinstance(last := chunks[-1], bytearray):
            last += data
        else:
            chunks.append(bytearray(data))

    def _check(self, length: int) -> None:
        if length < SHORTEST_REQUEST_BYTES:
            raise Malformed(f"a frame of {length} bytes is shorter than a request header")
        if length > self._frame_bytes_max:
            raise Malformed(
                f"a frame of {length} bytes is over the limit of {self._frame_bytes_max}"
                " (frame_bytes_max)"
            )
