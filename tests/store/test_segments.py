import os
from pathlib import Path

import pytest

from kproxy.store import files
from kproxy.store import segments as segments_module
from kproxy.store.segments import LogFailed, Segments
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.types import QueueId

QUEUE = QueueId(b"q" * 16)


def envelope(body: bytes) -> Envelope:
    return Envelope(Kind.APPEND, QUEUE, 3, number=5, time_ms=7, body=body)


def write(segments: Segments, first: int, *bodies: bytes) -> list[tuple[int, int, int]]:
    buffers, places, total = segments.frame(first, [envelope(body) for body in bodies])
    segments.write(buffers, total, sync=True)
    return [tuple(place) for place in places]


def replayed(segments: Segments, segment: int = 0, position: int = 0) -> list[tuple[int, bytes]]:
    return [(offset, e.body) for offset, e, _, _ in segments.replay(segment, position)]


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    made = Segments(tmp_path)
    made.start(0)
    return made


def test_written_frames_are_read_and_replayed(segments: Segments) -> None:
    bodies = [b"", b"a", b"bc" * 5000]
    places = write(segments, 0, *bodies)
    for (segment, position, length), body in zip(places, bodies, strict=True):
        buffer = bytearray(length)
        assert segments.read_into(memoryview(buffer), segment, position, wait=True)
        assert buffer == body
    assert replayed(segments) == list(enumerate(bodies))
    found = next(segments.replay(0, 0))[1]
    assert (found.queue_id, found.partition, found.number, found.time_ms) == (QUEUE, 3, 5, 7)


def test_more_buffers_than_one_call_takes(segments: Segments) -> None:
    bodies = [b"%d" % i for i in range(3000)]
    write(segments, 0, *bodies)
    assert replayed(segments) == list(enumerate(bodies))


def test_a_short_write_is_finished(segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers: list[bytes], position: int) -> int:
        return real(fd, [b"".join(buffers)[:10]], position)

    monkeypatch.setattr(files.os, "pwritev", short)
    write(segments, 0, b"a" * 100, b"b" * 100)
    assert replayed(segments) == [(0, b"a" * 100), (1, b"b" * 100)]


@pytest.mark.parametrize(
    "lacking", [("RWF_NOWAIT",), ("preadv", "pwritev"), ("fdatasync",), ("posix_fallocate",)]
)
def test_platforms_that_lack_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...]
) -> None:
    for name in lacking:
        monkeypatch.delattr(files.os, name)
    monkeypatch.setattr(files, "_NOWAIT", getattr(os, "RWF_NOWAIT", None))
    segments = Segments(tmp_path)
    segments.start(0)
    ((segment, position, length),) = write(segments, 0, b"body" * 1000)
    for wait in (True, False):
        buffer = bytearray(length)
        assert segments.read_into(memoryview(buffer), segment, position, wait)
        assert buffer == b"body" * 1000
    assert files.reserve(tmp_path / "reserve", 100_000)
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 100_000


def test_replay_stops_at_every_torn_length_and_at_every_flipped_byte(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    segments.start(0)
    write(segments, 0, b"first")
    whole_first = segments.end
    write(segments, 1, b"second")
    data = segments.path(0).read_bytes()
    for length in range(whole_first, len(data)):
        segments.path(0).write_bytes(data[:length])
        assert replayed(segments) == [(0, b"first")]
    for at in range(whole_first, len(data)):
        torn = bytearray(data)
        torn[at] ^= 0x41
        segments.path(0).write_bytes(torn)
        assert replayed(segments) == [(0, b"first")]


def test_a_failed_write_leaves_the_file_as_it_was(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(segments, 0, b"kept")
    end = segments.end

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fdatasync", fail)
    with pytest.raises(OSError, match="No space"):
        write(segments, 1, b"lost")
    monkeypatch.undo()
    assert (segments.end, segments.path(0).stat().st_size) == (end, end)
    write(segments, 1, b"next")
    assert replayed(segments) == [(0, b"kept"), (1, b"next")]


def test_a_write_that_cannot_be_undone_ends_the_log(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files.os, "fdatasync", fail)
    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(LogFailed):
        write(segments, 0, b"x")


def test_a_dropped_segment_stays_readable_while_pinned(segments: Segments) -> None:
    ((segment, position, length),) = write(segments, 0, b"body")
    buffer = bytearray(length)
    segments.read_into(memoryview(buffer), segment, position, wait=True)
    segments.start(1)
    with segments.pinned({0}):
        segments.drop(0)
        buffer = bytearray(length)
        assert segments.read_into(memoryview(buffer), segment, position, wait=True)
        assert buffer == b"body"
    assert segments.ids == [1]
    with pytest.raises(FileNotFoundError):
        segments.read_into(memoryview(buffer), segment, position, wait=True)


def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "_OPEN_FILES_MAX", 4)
    segments = Segments(tmp_path)
    for segment in range(10):
        segments.start(segment)
        write(segments, segment, b"%d" % segment)
    for segment in range(10):
        buffer = bytearray(1)
        segments.read_into(memoryview(buffer), segment, 54, wait=True)
    assert len(segments._fds) <= 5


def test_reading_past_the_end_is_an_error(segments: Segments) -> None:
    write(segments, 0, b"x")
    with pytest.raises(EOFError):
        segments.read_into(memoryview(bytearray(10)), 0, segments.end, wait=True)


def test_segment_that_is_read_ahead_is_not_closed_by_others(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: with many segments their file could be closed in the middle of a read."""
    monkeypatch.setattr(segments_module, "_OPEN_FILES_MAX", 1)
    write(segments, 0, b"v" * 100)
    with segments.reader(0) as reader:
        for segment in (1, 2, 3):
            segments.start(segment)
        assert 0 not in segments._fds
        reader.read_ahead(0, 4096)
        assert [frame[1].body for frame in reader.frames(0)] == [b"v" * 100]


def test_a_segment_that_cannot_be_begun_leaves_nothing_open(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: a descriptor was lost at each attempt."""

    def refuse(path: object) -> None:
        raise OSError("no")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(files, "sync_directory", refuse)
    for _ in range(3):
        with pytest.raises(OSError, match="no"):
            segments.start(1)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert segments.active == 0
    monkeypatch.undo()
    segments.start(1)
    assert segments.active == 1


def test_a_scrape_amid_the_begin_of_a_segment_does_not_take_it_for_empty(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: its size stayed 0 once it was full: nothing read it any more, nor copied it on."""
    write(segments, 0, b"a")
    keep = segments._keep

    def scraped(segment: int, fd: int) -> None:
        segments.total_bytes()  # on the HTTP thread
        keep(segment, fd)

    with monkeypatch.context() as patch:
        patch.setattr(segments, "_keep", scraped)
        segments.roll(1)
    write(segments, 1, b"b")
    segments.roll(2)
    assert segments.size(1) == segments.path(1).stat().st_size
    assert replayed(segments, 1) == [(1, b"b")]


def test_a_reserve_that_cannot_be_made_is_none(tmp_path: Path) -> None:
    """FAULT: without a descriptor for it the keeper ended, and with it the server."""
    assert not files.reserve(tmp_path / "nowhere" / "RESERVE", 4096)
