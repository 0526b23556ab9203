"""Batches are read into the answer where they belong, however they lie on disk."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.fetching import streamed_response
from kproxy.fetching.streamed_response import Stored, StreamedResponse
from kproxy.store import files
from kproxy.store import segments as segments_module
from kproxy.store.damage import DamagedBatch
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import Batch, StoredBatch
from tests.fakes import chunks_of

SIZE = 200_000


@pytest.fixture(autouse=True, scope="module")
def no_batches() -> Iterator[None]:
    """Take any bytes for a batch: these tests are about where they go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_module, "is_sound", lambda batch: True)
        yield


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Segments:
    made = Segments(tmp_path_factory.mktemp("log"))
    for segment in (0, 1):
        made.start(segment)
        made.write([random.Random(segment).randbytes(SIZE)], SIZE, False)
    return made


def stored(segments: Segments, segment: int) -> bytes:
    return Path(segments.path(segment)).read_bytes()


def batch(segment: int, position: int, length: int) -> Batch:
    return Batch(segment, position, length, 0, 0, 0, 0, 0)


def listed(wanted: list[Batch], base_offset: int = 0) -> list[StoredBatch]:
    return [(base_offset, one.segment, one.position, one.length) for one in wanted]


async def answered(segments: Segments, wanted: list[Batch]) -> bytes:
    """Return the answer, with what `place` writes (16 bytes of each) left out."""
    chunks = await chunks_of(StreamedResponse([Stored(listed(wanted), segments)]))
    return without_heads(b"".join(chunks), wanted)


def without_heads(data: bytes, wanted: list[Batch]) -> bytes:
    kept, at = b"", 0
    for one in wanted:
        kept += data[at + 16 : at + one.length]
        at += one.length
    return kept


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 6000), st.integers(61, 400)),
        min_size=1, max_size=40,
    ),
    st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
async def test_any_order_and_distance(
    segments: Segments, steps: list[tuple[int, int, int]], backwards: bool
) -> None:
    wanted, at = [], [0, 0]
    for segment, gap, length in steps:
        position = at[segment] + gap
        if position + length > SIZE:
            break
        wanted.append(batch(segment, position, length))
        at[segment] = position + length
    if backwards:
        wanted.reverse()
    if wanted:
        data = b"".join(
            stored(segments, one.segment)[one.position : one.position + one.length]
            for one in wanted
        )
        assert await answered(segments, wanted) == without_heads(data, wanted)


@pytest.mark.skipif(not hasattr(files.os, "preadv"), reason="this platform has no preadv")
async def test_neighbours_are_read_in_one_call(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = files.read_into

    def counted(*arguments: object) -> int:
        calls.append(arguments)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "read_into", counted)
    await answered(segments, [batch(0, i * 200, 100) for i in range(500)])
    assert len(calls) == 1
    calls.clear()
    await answered(segments, [batch(0, i * 200, 100) for i in range(600)])
    assert len(calls) == 2


async def test_rest_of_a_read_is_read_again_where_it_may_wait(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk gives less than was asked for, as it may."""
    original = files.read_into
    waits = []

    def short(fd: int, buffers: list[memoryview], position: int, wait: bool) -> int:
        waits.append(wait)
        part = buffers[0][: max(1, len(buffers[0]) // 2)]
        return original(fd, [part], position, wait)

    monkeypatch.setattr(files, "read_into", short)
    wanted = [batch(0, 54 + i * 300, 250) for i in range(5)]
    data = b"".join(stored(segments, 0)[b.position : b.position + b.length] for b in wanted)
    assert await answered(segments, wanted) == without_heads(data, wanted)
    assert waits[0] is False
    assert waits.count(True) > 10


async def test_chunks_are_bounded_and_in_order(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_response, "CHUNK_BYTES", 1000)
    wanted = [batch(number % 2, 300 * number, 250) for number in range(60)]
    stored = [Stored(listed(wanted[at : at + 20], 7), segments) for at in (0, 20, 40)]
    pieces = [b"head" * 100, stored[0], b"between", stored[1], stored[2], b"tail"]
    chunks = await chunks_of(StreamedResponse(pieces))
    assert max(map(len, chunks)) < 1000 + 250 + len(b"between")
    data = b"".join(chunks)
    assert data.startswith(b"head" * 100 + bytes(7) + b"\7")
    assert data.endswith(b"tail")
    assert len(data) == 400 + 60 * 250 + len(b"betweentail")


async def test_deleted_segment_is_sent_while_it_is_pinned(tmp_path: Path) -> None:
    """Also what had not been opened before: a file is gone with its last name."""
    segments = Segments(tmp_path)
    content = random.Random(1).randbytes(3000)
    for segment in range(3):
        segments.start(segment)
        segments.write([content], 3000, False)
    segments.close()
    wanted = [batch(segment, 100, 2000) for segment in range(2)]

    async def send() -> bytes:
        answer = StreamedResponse([Stored(listed(wanted), segments)])
        with answer.pinned():
            segments.drop(0)
            segments.close()
            segments.drop(1)
            chunk = await answer.read()
        assert chunk is not None
        assert not segments._fds
        return bytes(chunk)

    assert without_heads(await send(), wanted) == content[116:2100] * 2


async def test_early_end_is_an_error(segments: Segments) -> None:
    with pytest.raises(DamagedBatch, match=f"the batch at {SIZE - 90} in segment 0"):
        await answered(segments, [batch(0, SIZE - 300, 200), batch(0, SIZE - 90, 200)])
    assert segments.damage.at(0, SIZE - 90)
    assert not segments.damage.at(0, SIZE - 300)


def test_pins_hold_what_was_found_until_released(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    content = random.Random(1).randbytes(3000)
    for segment in range(3):
        segments.start(segment)
        segments.write([content], 3000, False)
    pins = streamed_response.Pins()
    pins.hold([Stored(listed([batch(0, 0, 100)]), segments)])
    pins.hold([Stored(listed([batch(0, 100, 100), batch(1, 0, 100)]), segments)])
    segments.drop(0)
    segments.drop(1)
    data = bytearray(100)
    segments.read_into(memoryview(data), 0, 50, True)
    assert bytes(data) == content[50:150]
    pins.release()
    assert not segments._pins
    assert set(segments._fds) <= {2}
    segments.close()
