"""Levels: what a cluster or a data directory may be written with.

A level is a set of kinds of envelopes, rows and records that older kproxies do not know. Each
kproxy reads all levels up to its `NEWEST`, and writes what is above the level in force only once an
operator has finalized it. Level 1 is what kproxy wrote before there were levels.
"""

OLDEST = 1
NEWEST = 2


class Level:
    """The level in force. It rises while kproxy serves; it never falls."""

    __slots__ = ("value",)

    def __init__(self, value: int = NEWEST) -> None:
        self.value = value

    def reaches(self, level: int) -> bool:
        """Whether what needs `level` may be written."""
        return self.value >= level
