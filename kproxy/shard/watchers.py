"""Requests that wait for a queue partition to change.

Waking costs time in what changed, not in what is watched.
"""

from typing import Protocol

from kproxy.virtual.types import PartitionKey

_ALWAYS = float("inf")


class Watcher(Protocol):
    """Something that reads a partition and wants to know of changes."""

    def changed(self, key: PartitionKey) -> None: ...


class Watchers:
    """Watchers by partition."""

    def __init__(self) -> None:
        self._by_key: dict[PartitionKey, set[Watcher]] = {}

    def add(self, key: PartitionKey, watcher: Watcher) -> None:
        self._by_key.setdefault(key, set()).add(watcher)

    def discard(self, key: PartitionKey, watcher: Watcher) -> None:
        watchers = self._by_key.get(key)
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._by_key[key]

    def wake(self, keys: set[PartitionKey]) -> None:
        by_key = self._by_key
        if not by_key:
            return
        for key in keys:
            for watcher in by_key.get(key, ()):
                watcher.changed(key)

    def any_since(self, key: PartitionKey, at: float) -> bool:
        """Return whether anybody who watches a partition has asked since then.

        A consumer that is gone without a word is still there: its last poll counts. A watcher
        that does not poll counts for as long as it is there.
        """
        found = self._by_key.get(key, ())
        return any(getattr(one, "polled_until", _ALWAYS) >= at for one in found)

    def wake_all(self) -> None:
        self.wake(set(self._by_key))

    def __len__(self) -> int:
        return len(self._by_key)
