"""The times at which the embedded log forces a commit to disk."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """The time of an fsync: before each answer, every so many milliseconds, or never."""

    always: bool
    interval_ms: int | None
