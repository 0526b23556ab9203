"""The truth of group membership: a plain reading of the log, and what members were told.

G1 no partition has two owners: not in the rows, and in a classic generation not in what was told.
G2 no commit of who is no member of that epoch is taken, nor of a partition that another has.
G3 epochs and generations grow, as one owner tells them. G4 what a member is told is in the log.
G5 in the end each partition has its owner. G6 a static member that comes back in time has what it
had.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from kproxy.common.errors import Code
from kproxy.groups.model.assigned_member import unpack_parts
from kproxy.groups.model.consumer_protocol import assignment
from kproxy.loop.steps import at_once
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.groups import ChangeGroup
from kproxy.virtual.commands.offsets import CommitOffsets
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.groups import Row, decode_member

Part = tuple[str, int]
"""A partition, by its queue's name."""
Parts = frozenset[Part]
NONE: Parts = frozenset()
LEFT = -2
"""The epoch of a static member that may be back."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member as its row says: `has` with what it has yet to give up."""

    epoch: int
    assigned: Parts
    has: Parts
    target: Parts


@dataclass(slots=True)
class Group:
    kind: str = "offsets"
    number: int = 0  # epoch or generation
    lives: int = 0  # how often it was made anew
    target: int = 0  # the epoch of the target that members have
    members: dict[str, Member] = field(default_factory=dict)


