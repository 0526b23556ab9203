"""The search for calls that block the event loop: such a call holds up all clients.

Calls are noted where kproxy's own code makes them on a thread with a running loop, but for those in
`ALLOWED`. Other calls (reads of a segment that the page cache has, RocksDB's) are bounded
otherwise.
"""

import asyncio
import builtins
import io
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kproxy

_ROOT = str(Path(kproxy.__file__).parent) + os.sep
_FILES = _ROOT + "store/files.py"
CALLS: dict[Any, tuple[str, ...]] = {
    builtins: ("open",),
    io: ("open",),
    os: (
        "open", "fsync", "fdatasync", "statvfs", "replace", "rename", "unlink", "link", "truncate",
        "scandir", "listdir", "mkdir", "posix_fallocate",
    ),
    time: ("sleep",),
    shutil: ("rmtree",),
    socket: ("getaddrinfo", "create_connection"),
    subprocess: ("Popen",),
}  # fmt: skip
ALLOWED: dict[str, str] = {
    "admin_socket/server.py:_bound": "once, before clients are served",
    "admin_socket/server.py:admin_socket": "once, when no client is served any more",
    "metadata/cluster_view.py:_write_identity": "once, at the first start on a directory",
    "observe/series.py:__init__": "once, before clients are served",
    "security/tls.py:_made": "small files: before clients are served, and where they have changed",
    "server/accepting.py:bound_sockets": "once, before clients are served",
    "store/directory_lock.py:locked": "once, before clients are served",
}
"""The reasons why a call does no harm, by where it is made: `log/local.py:_close`."""


@contextmanager
def blocking_calls() -> Iterator[list[str]]:
    """Note the calls: `os.fsync by log/local.py:commit`."""
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for module, names in CALLS.items():
            for name in names:
                patch.setattr(module, name, _noted(getattr(module, name), module, found))
        yield found


def _noted(call: Any, module: Any, found: list[str]) -> Any:
    def noted(*args: Any, **more: Any) -> Any:
        if asyncio._get_running_loop() is not None:
            place = _caller()
            if place is not None and place not in ALLOWED:
                found.append(f"{module.__name__}.{call.__name__} by {place}")
        return call(*args, **more)

    return noted


def _caller() -> str | None:
    """Return the innermost function of kproxy's that is under way, if that is not an import.

    Calls of `store/files.py` count as those of its callers.
    """
    frame: Any = sys._getframe(2)
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path.startswith("<frozen importlib"):
            return None
        if path.startswith(_ROOT) and path != _FILES:
            return f"{path[len(_ROOT) :]}:{name}"
        frame = frame.f_back
    return None


@pytest.fixture
def unblocked() -> Iterator[None]:
    """Fail a test during which the event loop was blocked."""
    with blocking_calls() as found:
        yield
    assert not found, sorted(set(found))
