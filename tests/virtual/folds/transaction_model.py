"""The rules of transactions, for clients that know only what they were told.

`Told` is filled by clients as they go, and holds in the end against what readers see. An operation
lasts from when it was asked for to when it was answered; two that do not overlap have an order.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kproxy.virtual.types import PartitionKey, QueueId

NEVER = 1 << 60
ALL = QueueId(b"\xff" * 16), 0
"""The key of an operation on a group: all its partitions, also of those not made yet."""
Value = bytes


@dataclass(eq=False)
class Told:
    """A transaction as its client knows it. Without `commit_asked` nothing of it may be seen."""

    client: str
    records: dict[Value, tuple[PartitionKey, int]] = field(default_factory=dict)
    sent: set[Value] = field(default_factory=set)  # whether answered or not
    commit_asked: int = NEVER
    committed: bool = False  # it was answered so
    aborted: bool = False

    @property
    def must_be_hidden(self) -> bool:
        return self.aborted or self.commit_asked == NEVER


@dataclass(eq=False)
class Committing:
    """An offset that is committed, or with None dropped; of a transaction, or by itself."""

    offset: int | None
    asked: int
    told: Told | None = None
    answered: int = NEVER
    over: int = NEVER  # it has no effect after that: it was asked for once, and answered

    @property
    def may_hold(self) -> bool:
        return self.told is None or not self.told.must_be_hidden

    @property
    def holds(self) -> bool:
        """Whether it surely had an effect."""
        return self.answered < NEVER and (self.told is None or self.told.committed)


class Model:
    def __init__(self) -> None:
        self._ticks = itertools.count()
        self.transactions: list[Told] = []
        self.by_value: dict[Value, Told | None] = {}
        self.plain: dict[Value, tuple[PartitionKey, int]] = {}
        self.commits: dict[tuple[str, PartitionKey], list[Committing]] = defaultdict(list)
        self._given: dict[tuple[int, int], str] = {}
        self._fenced: dict[str, int] = {}
        self.counted: Counter[str] = Counter()

    def tick(self) -> int:
        return next(self._ticks)

    # -- what clients do and are told

    def begin(self, client: str) -> Told:
        told = Told(client)
        self.transactions.append(told)
        return told

    def sends(self, value: Value, told: Told | None) -> None:
        self.by_value[value] = told
        if told is not None:
            told.sent.add(value)

    def given(self, client: str, producer_id: int, epoch: int) -> None:
        """Check T8: nobody else ever gets this id and epoch."""
        holder = self._given.setdefault((producer_id, epoch), client)
        assert holder == client, f"{producer_id}/{epoch} was given to {holder} and {client}"

    def fences(self, client: str) -> None:
        """Note that another has its transactional id from now on."""
        self._fenced.setdefault(client, self.tick())

    def commits_offset(
        self, group: str, key: PartitionKey, offset: int | None, told: Told | None = None
    ) -> Committing:
        one = Committing(offset, self.tick(), told)
        self.commits[group, key].append(one)
        return one

    # -- what readers see

    def may_be_seen(self, values: Iterable[Value]) -> None:
        """Check T2, T4: at any time."""
        for value in values:
            told = self.by_value[value]
            if told is None:
                continue
            assert not told.must_be_hidden, f"{value!r} is seen; {told}"
            fenced = self._fenced.get(told.client, NEVER)
            assert told.commit_asked < fenced, f"{value!r} of a fenced client is seen; {told}"

    def all_agree(
        self, seen: Mapping[PartitionKey, list[Value]], log_starts: Mapping[PartitionKey, int]
    ) -> None:
        """Check T1, T3, once all is quiet. `seen`: partitions that are there."""
        counts = Counter(itertools.chain.from_iterable(seen.values()))
        self.may_be_seen(counts)
        twice = [value for value, count in counts.items() if count > 1]
        assert not twice, f"seen twice: {twice}"

        def is_left(place: tuple[PartitionKey, int]) -> bool:
            key, offset = place
            return key in log_starts and offset >= log_starts[key]

        for told in self.transactions:
            left = {value for value, place in told.records.items() if is_left(place)}
            found = {value for value in told.sent if value in counts}
            if told.committed:
                assert found == left, f"{told} was committed; seen: {found}"
            else:
                assert found in (set(), left), f"{told} is torn; seen: {found}"
            self.counted["committed" if told.committed else "not committed"] += 1
            self.counted["seen though not answered"] += bool(found and not told.committed)
        missing = [v for v, place in self.plain.items() if is_left(place) and v not in counts]
        assert not missing, f"written without a transaction, and not seen: {missing}"

    def offsets_agree(
        self, found: Mapping[tuple[str, PartitionKey], int | None], there: Iterable[PartitionKey]
    ) -> None:
        """Check T10: the last commit counts, and one of a transaction only if it was committed."""
        alive = set(there)
        for (group, key), of_key in list(self.commits.items()):
            if key not in alive:
                continue
            ops = of_key + self.commits[group, ALL]
            latest = max((op.asked for op in ops if op.holds), default=-1)
            allowed = {op.offset for op in ops if op.may_hold and op.over > latest}
            if latest < 0:
                allowed.add(None)
            offset = found[group, key]
            assert offset in allowed, f"{group} {key}: {offset} of {allowed}; {ops}"
            self.counted["offsets"] += offset is not None
