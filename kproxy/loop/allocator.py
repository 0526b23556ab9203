"""The allocator of the C library (glibc): it keeps what was freed for what may be asked for next.

Each thread gets an arena of its own, and no other takes what is free there. Once a large block was
freed, blocks as large come out of the heap, where small ones behind them keep it from shrinking.
Rows are written and read by several threads, and memtables are large blocks: so memory would grow
with all that goes through. Nothing is changed if the environment sets the allocator up, or if there
is another one.
"""

import ctypes
import os
import sys
from collections.abc import Mapping

_MIB = 1 << 20
LARGE_BYTES = 2 * _MIB
"""Blocks from this size on go back to the system once they are free: memtables' are so large, and a
piece of an answer is not."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # as in malloc.h
_OPTIONS = {_ARENA_MAX: 2, _MMAP_THRESHOLD: LARGE_BYTES, _TRIM_THRESHOLD: 16 * _MIB}
_NAMES = ("MALLOC_", "GLIBC_TUNABLES")

_libc = None if sys.platform == "win32" else ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)
_set = getattr(_libc, "mallopt", None)


def keep_less(environment: Mapping[str, str] = os.environ) -> bool:
    """Have little kept from now on; before other threads begin. Return whether that is so."""
    if _set is None or any(name.startswith(_NAMES) for name in environment):
        return False
    done = [_set(option, value) for option, value in _OPTIONS.items()]
    return all(done)


def give_back() -> None:
    """Return free pages to the system, where the C library can: milliseconds."""
    if _trim is not None:
        _trim(0)
