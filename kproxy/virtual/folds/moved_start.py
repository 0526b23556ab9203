"""A range of rows that commands delete piece by piece, from its start on."""

from kproxy.virtual.state import State


class MovedStart:
    """The key from which the last range is read on: RocksDB would step over what was deleted.

    It follows from what was folded: a fold that begins anew reads from the range's start.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._start = self._moved = b""

    def some(self, start: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return `State.some`; what this gives is deleted, and nothing is put before its last
        key."""
        moved = self._moved if start == self._start else start
        found = self._state.some(moved, end, count)
        if found:
            self._start, self._moved = start, found[-1][0] + b"\0"
        return found

    def forget(self) -> None:
        """Forget the place: something is put that may lie before."""
        self._start = self._moved = b""
