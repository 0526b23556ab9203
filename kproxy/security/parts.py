"""A pool that nobody can have whole, where what was given is not taken back.

A holder may have three times as much as is free. So one alone gets three quarters of a pool, two
that want all get three sevenths each, and there is always some for who comes next.
"""

TIMES_FREE = 3


class Parts:
    """The holders of parts of a pool. `most`: all there is.

    `plenty`: while no more than this is used, nobody has more than a part.
    """

    __slots__ = ("_of", "most", "plenty", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.plenty = most * TIMES_FREE // (TIMES_FREE + 1)
        self.used = 0
        self._of: dict[str, int] = {}

    def of(self, holder: str) -> int:
        return self._of.get(holder, 0)

    def may(self, holder: str, count: int = 1) -> bool:
        """Whether a holder may have so much more.

        A holder of nothing may have one, while there is one.
        """
        free = self.most - self.used
        if count > free:
            return False
        mine = self._of.get(holder, 0)
        return mine + count <= TIMES_FREE * (free - count) or (mine == 0 and count <= 1)

    def take(self, holder: str, count: int = 1) -> None:
        if not count:
            return
        self.used += count
        self._of[holder] = self._of.get(holder, 0) + count

    def give_back(self, holder: str, count: int = 1) -> None:
        self.used -= count
        left = self._of[holder] - count
        if left:
            self._of[holder] = left
        else:
            del self._of[holder]
