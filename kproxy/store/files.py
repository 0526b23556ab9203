"""File calls that not every platform has, each with its substitute."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kproxy.store.disk_calls import UNDER_WAY

_IOV_MAX = 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", None)


def sync_data(fd: int) -> None:
    """Force a file's data to disk; its metadata too where the platform knows no difference."""
    with UNDER_WAY:
        getattr(os, "fdatasync", os.fsync)(fd)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names of the files in a directory durable."""
    with UNDER_WAY:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return the bytes that may be written on the disk below a path."""
    with UNDER_WAY:
        status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing; on return their names are durable."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_directory(made.parent)
    if not missing:  # made by a process that was killed then, or by somebody else
        with suppress(OSError):
            sync_directory(path.parent)


def read_into(fd: int, buffers: list[memoryview], position: int, wait: bool) -> int:
    """Read once into `buffers`, one behind the other; the bytes read, 0 at the file's end.

    With `wait` false only what the page cache holds, where the platform can tell; -1: not there.
    """
    if not hasattr(os, "preadv"):
        data = os.pread(fd, len(buffers[0]), position)
        buffers[0][: len(data)] = data
        return len(data)
    if wait or _NOWAIT is None:
        return os.preadv(fd, buffers, position)
    try:
        return os.preadv(fd, buffers, position, _NOWAIT)
    except OSError:  # not in the page cache, or a file system that cannot tell
        return -1


def write_all(fd: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
    """Write all buffers in order; the position behind them. Raises OSError."""
    with UNDER_WAY:
        for start in range(0, len(buffers), _IOV_MAX):
            part = buffers[start : start + _IOV_MAX]
            wanted = sum(map(len, part))
            count = os.pwritev(fd, part, position) if hasattr(os, "pwritev") else 0
            if count < wanted:  # a signal, or the disk filled up: the next call says which
                rest = memoryview(b"".join(part))[count:]
                while rest:
                    written = os.pwrite(fd, rest, position + count)
                    count += written
                    rest = rest[written:]
            position += wanted
    return position


def reserve(path: str | os.PathLike[str], count: int) -> bool:
    """Make a file that takes up `count` bytes of disk; False where there is no room."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError:
        return False
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, count)
        else:
            write_all(fd, [bytes(count)], 0)
    except OSError:
        os.unlink(path)
        return False
    finally:
        os.close(fd)
    return True
