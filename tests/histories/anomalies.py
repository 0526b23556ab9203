"""Anomalies of a history: the kinds there are, and those that were found."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KINDS = {
    "lost": "an acknowledged record that readers passed by",
    "unseen": "an acknowledged record that nobody read, though all was read at the end",
    "doubled": "a value at two places of its queue",
    "moved": "a record in a queue or partition that it was not sent to",
    "never sent": "a record that nobody sent",
    "inconsistent offsets": "two values at one offset, or one elsewhere than its sender was told",
    "nonmonotonic send": "a producer's later record lies before its earlier one",
    "internal nonmonotonic send": "the same within one operation",
    "nonmonotonic poll": "a consumer went back, or stood still, from one poll to the next",
    "internal nonmonotonic poll": "the same within one poll",
    "skipped": "a consumer passed by a record that was there, from one poll to the next",
    "internally skipped": "the same within one poll",
    "G1a": "aborted read: of a record whose transaction was aborted, or whose send failed",
    "G1b": "intermediate read: before its transaction asked to commit, or of a part of it",
    "G0": "dirty writes: a cycle of transactions that wrote behind each other",
    "G1c": "circular information flow: a cycle of transactions that read from each other",
    "end went back": "a queue's end that was behind an earlier one, or behind a record",
    "end ahead": "a queue's end behind which a record came later",
    "committed went back": "a group's committed offset that was behind an earlier one",
    "never committed": "a group's committed offset that nobody had committed",
    "accepted twice": "two deliveries of a record accepted with success",
    "given after its end": "a record delivered though its acknowledgement was answered",
    "never ended": "a record of a share group that is neither done nor a dead letter",
    "held by two": "a record in the hands of two members within its lock's time",
    "wrong count": "a delivery count that does not follow from those before it",
    "wrong letter": "a dead letter without a reason, or two, or none where one is due",
}
ALLOWED = frozenset({"G0"})
"""Kinds that Kafka's transactions do not rule out: their writes interleave in the log."""
_SHOWN = 20


class Anomaly(NamedTuple):
    """One that was found, and why it is one."""

    kind: str
    said: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.said}"


class Rules(NamedTuple):
    """The promises that a workload relies on, beyond those of any queue."""

    whole: bool = False
    """Whether everything was read by committed polls at the end."""
    compacted: frozenset[str] = frozenset()
    """The queues that keep only the last record of a key."""
    unordered: frozenset[str] = frozenset()
    """The queues whose records do not keep their producers' order: they come by several ways."""
    isolated_writes: bool = False
    """Whether transactions' writes do not interleave, so that their order makes cycles of G1c."""
    real_time: bool = True
    """Whether an operation that begins when another has ended comes behind it in cycles."""
    limit: int = 5
    """Deliveries of a record in a share group."""
    lock_ns: int = 30_000_000_000
    """The time for which a member of a share group holds a record."""

    def changed(self, said: dict[str, Any]) -> "Rules":
        """Return these rules with those that a history says."""
        sets = {name: frozenset(value) for name, value in said.items() if isinstance(value, list)}
        return self._replace(**{**said, **sets})


@dataclass
class Found:
    """Anomalies: all are counted, some of each kind are kept."""

    kept: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, said: str) -> None:
        assert kind in KINDS, kind
        self.counts[kind] += 1
        if self.counts[kind] <= _SHOWN:
            self.kept.append(Anomaly(kind, said))

    def full(self, kind: str) -> bool:
        """Whether further ones of a kind are only counted."""
        return self.counts[kind] >= _SHOWN

    def shown(self) -> str:
        """Return a text of all kinds, with the first of each in words."""
        lines = [f"{kind} ({KINDS[kind]}): {count}" for kind, count in self.counts.items()]
        return "\n".join([*lines, "", *map(str, self.kept)])
