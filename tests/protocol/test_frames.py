import struct
import time
import tracemalloc
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.protocol.frames import Frame, FrameAssembler, readable
from kproxy.protocol.guard import skip_tags
from kproxy.protocol.varint import Malformed
from tests.held import slowness
from tests.present import present

LIMIT = 1000


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@given(st.lists(st.binary(min_size=8, max_size=300), max_size=6), st.data())
def test_any_split_gives_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    stream = framed(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    assembler = FrameAssembler(LIMIT)
    frames: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += assembler.feed(stream[start:end])
    assert frames == bodies
    assert assembler.buffered_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_bytes_read_into_a_frame_itself(seed: int) -> None:
    """As a connection does: into the room of a large frame where there is one."""
    random = Random(seed)
    sizes = [random.choice((9, 5000, 40_000, 200_000)) for _ in range(4)]
    bodies = [random.randbytes(size) for size in sizes]
    stream = memoryview(framed(*bodies))
    assembler = FrameAssembler(1 << 20)
    frames: list[bytes | bytearray] = []
    arrived = 0
    while stream:
        room = assembler.room()
        assert assembler.buffered_bytes <= 4 + max(4 * arrived, 0)
        count = min(
            random.choice((90, 5000, 70_000)), len(stream), *([] if room is None else [len(room)])
        )
        if room is None:
            frames += assembler.feed(stream[:count])
        else:
            room[:count] = stream[:count]
            frames += assembler.filled(count)
        arrived += count
        stream = stream[count:]
    assert frames == bodies
    assert assembler.buffered_bytes == 0


def test_byte_by_byte() -> None:
    bodies = [b"x" * 8, b"y" * 400, b"z" * 9]
    assembler = FrameAssembler(LIMIT)
    frames = [f for byte in framed(*bodies) for f in assembler.feed(bytes([byte]))]
    assert frames == bodies


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 7, LIMIT + 1, 2**31 - 1])
def test_impossible_lengths_are_refused_before_anything_is_kept(length: int) -> None:
    assembler = FrameAssembler(LIMIT)
    with pytest.raises(Malformed):
        assembler.feed(struct.pack(">i", length))


def test_an_announced_frame_keeps_only_what_arrived() -> None:
    assembler = FrameAssembler(2**31 - 1)
    assert assembler.feed(struct.pack(">i", 2**31 - 1) + b"abc") == []
    assert assembler.buffered_bytes == 7


def test_a_frame_in_many_small_pieces_takes_little_more_than_its_bytes() -> None:
    assembler = FrameAssembler(1 << 20)
    stream = framed(bytes(500_000))
    tracemalloc.start()
    for start in range(0, 400_000, 2):
        assert assembler.feed(stream[start : start + 2]) == []
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 2 * 400_000
    assert assembler.feed(stream[400_000:]) == [bytes(500_000)]


class Uncopied(bytearray):
    def __bytes__(self) -> bytes:
        raise AssertionError("the whole frame was copied")


def test_tags_in_a_large_frame_do_not_copy_it() -> None:
    section = bytes((2, 0, 3, 1, 2, 3, 9, 0))  # two fields: 3 bytes with tag 0, none with tag 9
    frame = Uncopied(bytes(50) + section + bytes(50))
    assert skip_tags(frame, 50, len(frame), 1000)[0] == 50 + len(section)


def test_a_huge_frame_has_memory_for_what_has_come() -> None:
    """To zero 100 MiB, or to copy a quarter of it, would hold the loop."""
    length = 100 << 20
    assembler = FrameAssembler(length)
    piece = bytes(range(256)) * 256
    began = time.thread_time()
    assert assembler.feed(struct.pack(">i", length) + piece) == []
    room = present(assembler.room())
    assert len(room) == length - len(piece)
    assert time.thread_time() - began < 0.02 * slowness()
    assert assembler.buffered_bytes == 4 + len(piece)
    room[:3] = b"abc"
    assert assembler.filled(3) == []
    assert assembler.buffered_bytes == 4 + len(piece) + 3
    room.release()


@pytest.mark.parametrize("seed", range(3))
def test_a_huge_frame_comes_whole_however_it_is_cut(seed: int) -> None:
    random = Random(seed)
    body = random.randbytes(9 << 20)
    assembler = FrameAssembler(len(body))
    stream = memoryview(framed(body, b"behind it"))
    frames: list[Frame] = []
    while stream:
        room = assembler.room()
        count = min(random.choice((3, 90_000, 1 << 20)), len(stream))
        if room is None or random.random() < 0.5:
            frames += assembler.feed(stream[:count])
        else:
            count = min(count, len(room))
            room[:count] = stream[:count]
            frames += assembler.filled(count)
        stream = stream[count:]
    assert [bytes(readable(frame)) for frame in frames] == [body, b"behind it"]
    view: Any = readable(frames[0])
    assert view.readonly


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS on a plaintext listener"),
        (b"GET / HTTP/1.1\r\n", "HTTP on a Kafka listener"),
        (b"POST /topics HTTP/1.1\r\n", "HTTP on a Kafka listener"),
        (b"PRI * HTTP/2.0\r\n", "HTTP on a Kafka listener"),
        (b"\x7f\xff\xff\xff", "over the limit"),
    ],
)
@pytest.mark.parametrize("step", [1, 99])
def test_another_protocol_is_called_by_its_name(sent: bytes, reason: str, step: int) -> None:
    """FAULT: a TLS hello was a frame of 369,295,616 bytes."""
    assembler = FrameAssembler(100 << 20)

    def feed() -> None:
        for start in range(0, len(sent), step):
            assembler.feed(sent[start : start + step])

    with pytest.raises(Malformed, match=reason):
        feed()


def test_a_large_frame_is_copied_once() -> None:
    """FAULT: the first part of a frame of 256 KiB was copied three times on its way into it."""
    frame = framed(bytes(256 << 10))
    first, rest = memoryview(frame)[: 200 << 10], memoryview(frame)[200 << 10 :]
    assembler = FrameAssembler(1 << 20)
    tracemalloc.start()
    try:
        assert assembler.feed(first) == []
        assert [len(one) for one in assembler.feed(rest)] == [256 << 10]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (256 << 10) * 1.1
