"""Admission by free disk space, and a reserve file for deletions.

Below `disk_free_bytes_min` the log refuses produces. Commits of offsets and copies are accepted
down to half of it, deletions always. A reserve file holds a quarter of it (at most 64 MiB) against
other programs that fill the disk; the log removes the file when they have.

The file system is asked on a thread: it may take its time. Housekeeping asks once a second, and the
embedded log before a commit. Writes in between are counted off.
"""

from pathlib import Path

import structlog

from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.store import files
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.traits import TRAITS, DiskUse

_log = structlog.get_logger()

FRAME_BYTES = 128  # about what an envelope takes besides its body
_LOOK_S = 0.01  # how old an answer about free disk may be for an embedded log
_MAINTAIN_S = 0.5
FULL = "the disk is nearly full: delete queues or add space"
_RESERVE_BYTES_MAX = 64 << 20
ALWAYS, MODEST, ALL = (
    frozenset(kind for kind, traits in TRAITS.items() if traits.disk <= use) for use in DiskUse
)


class DiskSpace:
    """The disk under one directory."""

    def __init__(self, directory: Path, free_bytes_min: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._directory = directory
        self._monotonic = clock.monotonic
        self._asked_at = self._maintained_at = float("-inf")
        self._free_bytes_min = self.free_bytes_min = free_bytes_min
        self._reserve = directory / "RESERVE"
        self._reserve_bytes = min(_RESERVE_BYTES_MAX, free_bytes_min // 4)
        self._held = self._reserve.exists()
        self._refusing = False
        self._free_bytes = self.free_bytes()  # as of the last look, less what was written since

    def free_bytes(self) -> int:
        """Ask the file system: not on the event loop."""
        return files.free_bytes(self._directory)

    @property
    def free_bytes_seen(self) -> int:
        """The free bytes as of the last look, less what was written since; from any thread."""
        return self._free_bytes

    def allowed_kinds(self, wanted_bytes: int) -> frozenset[Kind]:
        """Return the kinds of envelope that may be written now, where `wanted_bytes` are to be."""
        free = self._free_bytes - wanted_bytes
        refusing = free < self._free_bytes_min
        if refusing != self._refusing:
            self._refusing = refusing
            _log.warning("disk_full" if refusing else "disk_has_room", free_bytes=free)
        if not refusing:
            return ALL
        return MODEST if free > self._free_bytes_min // 2 else ALWAYS

    def is_stale(self, now: float) -> bool:
        """Whether an embedded log asks again: the last answer is old, or said that there is none.

        `now`: of the log's loop, as in `ask`.
        """
        return now - self._asked_at > _LOOK_S or self._refusing

    def ask(self, now: float) -> None:
        """Note what is free. Not on the event loop."""
        self._asked_at = now
        self._free_bytes = self.free_bytes()

    def count(self, written_bytes: int) -> None:
        """Count off what is written, until the next look."""
        self._free_bytes -= written_bytes

    def fits(self, wanted_bytes: int) -> bool:
        """Whether housekeeping may write so much, giving up the reserve for it if need be.

        Not on the event loop.
        """
        if self.free_bytes() < wanted_bytes:
            self._release()
        return self.free_bytes() >= wanted_bytes

    def look(self) -> None:
        """Note what is free; give the reserve up where others filled the disk, or take it.

        Called every so often, but not on the event loop.
        """
        now = self._monotonic()
        if now - self._maintained_at < _MAINTAIN_S:
            return  # for another shard on this disk
        self._maintained_at = now
        self._free_bytes = free = self.free_bytes()
        if free < self._reserve_bytes:
            self._release()
        elif not self._held and free > self._free_bytes_min + 2 * self._reserve_bytes:
            self._hold()

    def _hold(self) -> None:
        if self._reserve_bytes:
            self._held = files.reserve(self._reserve, self._reserve_bytes)

    def _release(self) -> None:
        if self._held:
            self._reserve.unlink(missing_ok=True)
            self._held = False
            _log.warning("disk_reserve_released", bytes=self._reserve_bytes)
