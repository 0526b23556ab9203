"""Share sessions (KIP-932): which share partitions a member reads, by group and member id.

A session ends with its connection, and gives back what its member holds. It belongs to that
connection: the end of an earlier one, noticed late, does not end what was opened since.
"""

from collections import deque
from typing import Protocol

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.pace import Pace
from kproxy.metadata.group_settings import GroupSettings
from kproxy.security.parts import Parts
from kproxy.shares.counting import By
from kproxy.shares.share_partition import SharePartition
from kproxy.shares.share_partitions import PartitionChange, SharePartitions

EPOCH_MAX = 0x7FFFFFFF
FIRST_EPOCH, FINAL_EPOCH = 0, -1
PER_CONNECTION_MAX = 100
"""A client has one session on a connection: nobody is to have those of all others."""
_AT_ONCE = 200

Ident = tuple[bytes, int]
"""A partition as the client names it: topic id and index."""


class Waiting(Protocol):
    """A poll of a session."""

    def set(self) -> None:
        """Wake the poll: there may be something."""
        ...


class Followed:
    """A partition that a session reads. `share`: None while it is not located."""

    __slots__ = ("error", "ident", "session", "share")

    def __init__(self, session: "ShareSession", ident: Ident) -> None:
        self.session, self.ident = session, ident
        self.share: SharePartition | None = None
        self.error = Code.NONE  # that the client was told of

    def woken(self) -> bool:
        return self.session.woken(self)

    def look_again(self) -> None:
        self.session.woken(self)


class ShareSession:
    """A member's session. `dirty`, in order of turn: partitions that may have something for it."""

    def __init__(self, group: str, member: str, connection: int) -> None:
        self.group, self.member = group, member
        self.connection = connection
        self.holder = ""  # the one whose part of all sessions it is
        self.epoch = 1
        self.partitions: dict[Ident, Followed] = {}
        self.dirty: dict[Followed, None] = {}
        self.told: set[Followed] = set()  # the ones that only this session was told of
        self.again: set[Followed] = set()  # after an error: each poll looks at them once
        self._settings: GroupSettings | None = None  # as the last poll found them
        self._generation = -1  # the generation of the rules of who may read what
        self.waiting: set[Waiting] = set()  # polls: mostly one
        self.gathering = 0  # polls that wait for more than there may be
        self.ended = False
        self.releases = True  # give back the member's records once it has ended
        self.ended_at = 0  # later acquisitions are not this session's

    def look_again(self, settings: GroupSettings) -> None:
        """Begin a poll. If its group's settings have changed, there may be more in any."""
        if settings is not self._settings:
            self._settings = settings
            self.dirty.update(dict.fromkeys(self.partitions.values()))
        self.dirty.update(dict.fromkeys(self.again))
        self.again.clear()

    def ruled(self, generation: int) -> None:
        """Note as of which rules partitions are read; with others all is looked at again."""
        if self._generation != generation:
            self._generation = generation
            self.dirty.update(dict.fromkeys(self.partitions.values()))

    def finish(self, number: int) -> None:
        """End the session and its waiting polls."""
        self.ended, self.ended_at = True, number
        for poll in self.waiting:
            poll.set()

    def woken(self, followed: Followed) -> bool:
        """Return whether a poll waits that looks at it now."""
        if self.ended:
            return False
        self.dirty[followed] = None
        for poll in self.waiting:
            poll.set()
        if len(self.waiting) <= self.gathering:
            return False  # one that waits for more than this may leave it to others
        self.told.add(followed)
        return True

    def follow(self, ident: Ident) -> None:
        if ident not in self.partitions:
            followed = self.partitions[ident] = Followed(self, ident)
            self.dirty[followed] = None


