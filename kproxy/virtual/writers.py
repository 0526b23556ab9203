"""The writers of a shard's log, by which the fold knows an envelope that the log has twice.

A worker appends by librdkafka's idempotent producer. A producer that does not hear in time what
became of a batch may send it again under another epoch, and then Kafka takes it a second time.
None of its settings prevents that (docs/internals.md). But it keeps the order of what it sends to a
partition, and Kafka refuses what comes late of an earlier epoch. So the counters of a writer grow
along a log, and an envelope whose counter is not above the last one is a copy. Were it none, it
would come behind what was sent later: it has no effect either, and its sender is told so.

The last counters are rows like others, so each reader of a log knows them wherever it begins.
"""

from kproxy.virtual.changes import Kv
from kproxy.virtual.rows.writers import WRITERS

_WRITERS_MAX = 256
"""The number of writers that are known. The one that began first makes room: a copy comes within
the seconds for which its sender waits for a report, not behind so many workers that start."""


class _Known:
    """A row of a writer, by the log offset of its first envelope; a plain class: it changes."""

    __slots__ = ("counter", "key", "since")

    def __init__(self, key: bytes, counter: int, since: int) -> None:
        self.key = key
        self.counter = counter
        self.since = since


class Writers:
    """The last counter of each writer, in the order in which they began."""

    def __init__(self, kv: Kv) -> None:
        """Begin; `kv` has all of their rows until something is noted here, and nowhere else."""
        self._kv = kv
        self._looked = False
        self._known: dict[int, _Known] = {}
        self.changed: dict[int, _Known | None] = {}
        """The writers that have changed since the last `drain`; None: it has made room."""

    def passed(self, writer: int, counter: int, log_offset: int) -> bool:
        """Return whether the log has this envelope of a writer, or a later one; else note it."""
        known = self._known.get(writer)
        if known is None:
            known = self._begun(writer, log_offset)
        if counter <= known.counter:
            return True
        known.counter = counter
        self.changed[writer] = known
        return False

    def _begun(self, writer: int, log_offset: int) -> _Known:
        """Return a writer that is not in memory, or begins with this log offset."""
        if not self._looked:
            self._looked = True
            rows = self._kv.scan(*WRITERS.range())
            found = [_Known(key, *WRITERS.decode(row)) for key, row in rows]
            found.sort(key=lambda one: one.since)
            self._known = {WRITERS.parts(one.key)[0]: one for one in found}
            if writer in self._known:
                return self._known[writer]
        if len(self._known) >= _WRITERS_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self.changed[oldest] = None
        known = self._known[writer] = _Known(WRITERS.key(writer), 0, log_offset)
        return known

    def drain(self, changes: dict[bytes, bytes | None]) -> None:
        """Add the rows that have changed since the last call."""
        for writer, known in self.changed.items():
            if known is None:
                changes[WRITERS.key(writer)] = None
            else:
                changes[known.key] = WRITERS.encode((known.counter, known.since))
        self.changed.clear()

    def unpublished(self, keys: set[bytes]) -> int:
        """Return how many of these keys are of rows of writers."""
        return sum(known.key in keys for known in self._known.values())
