"""Connections whose clients have not said who they are: they must not keep the others out."""

from collections.abc import Callable, Hashable

from kproxy.server.attempts import network_of

_SHARE = 4
_AT_LEAST = 100


class Newcomers:
    """Those of a server: a quarter of all connections at most.

    Where there are too many the oldest of an address leaves: of the newest one's own where that has
    more than others have, else of the one that has most. So an address pushes out its own. A login
    takes milliseconds: who means it is mostly through before that.
    """

    def __init__(self, connections_max: int) -> None:
        self.most = max(connections_max // _SHARE, min(connections_max, _AT_LEAST))
        self._addresses: dict[Hashable, str] = {}
        self._ends: dict[str, dict[Hashable, Callable[[], None]]] = {}  # by address, oldest first

    def __len__(self) -> int:
        return len(self._addresses)

    def come(self, one: Hashable, ip: str, end: Callable[[], None]) -> None:
        """Count one. `end`: called where it has to leave."""
        address = self._addresses[one] = network_of(ip)
        mine = self._ends.setdefault(address, {})
        mine[one] = end
        if len(self._addresses) <= self.most:
            return
        if len(mine) * len(self._ends) <= len(self._addresses):
            mine = max(self._ends.values(), key=len)
        oldest, end = next(iter(mine.items()))
        self.gone(oldest)
        end()

    def gone(self, one: Hashable) -> None:
        """It has said who it is, or has left."""
        address = self._addresses.pop(one, None)
        if address is None:
            return
        mine = self._ends[address]
        del mine[one]
        if not mine:
            del self._ends[address]
