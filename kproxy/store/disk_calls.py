"""The calls to the disk that are under way: one that hangs may not answer for minutes.

The readers are on other threads, and ask the disk nothing.
"""

from threading import get_ident
from time import monotonic

_since: dict[int, float] = {}  # by thread


class _UnderWay:
    """A block with one call of this thread's in it."""

    def __enter__(self) -> None:
        _since[get_ident()] = monotonic()

    def __exit__(self, *_: object) -> None:
        _since.pop(get_ident(), None)


UNDER_WAY = _UnderWay()


def waited_s() -> float:
    """Return the seconds for which the oldest of them has been under way; 0: there is none."""
    now = monotonic()
    return now - min(list(_since.values()), default=now)
