"""Places by whom they are for: who has most, and who has had one longest, at once."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Place = TypeVar("Place", bound=Hashable)


class Crowd(Generic[Place]):
    """Places of many keys. Each call costs the same, however many there are."""

    __slots__ = ("_by_count", "_of", "_top", "count")

    def __init__(self) -> None:
        self.count = 0
        self._of: dict[str, dict[Place, None]] = {}  # oldest first
        self._by_count: dict[int, dict[str, None]] = {}
        self._top = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._of)

    def of(self, key: str) -> int:
        """Return the number of places that a key has."""
        mine = self._of.get(key)
        return 0 if mine is None else len(mine)

    def has(self, key: str, place: Place) -> bool:
        """Return whether a key has a place."""
        return place in self._of.get(key, ())

    def add(self, key: str, place: Place) -> None:
        mine = self._of.setdefault(key, {})
        self._move(key, len(mine), len(mine) + 1)
        mine[place] = None
        self.count += 1

    def drop(self, key: str, place: Place) -> None:
        mine = self._of[key]
        del mine[place]
        self._move(key, len(mine) + 1, len(mine))
        if not mine:
            del self._of[key]
        self.count -= 1

    def _move(self, key: str, before: int, after: int) -> None:
        if before:
            level = self._by_count[before]
            del level[key]
            if not level:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[key] = None
        if after > self._top or self._top not in self._by_count:
            self._top = after  # counts change by one

    def most(self) -> tuple[str, int]:
        """Return (the key that has most places, how many); of several the one that has them
        longest.
        """
        if not self._top:
            return "", 0
        return next(iter(self._by_count[self._top])), self._top

    def oldest(self, key: str) -> Place:
        return next(iter(self._of[key]))
