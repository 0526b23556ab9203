"""Connections whose clients have not said who they are: they must not keep the others out."""

from collections.abc import Callable, Hashable

_SHARE = 4
_AT_LEAST = 100


class Newcomers:
    """Those of a server: a quarter of all connections at most, the oldest leaves for the newest.

    A login takes milliseconds, so that who means it is through before that.
    """

    def __init__(self, connections_max: int) -> None:
        self.most = max(connections_max // _SHARE, min(connections_max, _AT_LEAST))
        self._ends: dict[Hashable, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def come(self, one: Hashable, end: Callable[[], None]) -> None:
        """Count one. `end`: called where it has to leave."""
        self._ends[one] = end
        if len(self._ends) > self.most:
            oldest = next(iter(self._ends))
            self._ends.pop(oldest)()

    def gone(self, one: Hashable) -> None:
        """It has said who it is, or has left."""
        self._ends.pop(one, None)
