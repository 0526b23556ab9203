"""When the embedded log forces a commit to disk."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """When a commit is forced to disk: before each answer, every so many milliseconds, or never."""

    always: bool
    interval_ms: int | None
