"""A group of the classic protocol, as Kafka's `ClassicGroup` and `GroupMetadataManager` run it.

Joining members, waiting requests and deadlines are soft state: a new coordinator learns them from
the members' retries. A completed rebalance is logged first and answered then.
"""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code
from kproxy.groups.model.classic_member import ClassicMember, Promise, Protocols, member_from_row
from kproxy.groups.model.classic_states import State, join_answer, sync_answer
from kproxy.groups.model.consumer_protocol import CONSUMER_PROTOCOL, NotAConsumers, topics_of
from kproxy.groups.requests.classic_rebalance import ClassicRebalance
from kproxy.loop.steps import Steps, spent
from kproxy.virtual.rows.groups import Change, GroupRow, Row, Rows

_NEW_MEMBER_S = 300.0  # as Kafka's group.new.member.join.timeout


class ClassicGroup(ClassicRebalance):
    """A group as its coordinator has it. `version`: of the rows that this stands for."""

    # -- rows

    def begin_restoring(self, head: GroupRow) -> None:
        """Become what the rows say; everybody has a whole session to be heard of again."""
        self.version = head.version
        values = head.values
        self.generation = self.logged_generation = values.get("generation", 0)
        self.protocol_type = values.get("protocol_type")
        self.protocol = values.get("protocol")
        self.leader = values.get("leader")

    def restore(self, member_id: str, row: Row) -> Steps[None]:
        self.logged.add(member_id)
        self.add(member_from_row(member_id, row))
        yield from ()

    def end_restoring(self) -> None:
        if self.members:
            self.state = State.STABLE

    def values(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "protocol_type": self.protocol_type,
            "protocol": self.protocol,
            "leader": self.leader,
        }

    def change(self) -> Steps[Change]:
        """Return all members' rows as of now, and None for those that have one and are gone."""
        rows: Rows = dict.fromkeys(self.logged - self.members.keys())
        for member in self.members.values():
            rows[member.id] = member.row(self.generation)
        change = Change(self.values(), len(self.members), rows)
        yield from spent(len(rows))  # members come and go meanwhile
        return change

    def was_logged(self, change: Change) -> None:
        self.logged = {member_id for member_id, row in change.rows.items() if row is not None}
        self.logged_generation = change.values["generation"]

    @property
    def unlogged(self) -> bool:
        return False  # all of it is logged at once

    # -- members

    def member_fault(self, member_id: str, instance: str | None, generation: int) -> Code:
        """Return why this is not a member of this generation; -1 is not looked at."""
        if self.state == State.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if fault := self.static_members.fault(instance, member_id):
            return fault
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        if generation >= 0 and generation != self.generation:
            return Code.ILLEGAL_GENERATION
        return Code.NONE

    def commit_fault(
        self, member_id: str, instance: str | None, generation: int, version: int
    ) -> Code:
        """Return why this may not commit now; without members anyone may."""
        if generation < 0 and not self.members:
            return Code.NONE
        fault = self.member_fault(member_id, instance, generation)
        if not fault and generation < 0:
            return Code.ILLEGAL_GENERATION
        if not fault and (self.state == State.COMPLETING or generation != self.logged_generation):
            return Code.REBALANCE_IN_PROGRESS  # the rows do not have this generation
        return fault

    def subscribed(self) -> frozenset[str] | None:
        """Return the queues that members read; None if only they know what they use."""
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL or self.state == State.PREPARING:
            return None
        found: set[str] = set()
        for member in self.members.values():
            try:
                found.update(topics_of(member.metadata(self.protocol)))
            except NotAConsumers:
                return None
        return frozenset(found)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols fits in."""
        if not protocol_type or (self.members and protocol_type != self.protocol_type):
            return False
        return self._protocol_counts.fit(protocols)

    def reserve(self, member_id: str, session_s: float) -> None:
        """Keep a place for a member that is to join with this id, for a session's length."""
        self._pending.add(member_id)
        self.alarms.set(
            member_id,
            self._coordinator.now() + session_s,
            lambda now: self._expire_pending(member_id),
        )

    @property
    def size(self) -> int:
        """Members, and ids given out to those who may become some."""
        return len(self.members) + len(self._pending)

    def reserved(self, member_id: str) -> bool:
        return member_id in self._pending

    def drop_reserved(self, member_id: str) -> bool:
        if not self._take_reserved(member_id):
            return False
        self._maybe_complete()
        if self.idle:
            self._coordinator.forget(self)
        return True

    def _take_reserved(self, member_id: str) -> bool:
        if member_id not in self._pending:
            return False
        self._pending.discard(member_id)
        self.alarms.cancel(member_id)
        return True

    def _expire_pending(self, member_id: str) -> None:
        self.drop_reserved(member_id)

    def join(self, member: ClassicMember, protocol_type: str) -> Promise[dict[str, Any]]:
        """Take a new member in and rebalance; the promise is its JoinGroup answer."""
        if not self.members:
            self.protocol_type = protocol_type
        self._take_reserved(member.id)
        member.new = True
        self._newly_joined = True
        waiting: Promise[dict[str, Any]] = Promise()
        member.joined = waiting
        self._unjoined.discard(member.id)
        self.add(member)
        if self.leader is None:
            self.leader = member.id
        self.rebalance()
        return waiting

    def rejoin(
        self, member: ClassicMember, protocols: tuple[tuple[str, bytes], ...], session_s: float,
        rebalance_s: float,
    ) -> Promise[dict[str, Any]]:  # fmt: skip
        """Let a known member join with what it supports now, and rebalance all."""
        self.update(member, protocols, session_s, rebalance_s)
        waiting: Promise[dict[str, Any]] = Promise()
        member.answer_join(join_answer(Code.UNKNOWN_MEMBER_ID, member.id))  # an earlier try
        member.joined = waiting
        self._unjoined.discard(member.id)
        self.rebalance()
        return waiting

    def update(
        self, member: ClassicMember, protocols: tuple[tuple[str, bytes], ...], session_s: float,
        rebalance_s: float,
    ) -> None:  # fmt: skip
        if protocols != member.protocols:
            self._protocol_counts.count(member.protocols, -1)
            self._protocol_counts.count(protocols, 1)
            member.protocols = protocols
        member.session_s = session_s
        member.rebalance_s = rebalance_s
        if not member.new:
            self.renew_session(member)

    def replace_static(self, member: ClassicMember, new_id: str) -> None:
        """Give a static member a new id; a request that waits under the old one is fenced."""
        old_id = member.id
        del self.members[old_id]
        member.answer_join(join_answer(Code.FENCED_INSTANCE_ID, old_id))
        member.answer_sync(sync_answer(Code.FENCED_INSTANCE_ID))
        member.id = new_id
        self.members[new_id] = member
        if self.leader == old_id:
            self.leader = new_id
        if self.state == State.PREPARING:
            self._unjoined.discard(old_id)
            self._unjoined.add(new_id)
        if old_id in self._unsynced:
            self._unsynced.discard(old_id)
            self._unsynced.add(new_id)
        self.renew_session(member)

    def add(self, member: ClassicMember) -> None:
        """Add a member that is there from now on, without a rebalance."""
        self.members[member.id] = member
        self._protocol_counts.count(member.protocols, 1)
        self.static_members.add(member)
        member.deadline = self._coordinator.now() + (
            _NEW_MEMBER_S if member.new else member.session_s
        )
        self._watch(member)

    # -- syncing

    def wait_for_sync(self, member: ClassicMember) -> Promise[dict[str, Any]]:
        member.answer_sync(sync_answer(Code.UNKNOWN_MEMBER_ID))  # an earlier try
        waiting: Promise[dict[str, Any]] = Promise()
        member.synced = waiting
        self.has_synced(member.id)
        return waiting

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Take the leader's decision: each member's part, empty if it has none."""
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")

    def unassign(self, code: Code) -> None:
        """Take back an assignment that could not be logged."""
        for member in self.members.values():
            member.assignment = b""
        answer = sync_answer(code)
        self._answer_some((waiting, answer) for waiting in self._take_synced())

    def settle(self) -> None:
        """Give out the assignment that has been logged."""
        self.state = State.STABLE
        now, answers = self._coordinator.now(), []
        for member in self.members.values():
            if member.synced is not None:
                self._renew_session_at(now, member)
                answers.append((member.synced, self.assignment_of(member)))
                member.synced = None
        self._answer_some(iter(answers))

    def assignment_of(self, member: ClassicMember) -> dict[str, Any]:
        return sync_answer(Code.NONE) | {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    # -- the end

    @property
    def idle(self) -> bool:
        return self.state == State.EMPTY and not self._pending

    def end(self, code: Code) -> None:
        """End the group: this coordinator knows it no more, and tells waiting members so."""
        self.state = State.DEAD
        self.alarms.end()
        for member in self.members.values():
            member.answer_join(join_answer(code, member.id))
            member.answer_sync(sync_answer(code))
