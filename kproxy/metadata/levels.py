"""The level in force, and how it is raised. `virtual.levels` says what needs which."""

from collections.abc import Iterable
from typing import Protocol

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import TRAITS
from kproxy.virtual.levels import NEWEST

ABOVE_LEVEL = "a command of a level that is not in force"


class Level:
    """The level in force. It rises while kproxy serves; it never falls."""

    __slots__ = ("value",)

    def __init__(self, value: int = NEWEST) -> None:
        self.value = value

    def reaches(self, level: int) -> bool:
        """Return whether what needs `level` may be written."""
        return self.value >= level

    def admits(self, envelopes: Iterable[Envelope]) -> bool:
        """Return whether all of these may be written. At the newest level it looks at none."""
        value = self.value
        return value >= NEWEST or all(TRAITS[Kind(one.kind)].level <= value for one in envelopes)


class Upgrades(Protocol):
    """An upgrade of the level of all workers that share one cluster or data directory."""

    async def behind(self, level: int) -> list[str]:
        """Return live workers that do not know a level, as operators know them. Raise
        KafkaError."""
        ...

    async def finalize(self, level: int) -> None:
        """Put a level in force for good; returns when it is. Raise KafkaError."""
        ...


class Newest:
    """The upgrades of a worker that has nothing left to upgrade."""

    async def behind(self, level: int) -> list[str]:
        return []

    async def finalize(self, level: int) -> None:
        pass
