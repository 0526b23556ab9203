"""Levels: which formats a cluster or a data directory may be written with.

A level is a set of kinds of envelopes, rows and records that older releases do not know. Each
release reads all levels up to its `NEWEST`. It writes what needs a level only after an operator
has finalized that level. Level 1 is what kproxy wrote before there were levels. Clients see the
level as a feature (KIP-584): `kafka-features.sh` shows and upgrades it.
"""

from typing import Protocol

OLDEST = 1
NEWEST = 8
CALLS_FROM = 2
"""All workers call the owner of a log that they append to (`upstream.link`)."""
COMPACTION_FROM = 3
"""Queues may be compacted."""
TRANSACTIONS_FROM = 4
"""Producers may have transactional ids."""
SHARES_FROM = 5
"""Groups may be share groups, and have settings."""
ROUTES_FROM = 6
"""Queues may pass records on to others."""
DELAYS_FROM = 6
"""Records may wait until they are due."""
RESTORES_FROM = 6
"""A data directory may come from a backup."""
SECURITY_FROM = 7
"""The level from which there may be access rules, users and quotas."""
ARRIVAL_FROM = 8
"""Retention may count from the arrival of records."""
PRODUCERS_FROM = 8
"""Partitions remember idempotent producers by time."""
SHIPS_FROM = 8
"""A SHIP of a filter says where its cut begins."""
LETTERS_FROM = 8
"""Routes pass dead letters on."""
ENCODINGS_FROM = 8
"""Templates of routes may encode keys and headers."""
FORGETS_FROM = 8
"""FORGET_LANDED also drops FORWARDED rows."""
SPARES_FROM = 8
"""A TRIM of retention, or of what was passed on, spares what a new route has to pass on."""
WAITS_FROM = 8
"""A change of a route waits where a partition keeps as many epochs as it may."""
UNASKED_FROM = 8
"""A CREATE says that nobody has said how the queue is to be."""
FEATURE = "kproxy.level"


class Level:
    """The level in force. It rises while kproxy serves; it never falls."""

    __slots__ = ("value",)

    def __init__(self, value: int = NEWEST) -> None:
        self.value = value

    def reaches(self, level: int) -> bool:
        """Return whether what needs `level` may be written."""
        return self.value >= level


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
