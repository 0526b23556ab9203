"""The partitions that a consumer follows, if they are very many: taken and let go of in slices."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from kproxy.fetching.context import FetchContext, FetchPartition
from kproxy.fetching.sessions import FetchSessions, Session
from kproxy.loop.pace import Pace
from kproxy.security.peer import NOBODY
from kproxy.shard.watchers import Watchers
from kproxy.virtual.types import QueueId
from tests.held import HELD_S, held_by, slowness
from tests.present import present

QUEUE = QueueId(uuid4().bytes)


class Watched:
    """The part of a shard that an interest uses."""

    def __init__(self) -> None:
        self.watchers = Watchers()


def follow(interest: FetchContext, shard: Any, count: int) -> None:
    for index in range(count):
        followed = FetchPartition(("q", index))
        interest.follow(followed)
        interest.locate(followed, (QUEUE, index), shard)


async def test_very_many_are_watched_and_let_go_of_in_slices() -> None:
    shard, interest, sessions = Watched(), FetchContext(), FetchSessions(1, 1)
    follow(interest, shard, 300_000)
    seen_late, held = await held_by(interest.watch(Pace()))
    assert seen_late
    assert held < HELD_S * slowness()
    assert len(shard.watchers) == 300_000
    assert not await interest.watch(Pace())
    assert not sessions.end(interest)
    _, held = await held_by(sessions.tidy(Pace()))
    assert held < HELD_S * slowness()
    assert len(shard.watchers) == len(interest.partitions) == 0


async def test_a_change_while_very_many_are_taken_up_is_not_missed() -> None:
    """A partition that is not watched yet may change: it is looked at once more."""

    for count, again in ((500, False), (501, True)):
        interest = FetchContext()
        follow(interest, Watched(), count)
        assert await interest.watch(Pace()) is again


async def test_cancelled_tidying_leaves_the_rest_to_the_next() -> None:
    shard, sessions = Watched(), FetchSessions(10, 100_000)
    session = present(sessions.open((NOBODY, None), False, 50_000))
    follow(session, shard, 50_000)
    sessions.close(session.session_id, session.owner)
    tidying = asyncio.create_task(sessions.tidy(Pace()))
    await asyncio.sleep(0)
    tidying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tidying
    assert 0 < len(shard.watchers) < 50_000
    await asyncio.gather(sessions.tidy(Pace()), sessions.tidy(Pace()))
    assert len(shard.watchers) == 0


def test_fetch_in_an_ended_session_watches_nothing() -> None:
    shard: Any = Watched()
    session = Session(1, ("/here", None), False, 0.0)
    follow(session, shard, 10)
    assert len(shard.watchers) == 10
    assert session.let_go()
    follow(session, shard, 10)
    assert len(shard.watchers) == 0
