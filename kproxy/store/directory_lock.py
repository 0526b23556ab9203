"""The lock of a data directory: one kproxy at a time uses it."""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kproxy.common.errors import CannotStart
from kproxy.store import files

_LOOK_S = 0.05
_TRIES = 3
_NAME = "LOCK"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the data directory for this process alone. Raises CannotStart."""
    try:
        files.make_directory(directory)
        fd = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CannotStart(f"cannot use --data-dir {directory}: {error.strerror}") from None
    try:
        if not _lock(fd):
            raise CannotStart(
                f"another kproxy is using {directory}; stop it, or choose another --data-dir"
            )
        yield
    finally:
        os.close(fd)


def readable_by_others(directory: Path) -> bool:
    """Whether other users of the machine may read what is there: it has users' keys."""
    modes = [path.stat().st_mode for path in (directory, directory / _NAME)]
    return bool(modes[0] & stat.S_IXOTH and modes[1] & stat.S_IROTH)


def _lock(fd: int) -> bool:
    """Whether the lock is ours.

    A process that only looks whether it is free has it for an instant.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_LOOK_S)
        else:
            return True
    return False


def wait_unlocked(directory: Path, seconds: float) -> bool:
    """Whether nobody uses the directory any more, within so many seconds. Blocks."""
    until = time.monotonic() + seconds
    with (directory / _NAME).open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > until:
                    return False
                time.sleep(_LOOK_S)
            else:
                return True
