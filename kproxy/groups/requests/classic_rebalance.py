"""The rebalance of a classic group: which members it waits for, and until when."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Protocol

from anyio import Lock

from kproxy.common.errors import Code
from kproxy.groups.model.classic_member import ClassicMember, Promise
from kproxy.groups.model.classic_states import State, join_answer, sync_answer
from kproxy.groups.model.counters import ProtocolCounts
from kproxy.groups.model.static_members import StaticMembers
from kproxy.groups.upkeep.timers import Alarms, Timers
from kproxy.virtual.rows.groups import NO_VERSION

_ROUND = "round"
_ANSWERS_AT_ONCE = 100

Answers = Iterator[tuple[Promise[dict[str, Any]], dict[str, Any]]]
Heard = tuple[ClassicMember, Promise[dict[str, Any]] | None, bool]
"""A member, its promise where it waits, and whether its deadline has come closer."""


class ClassicCoordinator(Protocol):
    """The services of its coordinator that a group needs."""

    timers: Timers

    def now(self) -> float: ...
    def soon(self, group: Any) -> None:
        """Log the group as it is, without anyone waiting for it."""
        ...

    def forget(self, group: Any) -> None:
        """Forget a group of which nothing is worth keeping in memory."""
        ...

    @property
    def initial_delay_s(self) -> float: ...


class ClassicRebalance:
    """The members of a group and where their rebalance stands."""

    kind = "classic"

    def __init__(self, group_id: str, coordinator: ClassicCoordinator) -> None:
        self.id = group_id
        self._coordinator = coordinator
        self.alarms = Alarms(coordinator.timers)
        self.state = State.EMPTY
        self.members: dict[str, ClassicMember] = {}
        self.static_members = StaticMembers[ClassicMember]()
        self._pending: set[str] = set()  # ids given out and not joined with
        self._protocol_counts = ProtocolCounts()
        self._unjoined: set[str] = set()  # members that are waited for while it prepares
        self._unsynced: set[str] = set()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.version = NO_VERSION
        self.logged: set[str] = set()  # members that have rows
        self.logged_generation = 0  # theirs
        self.lock = Lock()
        self._initial = False
        self._newly_joined = False

    def renew_session(self, member: ClassicMember) -> None:
        """Give it a whole session again; watch the shorter one of two deadlines anew."""
        self._renew_session_at(self._coordinator.now(), member)

    def _renew_session_at(self, now: float, member: ClassicMember) -> None:
        before = member.deadline
        member.deadline = now + member.session_s
        if member.deadline < before:
            self._watch(member)

    def _watch(self, member: ClassicMember) -> None:
        self.alarms.set(member, member.deadline, lambda now: self._expire(member, now))

    def _expire(self, member: ClassicMember, now: float) -> float | None:
        if self.members.get(member.id) is not member or self.state == State.DEAD:
            return None
        if (member.joined is not None and not member.new) or member.synced is not None:
            self.renew_session(member)
        if member.deadline > now:
            return member.deadline
        self.remove(member.id)
        return None

    def remove(self, member_id: str) -> None:
        """Remove a member that has left or has not been heard of."""
        self._drop(member_id)
        self.rebalance_without()

    def _drop(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self.alarms.cancel(member)
        self.static_members.remove(member)
        self._unsynced.discard(member_id)
        self._unjoined.discard(member_id)
        self._protocol_counts.count(member.protocols, -1)
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
        """Rebalance without a member that is gone."""
        if self.state in (State.STABLE, State.COMPLETING):
            self._prepare()
        else:
            self._maybe_complete()

    def _prepare(self) -> None:
        if self.state == State.COMPLETING:
            answer = sync_answer(Code.REBALANCE_IN_PROGRESS)
            self._answer_some((waiting, answer) for waiting in self._take_synced())
        self._initial = self.state == State.EMPTY
        self.state = State.PREPARING
        self._unjoined = {m.id for m in self.members.values() if m.joined is None}
        if self._initial:
            self._debounce(self._rebalance_s())
        else:
            self._complete_by(self._rebalance_s())
            self._maybe_complete()

    def _rebalance_s(self) -> float:
        return max((member.rebalance_s for member in self.members.values()), default=0.0)

    def _take_synced(self) -> list[Promise[dict[str, Any]]]:
        """Return the members' waits for an assignment that are to be answered now."""
        waiting = [m.synced for m in self.members.values() if m.synced is not None]
        for member in self.members.values():
            member.synced = None
        return waiting

    def _answer_some(self, answers: Answers) -> None:
        """Answer those who waited, some in each turn of the loop: all wake up and are sent it."""
        for waiting, answer in islice(answers, _ANSWERS_AT_ONCE):
            waiting.set(answer)
        left = next(answers, None)
        if left is not None:
            asyncio.get_running_loop().call_soon(self._answer_some, chain((left,), answers))

    def _debounce(self, remaining_s: float) -> None:
        """Wait a little with a new group for more members, again for each that came meanwhile."""
        self._newly_joined = False
        delay_s = min(self._coordinator.initial_delay_s, remaining_s)

        def due(now: float) -> None:
            if self._newly_joined and remaining_s - delay_s > 0:
                self._debounce(remaining_s - delay_s)
            else:
                self._complete()

        self.alarms.set(_ROUND, self._coordinator.now() + delay_s, due)

    def _complete_by(self, seconds: float) -> None:
        self.alarms.set(_ROUND, self._coordinator.now() + seconds, lambda now: self._complete())

    def _maybe_complete(self) -> None:
        if self.state != State.PREPARING or self._initial or self._pending:
            return
        if not self._unjoined:
            self._complete()

    def _complete(self) -> None:
        """Go on with those who have joined; static members are kept for their sessions' length."""
        for member_id in [m for m in self._unjoined if not self.members[m].instance]:
            self._drop(member_id)
        joined = [m.id for m in self.members.values() if m.joined is not None]
        if self.members and not joined:
            self._complete_by(self._rebalance_s())
            return
        if joined and self.leader not in joined:
            self.leader = joined[0]
        self._initial = False
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = State.EMPTY, None, None
            self.alarms.cancel(_ROUND)
            self._coordinator.soon(self)
            return
        self.protocol = self.vote()
        self.state = State.COMPLETING
        self._unsynced = set(self.members)
        now, heard = self._coordinator.now(), []
        for member in self.members.values():
            before = member.deadline
            member.new = False
            member.deadline = now + member.session_s
            heard.append((member, member.joined, member.deadline < before))
            member.joined = None
        self._answer_some(self._join_answers(heard))
        self._sync_by(self._rebalance_s())

    def _join_answers(self, heard: list[Heard]) -> Answers:
        """Yield an answer for each member that waits; the leader is told of all, and last."""
        answer, leader, protocol = self._said(), self.leader, self.protocol
        listed: list[dict[str, Any]] = []
        leads = None
        for member, promise, sooner in heard:
            listed.append(_listed(member, protocol))
            if sooner and self.members.get(member.id) is member and self.state != State.DEAD:
                self._watch(member)
            if promise is not None and member.id == leader:
                leads = promise
            elif promise is not None:
                yield promise, answer | {"member_id": member.id}
        if leads is not None:
            yield leads, answer | {"member_id": leader, "members": listed}

    def vote(self) -> str:
        """Return the protocol that most members prefer of those that all support, or ""."""
        common = self._protocol_counts.common()
        votes = Counter(
            next((name for name, _ in member.protocols if name in common), "")
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _sync_by(self, seconds: float) -> None:
        def due(now: float) -> None:
            if self._unsynced:
                for member_id in list(self._unsynced):
                    self._drop(member_id)
                self._prepare()

        self.alarms.set(_ROUND, self._coordinator.now() + seconds, due)

    def has_synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced and self.state in (State.COMPLETING, State.STABLE):
            self.alarms.cancel(_ROUND)  # nobody is waited for

    def current(self, member_id: str) -> dict[str, Any]:
        """Return the JoinGroup answer with the current generation."""
        answer = self._said() | {"member_id": member_id}
        if member_id == self.leader:
            answer["members"] = self.members_listed()
        return answer

    def _said(self) -> dict[str, Any]:
        """Return what all members are told of the current generation."""
        return join_answer(Code.NONE, "") | {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader or "",
            "members": [],
        }

    def members_listed(self) -> list[dict[str, Any]]:
        return [_listed(member, self.protocol) for member in self.members.values()]


def _listed(member: ClassicMember, protocol: str | None) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "group_instance_id": member.instance,
        "metadata": member.metadata(protocol),
    }
