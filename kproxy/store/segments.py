"""Append-only segment files: the embedded log, and the bytes of every batch.

A segment is named by its first log offset. It is a run of frames (`store.frames`). A frame is
never changed. Recovery cuts off an unsound tail that a crash left of an unfinished commit, and
refuses any other unsound frame as damage (`store.tail` tells which).
"""

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c

from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.store import files
from kproxy.store.damage import Damage, is_sound
from kproxy.store.disk_calls import waited_s
from kproxy.store.frames import BODY_AT, Frame, FrameReader
from kproxy.store.synced import Synced
from kproxy.virtual.commands import envelope as envelopes
from kproxy.virtual.commands.envelope import Body, Envelope
from kproxy.virtual.outcome import LogLocation

_HEAD = struct.Struct(">Q" + envelopes.HEAD.format.removeprefix(">"))  # after the log offset
_LENGTH_CRC = struct.Struct(">II")
_OPEN_FILES_MAX = 512
SLOW_S = 0.05
"""The seconds for which a write may hold the event loop up."""
SUFFIX = ".log"


class DamagedLog(Exception):
    """A segment holds bytes that no crash of ours can explain."""


class LogFailed(Exception):
    """A failed write could not be undone: only a restart can tell what the disk holds."""


class Segments:
    """The segment files of one shard. Writing is for one caller at a time; reading is for many."""

    def __init__(
        self, directory: Path, *, marked: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Take `marked`: a file beside it says how far it is on disk. `clock`: for slow writes."""
        self._monotonic = clock.monotonic
        self._directory = directory
        files.make_directory(directory)
        self.mark = Synced(directory) if marked else None
        self._files = threading.RLock()  # the log's thread opens some, too
        self._fds: OrderedDict[int, int] = OrderedDict()
        self._pins: dict[int, int] = {}
        self._doomed: set[int] = set()
        self._sizes: dict[int, int] = {}  # sizes of segments that are not written any more
        stems = [path.stem for path in directory.glob(f"*{SUFFIX}")]
        self.ids = sorted(int(stem) for stem in stems if stem.isdecimal())
        self.damage = Damage()
        self._syncing = threading.Lock()
        self.unforced: set[int] = set()
        """Segments that are full, and not known to be on disk."""
        self._slow = False  # the last write was
        self.failed = False  # the state on disk is not known any more
        self.active = -1
        self.end = 0  # byte position where the next frame goes in the active segment

    @property
    def directory(self) -> Path:
        return self._directory

    def path(self, segment: int) -> Path:
        return self._directory / f"{segment:020d}{SUFFIX}"

    def size(self, segment: int) -> int:
        if segment == self.active:
            return self.end
        if segment not in self._sizes:
            self._sizes[segment] = self.path(segment).stat().st_size
        return self._sizes[segment]

    def total_bytes(self) -> int:
        """Return the bytes of all segments. Raises OSError where one was just deleted."""
        return sum(map(self.size, list(self.ids)))

    # -- writing

    def start(self, segment: int) -> None:
        """Begin a new segment; on return its name is durable."""
        fd = os.open(self.path(segment), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, 0)
            files.sync_directory(self._directory)
        except OSError:
            os.close(fd)
            raise
        self._keep(segment, fd)
        self.active, self.end = segment, 0
        if segment not in self.ids:  # last: others would keep its size of now, as a full one's
            self.ids.append(segment)

    def roll(self, segment: int) -> None:
        """Begin a new segment behind one that is not forced to disk."""
        self.unforced.add(self.active)  # before: a sync on another thread misses neither
        self.start(segment)

    def force(self, segment: int) -> None:
        """Force what a segment that is not written now holds to disk. Raises OSError."""
        files.sync_data(self._fd(segment))

    def resume(self, segment: int, end: int) -> None:
        """Go on writing a segment at `end`; what lies behind it is cut off."""
        fd = self._fd(segment)
        os.ftruncate(fd, end)
        os.fsync(fd)
        self._sizes.pop(segment, None)
        self.active, self.end = segment, end

    def frame(
        self, first_log_offset: int, batch: list[Envelope], synced: int | None = None
    ) -> tuple[list[Body], list[LogLocation], int]:
        """Return (buffers to write, a place for each envelope, bytes in all) at the current end.

        `synced`: the log offset before which all is on disk, where nobody counts envelopes.
        """
        buffers: list[Body] = []
        places: list[LogLocation] = []
        position, segment = self.end, self.active
        log_offset = first_log_offset
        pack = _HEAD.pack
        for envelope in batch:
            body = envelope.body
            head = pack(
                log_offset,
                envelope.kind,
                envelopes.FORM,
                envelope.queue_id,
                envelope.partition,
                envelope.number,
                envelope.time_ms,
                envelope.writer,
                envelope.counter if synced is None else synced,
            )
            crc = crc32c(body, crc32c(head))
            buffers.append(_LENGTH_CRC.pack(len(head) + len(body), crc) + head)
            places.append(LogLocation(segment, position + BODY_AT, len(body)))
            if body:
                buffers.append(body)
            position += BODY_AT + len(body)
            log_offset += 1
        return buffers, places, position - self.end

    def append(
        self, first_log_offset: int, batch: list[Envelope], segment_bytes: int
    ) -> list[LogLocation]:
        """Write a batch, unsynced; behind `segment_bytes` in a new segment. Raises as `write`."""
        if self.end >= segment_bytes:
            self.roll(first_log_offset)
        buffers, places, total = self.frame(first_log_offset, batch)
        self.write(buffers, total, False)
        return places

    def write(self, buffers: list[Body], total: int, sync: bool) -> None:
        """Append `buffers`, `total` bytes.

        Raises OSError, and then the file is as it was before; or LogFailed.
        """
        self._refuse_failed()
        fd, position, began = self._fd(self.active), self.end, self._monotonic()
        try:
            position = files.write_all(fd, buffers, position)
            assert position == self.end + total
            if sync:
                files.sync_data(fd)
        except OSError as error:
            try:
                os.ftruncate(fd, self.end)
                os.fsync(fd)
            except OSError:
                self.failed = True
                raise LogFailed(f"a write failed and could not be undone: {error}") from error
            raise
        self.end = position
        self._slow = self._monotonic() - began > SLOW_S

    @property
    def slow(self) -> bool:
        """Whether a write may take long, and belongs on a thread: one did, or a call hangs now."""
        return self._slow or waited_s() > SLOW_S

    def may_hang(self, segment_bytes: int) -> bool:
        """Whether the next `append` belongs on a thread: it begins a segment, or is slow."""
        return self.end >= segment_bytes or self.slow

    def sync(self) -> None:
        """Force all that was written to disk. Raises LogFailed: what is there is not known then."""
        with self._syncing:  # the system would tell only one of two at once
            self._refuse_failed()
            full = sorted(self.unforced)
            try:
                for segment in (*full, self.active):
                    self._force_data(segment)
            except OSError as error:
                self.failed = True
                raise LogFailed(f"the log could not be forced to disk: {error}") from error
            self.unforced.difference_update(full)

    def _force_data(self, segment: int) -> None:
        """Force a segment to disk, with a descriptor of its own:

        the others are closed as may be.
        """
        try:
            fd = os.open(self.path(segment), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if segment in self.ids:
                raise
            return  # it was dropped meanwhile
        try:
            files.sync_data(fd)
        finally:
            os.close(fd)

    def is_synced(self, through: int, segment: int, position: int) -> None:
        """Note that all before this log offset, and place, is on disk by now."""
        if self.mark is not None:
            self.mark.note(through, segment, position)

    def _refuse_failed(self) -> None:
        """Raise LogFailed if an fsync failed before: asked once more, the system would say all is
        well.
        """
        if self.failed:
            raise LogFailed("the log could not be forced to disk before")

    # -- reading

    def read_into(self, buffer: memoryview, segment: int, position: int, wait: bool) -> bool:
        """Do as `read_run`, of one buffer."""
        return self.read_run([buffer], segment, position, len(buffer), wait)

    def read_run(
        self, buffers: list[memoryview], segment: int, position: int, size: int, wait: bool
    ) -> bool:
        """Fill `buffers`, `size` bytes, with what lies at `position`, in one read where that does.

        With `wait` false: only from the page cache, False where it is not there. Raises EOFError
        where the file is shorter than the index says.
        """
        fd = self._fd(segment)
        while size:
            count = files.read_into(fd, buffers, position, wait)
            if count == 0:
                raise EOFError(f"segment {segment} ends before position {position}")
            if count < 0:
                return False
            position += count
            size -= count
            if size:
                if not wait:
                    return False
                buffers = _behind(buffers, count)
        return True

    def batch(
        self, segment: int, position: int, length: int, *, wait: bool = True
    ) -> bytearray | None:
        """Return a batch that was checked; None: it is not in the page cache, and `wait` is false.

        Raises DamagedBatch; another OSError where the file could not be opened.
        """
        data = bytearray(length)
        self._fd(segment)  # before: that it does not open is no damage
        try:
            if not self.read_into(memoryview(data), segment, position, wait):
                return None
        except (OSError, EOFError) as error:
            why = f"cannot be read: {error}"
            raise self.damage.note(segment, position, why, lasts=False) from error
        self.check(data, segment, position)
        return data

    def check(self, batch: bytearray | memoryview, segment: int, position: int) -> None:
        """Raise DamagedBatch where these bytes of this place are not those that were written."""
        if not is_sound(batch):
            raise self.damage.note(segment, position, "is not what was written", lasts=True)

    @contextmanager
    def pinned(self, segments: set[int]) -> Iterator[None]:
        """Keep these segments' files open, whatever is dropped or closed, until they are read."""
        self.pin(segments)
        try:
            yield
        finally:
            self.unpin(segments)

    def pin(self, segments: set[int]) -> None:
        """Do as `pinned`, until `unpin` of the same. Raises OSError: nothing is pinned."""
        held = []
        with self._files:
            try:
                for segment in segments:
                    self._fd(segment)
                    self._pins[segment] = self._pins.get(segment, 0) + 1
                    held.append(segment)
            except BaseException:
                self._unpin(held)
                raise

    def unpin(self, segments: set[int]) -> None:
        with self._files:
            self._unpin(segments)

    def _unpin(self, held: Iterable[int]) -> None:
        for segment in held:
            self._pins[segment] -= 1
            if not self._pins[segment]:
                del self._pins[segment]
                if segment in self._doomed:
                    self._close(segment)

    def replay(self, segment: int, position: int) -> Iterator[Frame]:
        """(log offset, envelope, location, position behind it) of each sound frame.

        Stops at the first frame that is not sound: the caller knows whether that may be.
        """
        with self.reader(segment) as reader:
            yield from reader.frames(position)

    def reader(self, segment: int) -> FrameReader:
        """Return a reader of a segment's frames as of now; to be closed."""
        return FrameReader(self.path(segment), segment, self.size(segment))

    def drop(self, segment: int) -> int:
        """Delete a segment; returns the bytes given back. A reader that has it pinned finishes."""
        size = self.size(segment)
        self.ids.remove(segment)
        self._sizes.pop(segment, None)
        self.unforced.discard(segment)
        self.path(segment).unlink()
        self._let_go([segment])
        return size

    def close(self) -> None:
        """Close all files. A reader that has one pinned finishes."""
        if self.mark is not None:
            self.mark.close()
        self._let_go(list(self._fds))

    def _let_go(self, segments: list[int]) -> None:
        with self._files:
            for segment in segments:
                if segment in self._pins:
                    self._doomed.add(segment)
                else:
                    self._close(segment)

    def _fd(self, segment: int) -> int:
        """Return the descriptor of a pinned segment, or the active one: others may be closed any
        time.
        """
        fd = self._fds.get(segment)
        if fd is None:
            with self._files:
                fd = self._fds.get(segment)
                if fd is None:
                    fd = os.open(self.path(segment), os.O_RDWR | os.O_CLOEXEC)
                    self._keep(segment, fd)
        return fd

    def _keep(self, segment: int, fd: int) -> None:
        """Keep a file open, and close the one opened longest ago where there are too many."""
        with self._files:
            if len(self._fds) >= _OPEN_FILES_MAX:
                idle = (s for s in self._fds if s != self.active and s not in self._pins)
                if (oldest := next(idle, None)) is not None:
                    self._close(oldest)
            self._fds[segment] = fd

    def _close(self, segment: int) -> None:
        self._doomed.discard(segment)
        if (fd := self._fds.pop(segment, None)) is not None:
            os.close(fd)


def _behind(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return the rest of buffers whose first `count` bytes are filled."""
    for number, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[number + 1 :]]
        count -= len(buffer)
    return []