class ShareSessions:
    """All sessions of a worker; bounded in number and partitions."""

    def __init__(self, shares: SharePartitions, sessions_max: int, partitions_max: int) -> None:
        self._shares = shares
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[int, set[ShareSession]] = {}
        self._parts = Parts(sessions_max)
        self._partitions = Parts(partitions_max)
        self._ended: deque[ShareSession] = deque()
        self._more = anyio.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, group: str, member: str, connection: int, wanted: int, holder: str = ""
    ) -> ShareSession:
        """Open and return a new session in the place of the one there was. `holder`: whose part of
        all it uses.

        Raise KafkaError: SHARE_SESSION_LIMIT_REACHED.
        """
        before = self._sessions.get((group, member))
        if before is None or before.connection != connection:
            self._check_connection(connection)
        if before is not None:  # the member may still acknowledge what it holds
            before.releases = False
            self.end(before)
        if not self._parts.may(holder):
            raise KafkaError(Code.SHARE_SESSION_LIMIT_REACHED)
        self.check_room(holder, wanted)
        session = ShareSession(group, member, connection)
        session.holder = holder
        self._parts.take(holder)
        self._sessions[group, member] = session
        self._by_connection.setdefault(connection, set()).add(session)
        return session

    def use(self, group: str, member: str, epoch: int, connection: int) -> ShareSession:
        """Return the session with its epoch counted on. Raise KafkaError.

        SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED. With
        the final epoch it stays as it is, for its last request.
        """
        session = self._sessions.get((group, member))
        if session is None:
            raise KafkaError(Code.SHARE_SESSION_NOT_FOUND)
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise KafkaError(Code.INVALID_SHARE_SESSION_EPOCH)
        if session.connection != connection:
            self._check_connection(connection)
            self._leave_connection(session)
            session.connection = connection
            self._by_connection.setdefault(connection, set()).add(session)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return session

    def follow(self, session: ShareSession, ident: Ident) -> None:
        """Follow a partition. Raise KafkaError: there is no room, or the session has ended."""
        if session.ended:
            raise KafkaError(Code.SHARE_SESSION_NOT_FOUND)
        if ident not in session.partitions:
            self.check_room(session.holder, 1)
            session.follow(ident)
            self._partitions.take(session.holder)

    def forget(self, session: ShareSession, ident: Ident) -> None:
        """Stop reading a partition for the member. It may still acknowledge what it holds there."""
        followed = session.partitions.pop(ident, None)
        if followed is not None:
            self._partitions.give_back(session.holder)
            session.dirty.pop(followed, None)
            session.told.discard(followed)
            session.again.discard(followed)
            self.locate(followed, None)

    def locate(self, followed: Followed, share: SharePartition | None) -> None:
        """Note which share partition an ident means now; None: there is none."""
        before = followed.share
        if before is share or (share is not None and followed.session.ended):
            return
        followed.share = share
        if share is not None:
            self._shares.follow(share)
        if before is not None:
            if before.waiters.pop(followed, 0) is not None:
                before.wake_next()  # it may have been told of something, and did not look
            self._shares.unfollow(before)

    def check_room(self, holder: str, wanted: int) -> None:
        """Raise KafkaError: SHARE_SESSION_LIMIT_REACHED, where so many partitions are too many."""
        if wanted and not self._partitions.may(holder, wanted):
            raise KafkaError(Code.SHARE_SESSION_LIMIT_REACHED)

    def _check_connection(self, connection: int) -> None:
        """Raise KafkaError: it has too many sessions."""
        if len(self._by_connection.get(connection, ())) >= PER_CONNECTION_MAX:
            raise KafkaError(Code.SHARE_SESSION_LIMIT_REACHED)

    # -- ending

    def disconnected(self, connection: int) -> None:
        """End the sessions of a connection that is gone."""
        for session in list(self._by_connection.get(connection, ())):
            self.end(session)

    def end(self, session: ShareSession) -> None:
        """End a session: it gets nothing any more; `run` gives back what its member holds."""
        if session.ended:
            return
        session.finish(self._shares.next_number())
        self._parts.give_back(session.holder)
        if self._sessions.get((session.group, session.member)) is session:
            del self._sessions[session.group, session.member]
        self._leave_connection(session)
        self._ended.append(session)
        self._more.set()

    def _leave_connection(self, session: ShareSession) -> None:
        mine = self._by_connection.get(session.connection)
        if mine is not None:
            mine.discard(session)
            if not mine:
                del self._by_connection[session.connection]

    async def run(self) -> None:
        """Let go of sessions that have ended, in slices, until cancelled."""
        pace = Pace()
        while True:
            self._more = anyio.Event()
            while self._ended:
                session = self._ended[0]
                if self._let_go_some(session):
                    self._ended.popleft()
                await pace.step()
            await self._more.wait()
            pace.begin()

    def _let_go_some(self, session: ShareSession) -> bool:
        """Give back what a member holds of some partitions; whether that was all."""
        limit = self._shares.settings(session.group).delivery_count_limit
        changes = []
        for _ in range(min(_AT_ONCE, len(session.partitions))):
            _, followed = session.partitions.popitem()
            self._partitions.give_back(session.holder)
            share = followed.share
            if share is not None:
                if session.releases and share.is_current:
                    pending = share.window.release(session.member, limit, session.ended_at)
                    if pending.runs:
                        changes.append(PartitionChange(share, pending.runs, pending, By.LEAVING))
                self.locate(followed, None)
            session.dirty.pop(followed, None)
        self._shares.log(session.group, changes)
        return not session.partitions
