"""How a classic group gets from one generation to the next: who is waited for, and until when."""

from collections import Counter
from typing import Any, Protocol

from anyio import Lock

from kproxy.errors import Code
from kproxy.groups.answers import State, join_answer, sync_answer
from kproxy.groups.member import Member
from kproxy.groups.timers import Alarms, Timers
from kproxy.virtual.group_rows import NO_VERSION

_ROUND = "round"


class Home(Protocol):
    """What a group needs of its coordinator."""

    timers: Timers

    def now(self) -> float: ...
    def soon(self, group: Any) -> None:
        """Log the group as it is, without anyone waiting for it."""
        ...

    def forget(self, group: Any) -> None:
        """Nothing of it is worth keeping in memory."""
        ...

    @property
    def initial_delay_s(self) -> float: ...


class Rebalancing:
    """The members of a group and where their rebalance stands."""

    kind = "classic"

    def __init__(self, group_id: str, home: Home) -> None:
        self.id = group_id
        self._home = home
        self.alarms = Alarms(home.timers)
        self.state = State.EMPTY
        self.members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        self._pending: set[str] = set()  # ids given out and not joined with
        self._unsynced: set[str] = set()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.version = NO_VERSION
        self.logged: set[str] = set()  # members that have rows
        self.lock = Lock()
        self._round = 0  # of rebalances, so that a late timer finds that it is late
        self._initial = False
        self._newly_joined = False

    def heard(self, member: Member) -> None:
        """It has a whole session again; the shorter one of two deadlines is watched anew."""
        before = member.deadline
        member.deadline = self._home.now() + member.session_s
        if member.deadline < before:
            self._watch(member)

    def _watch(self, member: Member) -> None:
        self.alarms.set(member, member.deadline, lambda now: self._expire(member, now))

    def _expire(self, member: Member, now: float) -> float | None:
        if self.members.get(member.id) is not member or self.state == State.DEAD:
            return None
        if (member.joined is not None and not member.new) or member.synced is not None:
            self.heard(member)
        if member.deadline > now:
            return member.deadline
        self.remove(member.id)
        return None

    def remove(self, member_id: str) -> None:
        """A member has left or has not been heard of."""
        self._drop(member_id)
        self.rebalance_without()

    def _common_protocols(self) -> set[str]:
        sets = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*sets)

    def _drop(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self.alarms.cancel(member)
        if member.instance is not None:
            self._instances.pop(member.instance, None)
        self._unsynced.discard(member_id)
        member.answer_join(join_answer(Code.UNKNOWN_MEMBER_ID, member_id))
        member.answer_sync(sync_answer(Code.UNKNOWN_MEMBER_ID))
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rebalance(self) -> None:
        if self.state == State.PREPARING:
            self._maybe_complete()
        else:
            self._prepare()

    def rebalance_without(self) -> None:
        """Some member is gone."""
        if self.state in (State.STABLE, State.COMPLETING):
            self._prepare()
        else:
            self._maybe_complete()

    def _prepare(self) -> None:
        if self.state == State.COMPLETING:
            for member in self.members.values():
                member.answer_sync(sync_answer(Code.REBALANCE_IN_PROGRESS))
        self._initial = self.state == State.EMPTY
        self.state = State.PREPARING
        self._round += 1
        if self._initial:
            self._debounce(self._rebalance_s())
        else:
            self._complete_by(self._rebalance_s())
            self._maybe_complete()

    def _rebalance_s(self) -> float:
        return max((member.rebalance_s for member in self.members.values()), default=0.0)

    def _debounce(self, remaining_s: float) -> None:
        """A new group waits a little for more members, again for each that came meanwhile."""
        self._newly_joined = False
        round_, delay_s = self._round, min(self._home.initial_delay_s, remaining_s)

        def due(now: float) -> None:
            if (self._round, self.state) != (round_, State.PREPARING):
                return
            if self._newly_joined and remaining_s - delay_s > 0:
                self._debounce(remaining_s - delay_s)
            else:
                self._complete()

        self.alarms.set(_ROUND, self._home.now() + delay_s, due)

    def _complete_by(self, seconds: float) -> None:
        round_ = self._round

        def due(now: float) -> None:
            if (self._round, self.state) == (round_, State.PREPARING):
                self._complete()

        self.alarms.set(_ROUND, self._home.now() + seconds, due)

    def _maybe_complete(self) -> None:
        if self.state != State.PREPARING or self._initial or self._pending:
            return
        if all(member.joined is not None for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Go on with those who have joined; static members are kept for their sessions' length."""
        for member in [m for m in self.members.values() if m.joined is None and not m.instance]:
            self._drop(member.id)
        joined = [m.id for m in self.members.values() if m.joined is not None]
        if self.members and not joined:
            self._complete_by(self._rebalance_s())
            return
        if joined and self.leader not in joined:
            self.leader = joined[0]
        self._initial = False
        self._round += 1
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = State.EMPTY, None, None
            self.alarms.cancel(_ROUND)
            self._home.soon(self)
            return
        self.protocol = self.vote()
        self.state = State.COMPLETING
        self._unsynced = set(self.members)
        for member in self.members.values():
            member.new = False
            self.heard(member)
            member.answer_join(self.current(member.id))
        self._sync_by(self._rebalance_s())

    def vote(self) -> str:
        """The protocol that most members prefer among those that all support."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _sync_by(self, seconds: float) -> None:
        round_ = self._round

        def due(now: float) -> None:
            if self._round != round_ or not self._unsynced:
                return
            if self.state in (State.COMPLETING, State.STABLE):
                for member_id in list(self._unsynced):
                    self._drop(member_id)
                self._prepare()

        self.alarms.set(_ROUND, self._home.now() + seconds, due)

    def current(self, member_id: str) -> dict[str, Any]:
        """The JoinGroup answer with the current generation."""
        members: list[dict[str, Any]] = []
        if member_id == self.leader:
            members = self.members_listed()
        return join_answer(Code.NONE, member_id) | {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader or "",
            "members": members,
        }

    def members_listed(self) -> list[dict[str, Any]]:
        return [
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "metadata": member.metadata(self.protocol),
            }
            for member in self.members.values()
        ]
