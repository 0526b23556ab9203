"""Fetch sessions (KIP-227): a consumer names its partitions once, and then only changes.

Kafka prefers the sessions of followers. kproxy has no followers, so that rule is left out. When
there is no room a client takes it from the one that has most, if that has more than it; with Kafka
one client can have all.
"""

import secrets
from collections import Counter, deque
from collections.abc import Callable

from kproxy.common.errors import Code, KafkaError
from kproxy.fetching.context import FetchContext
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.loop.pace import Pace
from kproxy.security.peer import Peer, holder

EPOCH_MAX = 0x7FFFFFFF
_IDLE_S_TO_EVICT = 120  # as Kafka's min.incremental.fetch.session.eviction.ms

Owner = tuple[Peer, str | None]
"""The owner of a session: the peer, and its client id. A client that connects again goes on with
it, as with Kafka, and nobody else can, who would have to guess the session's id as well."""


class Session(FetchContext):
    """An incremental fetch session."""

    def __init__(self, session_id: int, owner: Owner, by_id: bool, used_at: float) -> None:
        super().__init__()
        self.session_id = session_id
        self.owner = owner
        self.by_id = by_id
        self.epoch = 1
        self.used_at = used_at
        self.busy = False
        self._watching = True


class FetchSessions:
    """All sessions of a worker, least recently used first; bounded in number and partitions."""

    def __init__(
        self,
        sessions_max: int,
        partitions_max: int,
        *,
        clock: Clock = SYSTEM_CLOCK,
        random_below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._clock = clock
        self._random_below = random_below
        self._sessions: dict[int, Session] = {}
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._ended: deque[FetchContext] = deque()  # and not let go of yet

    @property
    def count(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    def open(self, owner: Owner, by_id: bool, partitions: int) -> Session | None:
        """Open and return a session, or None without room for one: the client goes on without."""
        if not self._make_room(holder(owner[0]), partitions):
            return None
        session_id = self._random_below(EPOCH_MAX) + 1
        while session_id in self._sessions:
            session_id = self._random_below(EPOCH_MAX) + 1
        now = self._clock.monotonic()
        session = self._sessions[session_id] = Session(session_id, owner, by_id, now)
        return session

    def use(self, session_id: int, owner: Owner, epoch: int, by_id: bool) -> Session:
        """Return the session for an incremental fetch. Raise KafkaError."""
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise KafkaError(Code.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_id != by_id:
            raise KafkaError(Code.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise KafkaError(Code.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.used_at = self._clock.monotonic()
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def check_room(self, session: Session, partitions: int) -> None:
        """End a session that grows past the limit: its client begins again. Raise KafkaError."""
        if self._followed() + partitions > self._partitions_max:
            self._close(session)
            raise KafkaError(Code.FETCH_SESSION_ID_NOT_FOUND)

    def close(self, session_id: int, owner: Owner) -> None:
        """End a session, if it is there and the owner's."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            self._close(session)

    def _close(self, session: Session) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            self.end(session)

    # -- letting go

    def end(self, context: FetchContext) -> bool:
        """Let go of what was followed; whether that is done: else `tidy` does the rest."""
        done = context.let_go()
        if not done:
            self._ended.append(context)
        return done

    async def tidy(self, pace: Pace) -> None:
        """Let go of what has ended, in slices; where somebody breaks off, the next goes on."""
        ended = self._ended
        while ended:
            if ended[0].let_go():
                ended.popleft()
            if pace.due:
                await pace.rest()

    def __len__(self) -> int:
        return len(self._sessions)

    def _make_room(self, mine: str, partitions: int) -> bool:
        while self._sessions and (
            len(self._sessions) >= self._sessions_max
            or self._followed() + partitions > self._partitions_max
        ):
            oldest = next(iter(self._sessions.values()))
            idle_s = self._clock.monotonic() - oldest.used_at
            if oldest.busy or idle_s < _IDLE_S_TO_EVICT:
                found = self._of_who_has_most(mine, partitions)
                if found is None:
                    return False
                oldest = found
            self._close(oldest)
        return partitions <= self._partitions_max

    def _of_who_has_most(self, mine: str, partitions: int) -> Session | None:
        """Return a session that its holder can spare: it has more than who asks will have then."""
        many = len(self._sessions) >= self._sessions_max
        has: Counter[str] = Counter()
        for session in self._sessions.values():
            has[holder(session.owner[0])] += 1 if many else len(session.partitions)
        most, count = has.most_common(1)[0]
        if count <= has[mine] + (1 if many else partitions):
            return None
        theirs = [one for one in self._sessions.values() if holder(one.owner[0]) == most]
        return next((one for one in theirs if not one.busy), theirs[0])

    def _followed(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())
