"""The truth of share groups: the fold of the whole log, and what members were told.

S1 two members never hold a record at once under one owner. S2 a record that was answered as
accepted is never given again, and is accepted (S6). S3 a count is given once, but for the first one
of each owner. S4 the start only goes forward. S5 each record ends, by a member's acknowledgement or
by the limit, and none is passed over. S8 a dead letter is owed once. S9 the window is bound.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kproxy.metadata.group_settings import GroupSettings
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.records import Compact
from kproxy.virtual.commands.shares import Cause, ChangeShares
from kproxy.virtual.folds.shares import stands
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import (
    COUNT_SHIFT,
    DEAD_LETTERS,
    SHARE_PARTITIONS,
    STATE_BITS,
    TERMINAL,
    RecordState,
)
from kproxy.virtual.types import PartitionKey
from tests.fakes import MemoryShard
from tests.present import present

GROUPS = ("g", "committed")
"""The first has a dead-letter queue; the second reads what was committed."""
BATCH_MAX = 6

Place = tuple[PartitionKey, str]
At = tuple[PartitionKey, str, int, int]
"""A queue partition, a group, which start it has (epoch), and an offset."""


class Ended(NamedTuple):
    state: RecordState
    deliveries: int
    cause: int


class Hold(NamedTuple):
    """Surely at least until then."""

    member: str
    until: float


@dataclass
class Said:
    """The acknowledgements that members have sent for records that they may have held."""

    accepted: set[At] = field(default_factory=set)
    rejected: set[At] = field(default_factory=set)
    gaps: set[At] = field(default_factory=set)


class Truth:
    def __init__(self, settings: Mapping[str, GroupSettings]) -> None:
        self._settings = settings
        self.shard = MemoryShard(shared=True)
        self.ended: dict[At, Ended] = {}
        self.said = Said()
        self.answered: dict[At, int] = {}  # by an owner with this claim
        self.unsure: set[At] = set()  # rejected; the answer was that it may or may not be so
        self.holds: dict[tuple[int, At], Hold] = {}  # by the owner's claim
        self.counts: dict[tuple[int, At], int] = {}
        self.given: dict[At, list[int]] = defaultdict(list)
        self.holes: set[tuple[PartitionKey, int]] = set()
        self.aborted: set[tuple[PartitionKey, int]] = set()
        self.begun: dict[tuple[PartitionKey, str, int], int] = {}
        self.counted: Counter[str] = Counter()

    def row(self, place: Place) -> share_rows.SharePartition | None:
        return SHARE_PARTITIONS.get(self.shard.state.get, *place)

    def epoch(self, place: Place) -> int:
        row = self.row(place)
        return -1 if row is None else row.epoch

    def places(self) -> list[Place]:
        found = self.shard.kv.scan(*RowKind.SHARE_PARTITION.range())
        every = [SHARE_PARTITIONS.parts(key) for key, _ in found]
        return [one for one in every if self.shard.state.partition(one[0]) is not None]

    # -- the log

    def take(self, envelope: Envelope) -> Outcome:
        shard = self.shard
        if envelope.kind == Kind.COMPACT:
            self._note_holes(envelope)
        if envelope.kind != Kind.SHARE:
            outcome = shard.apply(envelope)
            if envelope.kind == Kind.SHARE_SET:
                self._note_starts()
            return outcome
        group, partitions, _, _ = ChangeShares.decode(envelope)
        before = [self.row((one.key, group)) for one in partitions]
        outcome = shard.apply(envelope)
        if outcome.code:
            self.counted["void by term"] += 1
            return outcome
        for one, known, code in zip(partitions, before, outcome.codes, strict=True):
            if code:
                self.counted["void by epoch"] += 1
                continue
            row = present(self.row((one.key, group)))
            assert known is not None
            assert row.start >= known.start, f"S4: {row} after {known}"
            start = max(known.start, self._log_start(one.key))
            for first, records, byte, cause in one.runs:
                for offset in range(max(first, start), first + records):
                    self._end((one.key, group, known.epoch, offset), byte, cause)
            self._check_window(group, row)
        return outcome

    def _log_start(self, key: PartitionKey) -> int:
        row = self.shard.state.partition(key)
        return 0 if row is None else row.log_start

    def _end(self, at: At, byte: int, cause: int) -> None:
        state = RecordState(byte & STATE_BITS)
        if TERMINAL[byte] and at not in self.ended:
            self.ended[at] = Ended(state, byte >> COUNT_SHIFT, cause)

    def _check_window(self, group: str, row: share_rows.SharePartition) -> None:
        gone = len(self.holes) + len(self.aborted)  # archived at once, whatever the window has
        most = self._settings[group].record_locks_max + BATCH_MAX + gone
        assert row.end - row.start <= most, f"S9: {row}"

    def _note_holes(self, envelope: Envelope) -> None:
        queue_id, index, removed, _ = Compact.decode(envelope)
        for last_offset, _ in removed:
            batch = self.shard.state.batch_at((queue_id, index), last_offset)
            if batch is not None:
                offsets = range(last_offset - batch.last_delta, last_offset + 1)
                self.holes |= {((queue_id, index), offset) for offset in offsets}

    def _note_starts(self) -> None:
        for key, group in self.places():
            row = present(self.row((key, group)))
            if (key, group, row.epoch) not in self.begun:
                self.begun[key, group, row.epoch] = row.start
                self.counted["starts"] += 1

    # -- what members are given, and told

    def gives(
        self, claim: int, member: str, at: At, deliveries: int, asked: float, now: float
    ) -> None:
        """Note that a member got a record, between these times."""
        lock_s = self._settings[at[1]].lock_duration_ms / 1000
        accepted = self.answered.get(at, claim + 1)  # a worker deposed by then does not know
        assert accepted > claim, f"S2: {at} was accepted, and {member} is given it"
        held = self.holds.get((claim, at))
        assert held is None or held.until <= now, f"S1: {at} for {member}, and {held} at {now}"
        assert deliveries > self.counts.get((claim, at), 0), f"S3: {at} the {deliveries}. time"
        assert deliveries <= self._settings[at[1]].delivery_count_limit, f"S3: {at} {deliveries}"
        assert deliveries == 1 or deliveries not in self.given[at], f"S3: {at} {deliveries} again"
        self.counts[claim, at] = deliveries
        self.given[at].append(deliveries)
        self.holds[claim, at] = Hold(member, asked + lock_s)
        self.counted["given"] += 1
        self.counted["given again"] += deliveries > 1

    def lets_go(self, claim: int, at: At, member: str) -> Hold | None:
        """Release a record that a member acknowledges, or that it leaves behind."""
        held = self.holds.get((claim, at))
        if held is not None and held.member == member:
            return self.holds.pop((claim, at))
        return None

    def holds_again(self, claim: int, at: At, held: Hold) -> None:
        self.holds.setdefault((claim, at), held)

    def is_answered(self, claim: int, at: At) -> None:
        """Note that a member was told that it accepted a record that it held."""
        ended = self.ended.get(at)
        if ended is None:  # trimmed before, or with its queue by now
            partition = self.shard.state.partition(at[0])
            trimmed = partition is None or at[3] < partition.log_start
            assert trimmed, f"S6: {at} is not in the log"
            return
        if at not in self.unsure:
            assert ended.state == RecordState.ACKNOWLEDGED, f"S6: {at} {ended}"
        self.answered[at] = claim

    # -- in the end

    def unfinished(self) -> list[str]:
        """Share partitions with records that are still to be done."""
        found = []
        for key, group in self.places():
            row, partition = self.row((key, group)), self.shard.state.partition(key)
            assert row is not None
            assert partition is not None
            _, lag = stands(self.shard.state, key, group)
            if lag:
                end = partition.next_offset
                states = share_rows.states(self.shard.state.get, key, group, row.start, end)
                found.append(f"{group} {row}, {lag} before {end}: {states.hex()}")
        return found

    def all_ended(self) -> None:
        """Check S5, S6 and S8."""
        for key, group in self.places():
            row, partition = self.row((key, group)), self.shard.state.partition(key)
            assert row is not None
            assert partition is not None
            first = max(self.begun[key, group, row.epoch], partition.log_start)
            for offset in range(first, partition.next_offset):
                at = key, group, row.epoch, offset
                assert at in self.ended, f"S5: {at} is passed over"
        for at, ended in self.ended.items():
            self._check_reason(at, ended)
        self._owed_once()

    def _check_reason(self, at: At, ended: Ended) -> None:
        group, cause = at[1], ended.cause & 0x7F
        if ended.state == RecordState.ACKNOWLEDGED:
            assert at in self.said.accepted, f"S5: nobody accepted {at}"
            self.counted["accepted"] += 1
        elif cause == Cause.REJECTED:
            assert at in self.said.rejected, f"S5: nobody rejected {at}"
            self.counted["rejected"] += 1
        elif cause == Cause.DELIVERY_LIMIT:
            limit = self._settings[group].delivery_count_limit
            assert ended.deliveries >= limit, f"S5: {at} was given up after {ended}"
            self.counted["given up"] += 1
        else:
            assert self._is_gap(at), f"S5: {at} was there, and nobody had it"
            self.counted["gaps"] += 1

    def _is_gap(self, at: At) -> bool:
        key, group, _, offset = at
        aborted = group == GROUPS[1] and (key, offset) in self.aborted
        return (key, offset) in self.holes or aborted or at in self.said.gaps

    def _owed_once(self) -> None:
        owed: Counter[tuple[PartitionKey, str, int, int]] = Counter()
        for _, data in self.shard.kv.scan(*RowKind.DEAD_LETTER.range()):
            one = DEAD_LETTERS.decode(data)
            assert one.group == GROUPS[0]
            for offset in range(one.first, one.first + one.records):
                owed[one.key, one.group, offset, 0] += 1
        wanted: Counter[tuple[PartitionKey, str, int, int]] = Counter()
        for (key, group, _, offset), ended in self.ended.items():
            if group == GROUPS[0] and ended.state == RecordState.ARCHIVED and ended.cause & 0x7F:
                wanted[key, group, offset, 0] += 1
        assert owed == wanted, f"S8: {owed - wanted} too many, {wanted - owed} are missing"
        self.counted["owed"] += sum(owed.values())
