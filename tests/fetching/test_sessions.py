"""Fetch sessions: whose they are, and which one makes room for another (KIP-227)."""

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.fetching.context import FetchPartition
from kproxy.fetching.sessions import EPOCH_MAX, FetchSessions
from kproxy.loop.clock import Clock
from kproxy.security.peer import Peer
from tests.present import present

ALICE, BOB = (Peer(host="10.0.0.1"), "alice"), (Peer(host="10.0.0.2"), "bob")
MS_TO_EVICT = 120_000


class Ticking:
    """A clock that a test sets, and ids that it foretells."""

    def __init__(self, *ids: int) -> None:
        self.now_s = 1000.0
        self._ids = list(ids) or list(range(100))

    def sessions(self, sessions_max: int = 10, partitions_max: int = 100) -> FetchSessions:
        return FetchSessions(
            sessions_max,
            partitions_max,
            clock=Clock(monotonic=lambda: self.now_s),
            random_below=lambda bound: self._ids.pop(0),
        )


def test_a_session_makes_room_after_two_idle_minutes_and_not_before() -> None:
    clock = Ticking()
    sessions = clock.sessions(sessions_max=1)
    old = present(sessions.open(ALICE, True, 1))
    clock.now_s += MS_TO_EVICT / 1000 - 1
    assert sessions.open(BOB, True, 1) is None
    clock.now_s += 1
    assert sessions.open(BOB, True, 1) is not None
    with pytest.raises(KafkaError) as ended:
        sessions.use(old.session_id, ALICE, 1, True)
    assert ended.value.code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_use_puts_eviction_off_and_the_least_recently_used_goes_first() -> None:
    clock = Ticking()
    sessions = clock.sessions(sessions_max=2)
    first, second = sessions.open(ALICE, True, 1), sessions.open(BOB, True, 1)
    assert first is not None
    assert second is not None
    clock.now_s += MS_TO_EVICT / 1000 - 1
    sessions.use(first.session_id, ALICE, 1, True)
    clock.now_s += 1
    assert sessions.open(ALICE, True, 1) is not None
    assert sessions.use(first.session_id, ALICE, 2, True) is first
    with pytest.raises(KafkaError):
        sessions.use(second.session_id, BOB, 1, True)


def test_a_busy_session_is_not_evicted() -> None:
    clock = Ticking()
    sessions = clock.sessions(sessions_max=1)
    present(sessions.open(ALICE, True, 1)).busy = True
    clock.now_s += MS_TO_EVICT
    assert sessions.open(BOB, True, 1) is None


def test_ids_are_not_given_twice() -> None:
    sessions = Ticking(7, 7, 7, 8).sessions()
    opened = [sessions.open(ALICE, True, 1) for _ in range(2)]
    assert [session.session_id for session in opened if session] == [8, 9]


@pytest.mark.parametrize(
    ("owner", "epoch", "by_id", "code"),
    [
        (BOB, 1, True, Code.FETCH_SESSION_ID_NOT_FOUND),
        (ALICE, 2, True, Code.INVALID_FETCH_SESSION_EPOCH),
        (ALICE, 1, False, Code.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_refusals(owner: tuple[Peer, str], epoch: int, by_id: bool, code: Code) -> None:
    sessions = Ticking().sessions()
    session = present(sessions.open(ALICE, True, 1))
    with pytest.raises(KafkaError) as refused:
        sessions.use(session.session_id, owner, epoch, by_id)
    assert refused.value.code == code


def test_epochs_begin_again_after_the_last() -> None:
    sessions = Ticking().sessions()
    session = present(sessions.open(ALICE, True, 1))
    session.epoch = EPOCH_MAX
    assert sessions.use(session.session_id, ALICE, EPOCH_MAX, True).epoch == 1


def test_one_client_cannot_have_all_sessions() -> None:
    """FAULT: who was there first had all, and everybody else went without."""
    sessions = Ticking().sessions(sessions_max=10, partitions_max=1000)
    mallory = (Peer("User:mallory", "10.0.0.9"), "m")
    for _ in range(12):
        session = sessions.open(mallory, True, 1)
        if session is not None:
            session.busy = True
    assert sessions.count == 10
    for number in range(5):
        assert sessions.open((Peer("User:alice", f"10.0.0.{number}"), "a"), True, 1) is not None
    assert sessions.count == 10
    assert sessions.open(mallory, True, 1) is None
    assert sessions.open((Peer("User:alice", "10.0.0.1"), "a"), True, 1) is None, "her part"


def test_one_client_cannot_have_all_partitions_of_sessions() -> None:
    sessions = Ticking().sessions(sessions_max=10, partitions_max=100)
    for _ in range(4):
        session = present(sessions.open(BOB, True, 24))
        for number in range(24):
            session.follow(FetchPartition(("q", number)))
    assert sessions.open(BOB, True, 24) is None
    assert sessions.open(ALICE, True, 24) is not None
