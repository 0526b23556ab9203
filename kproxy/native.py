"""The native lane: kernels in Rust (`core/`) that do what the Python beside them does, faster.

They are there where kproxy was installed with cargo at hand, and asked unless `--native` is off.
Each is a pure function over bytes, which runs without the interpreter's lock. It takes plain cases
alone: for any other, and without the lane, it returns None, and its caller does the work. So
Python is the one place of the rules, and what either lane makes is the same.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

if TYPE_CHECKING:
    from kproxy import _core

_log = structlog.get_logger()

VERSION = 1
"""The version of what both languages agree on: a core that was built of another is not asked."""
NATIVE, PYTHON = "native", "python"


class Lane(NamedTuple):
    """The lane that serves: the kernels, or why there are none."""

    core: Any
    reason: str = ""

    @property
    def name(self) -> str:
        return PYTHON if self.core is None else NATIVE


def _found() -> Lane:
    try:
        from kproxy import _core
    except ImportError as error:
        return Lane(None, f"it was not built: {error}")
    if _core.VERSION != VERSION:
        return Lane(None, f"it was built as version {_core.VERSION}, not {VERSION}")
    return Lane(_core)


_FOUND = _found()
_lane = Lane(None, "it was not asked for")


def choose(setting: str) -> Lane:
    """Have this process use the kernels, or with "off" none; return the lane that serves."""
    global _lane
    _lane = _FOUND if setting == "auto" else Lane(None, f"native is {setting}")
    return _lane


def lane() -> Lane:
    """Return the lane that serves."""
    return _lane


class Bounds(NamedTuple):
    """The bounds of a cut, as `routes.cutting` has them."""

    shards: int
    start: int
    end: int
    limited: bool
    keyed: bool
    most: tuple[int, int, int, int, int, int, int]
    """The most bytes of it, of a batch, and held; targets, records, targets of a part, parts."""


Stored = tuple[int, bytes, bytes | None]
"""A batch: its base offset, as it is stored, and what its records unpack to, if they are packed."""
Fields = tuple[bytes, Sequence[tuple[bytes | None, bytes]]]
"""A template: how it starts; the name of a header, or None for the key, and the text behind it."""


def gather(
    stored: list[Stored], template: Fields, bounds: Bounds, own: str, plain: str
) -> "_core.Cut | None":
    """Return what a cut by a template holds, as `routes.cutting.Cutter` gathers it."""
    core = _lane.core
    if core is None:
        return None
    try:
        cut: _core.Cut | None = core.gather(stored, template, bounds, own.encode(), plain.encode())
    except RuntimeError as error:
        _failed("gather", error)
        return None
    return cut


def header_bytes(count: int, data: bytes) -> list[bytes] | None:
    """Return what `protocol.records.header_bytes` does."""
    core = _lane.core
    if core is None:
        return None
    try:
        found: list[bytes] | None = core.header_bytes(count, data)
    except RuntimeError as error:
        _failed("header_bytes", error)
        return None
    return found


def _failed(kernel: str, error: RuntimeError) -> None:
    """Say that a kernel has panicked: Python does its work."""
    _log.warning("native_failed", kernel=kernel, reason=str(error))