class Truth:
    def __init__(self, names: dict[bytes, str]) -> None:
        """Begin one. `names`: those of queues, by id."""
        self._names = names
        self.groups: dict[str, Group] = defaultdict(Group)
        self.logged: dict[tuple[str, str, int], set[Parts]] = defaultdict(set)
        """The parts that a member's rows gave it, by group, member and epoch."""
        self._told: dict[tuple[str, int, Part], str] = {}  # the owner in a generation
        self._epochs: dict[tuple[str, str, int], int] = {}  # told to a member by a worker
        self.counted: Counter[str] = Counter()

    # -- the log

    def take(self, envelope: Envelope, outcome: Outcome) -> None:
        """Read what has landed."""
        if envelope.kind == Kind.GROUP and not outcome.code:
            self._change(ChangeGroup.decode(envelope))
        elif envelope.kind == Kind.COMMIT:
            self._commit(CommitOffsets.decode(envelope), outcome)

    def _change(self, change: ChangeGroup) -> None:
        group, kind = self.groups[change.group], change.group_kind
        number = change.values.get("generation", change.values.get("epoch", 0))
        if group.kind not in ("offsets", kind):
            self.counted[f"{group.kind} becomes {kind}"] += 1
        if not group.members and number < group.number:  # it is made anew, as in Kafka
            self.counted["made anew"] += 1
            group.number, group.lives = 0, group.lives + 1
            self._epochs = {key: at for key, at in self._epochs.items() if key[0] != change.group}
            self._told = {key: who for key, who in self._told.items() if key[0] != change.group}
        assert number >= group.number, f"G3: {change.group} {kind} {number} after {group}"
        group.kind, group.number = kind, number
        group.target = change.values.get("target_epoch", number)
        for member_id, data in change.rows.items():
            before = group.members.pop(member_id, None)
            if data is None:
                self.counted["member gone"] += before is not None
                continue
            made = group.members[member_id] = self._member(kind, decode_member(data))
            assert made.epoch <= number, f"G3: {member_id} is ahead of {change.group}"
            if before is not None and made.epoch != LEFT:
                assert before.epoch <= made.epoch, f"G3: {member_id} {made} after {before}"
            self.logged[change.group, member_id, made.epoch].add(made.assigned)
            self.counted["static member left"] += made.epoch == LEFT
            self.counted["has to give up"] += made.has != made.assigned
        assert change.members == len(group.members), f"{change.group} has {group.members}"
        self._disjoint(change.group, group)

    def _member(self, kind: str, row: Row) -> Member:
        if kind == "classic":
            parts = self._of_classic(row["assignment"])
            return Member(row["epoch"], parts, parts, parts)
        assigned = self._named(row["assigned"])
        revoking = self._named(row.get("revoking", b""))
        return Member(row["epoch"], assigned, assigned | revoking, self._named(row["target"]))

    def _named(self, packed: bytes) -> Parts:
        return frozenset((self._names[bytes(q)], i) for q, i in at_once(unpack_parts(packed)))

    def _of_classic(self, data: bytes) -> Parts:
        named = at_once(assignment(data))
        return frozenset((name, index) for name, indices in named for index in indices)

    def _disjoint(self, name: str, group: Group) -> None:
        if group.kind == "share":
            return
        owners: dict[Part, str] = {}
        for member_id, member in group.members.items():
            for part in member.has:
                other = owners.setdefault(part, member_id)
                assert other == member_id, f"G1: {part} of {name} is {other}'s and {member_id}'s"

    def _commit(self, commit: CommitOffsets, outcome: Outcome) -> None:
        if outcome.code:
            self.counted[f"commit: {Code(outcome.code).name}"] += 1
            return
        self.counted["committed"] += 1
        group = self.groups[commit.group]
        member = group.members.get(commit.member)
        who = f"{commit.member} of {commit.group} in {commit.epoch}"
        assert member is not None, f"G2: {who} has left"
        assert member.epoch == commit.epoch, f"G2: {who} is fenced: {member}"
        for one in commit.offsets:
            part = self._names[bytes(one.queue_id)], one.partition
            assert part in member.has, f"G2: {who} has no {part}: {member}"

    # -- what members are told

    def is_assigned(
        self, group: str, member: str, epoch: int, parts: Parts | None, owner: int
    ) -> None:
        """Note the epoch, and what is said to be a member's own, if that is said.

        `owner` told it: one that does not know yet that it is none knows older epochs.
        """
        logged = self.logged.get((group, member, epoch))
        assert logged, f"G4: {member} of {group} was told {epoch}, which is not in the log"
        assert parts is None or parts in logged, f"G4: {member} of {group}: {parts} not {logged}"
        before = self._epochs.get((group, member, owner), 0)
        assert epoch >= before, f"G3: {member} of {group} was told {epoch} after {before}"
        self._epochs[group, member, owner] = epoch
        self.counted["told"] += parts is not None

    def is_synced(
        self,
        group: str,
        member: str,
        instance: str | None,
        generation: int,
        parts: Parts,
        owner: int,
    ) -> None:
        """Note an assignment of a generation."""
        self.is_assigned(group, member, generation, parts, owner)
        if self.groups[group].kind == "classic":
            for part in parts:
                owner = self._told.setdefault((group, generation, part), instance or member)
                assert owner == (instance or member), f"G1: {part} is {owner}'s and {member}'s"

    def when(self, name: str) -> tuple[int, int]:
        """Return a group's life and epoch."""
        return self.groups[name].lives, self.groups[name].number

    def part_of(self, name: str, member_id: str) -> tuple[tuple[int, int], Parts] | None:
        """Return `when` it is, and what a member is to keep; None if another target is due."""
        group = self.groups[name]
        row = group.members.get(member_id)
        if row is None or group.target != group.number or not row.has <= row.target:
            return None
        return self.when(name), row.assigned

    def kept(self, group: str, instance: str, before: Parts, now: Parts) -> None:
        """Check a static member that came back while nothing else changed; it may get more."""
        assert before <= now, f"G6: {instance} of {group} had {before}, and has {now}"
        self.counted["static member kept its part"] += 1

    # -- in the end

    def unsettled(self, name: str, wanted: Parts, clients: list[Any]) -> str:
        """Return what is not as it is to be in the end; empty if nothing."""
        group = self.groups[name]
        if set(group.members) != {one.member for one in clients}:
            return f"{name} has {sorted(group.members)}, not {[one.member for one in clients]}"
        found = Counter(part for one in clients for part in one.owned)
        most = len(clients) if group.kind == "share" else 1
        if clients and (found.keys() != wanted or max(found.values()) > most):
            return f"{name}: {found} for {sorted(wanted)}"
        for one in clients:
            member = group.members[one.member]
            if (one.owned, one.epoch) != (member.assigned, member.epoch):
                return f"{one.member} of {name} has {one.owned} in {one.epoch}, not {member}"
        return ""
