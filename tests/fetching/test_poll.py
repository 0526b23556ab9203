"""The polls of a session: a change is seen whatever other partitions have meanwhile."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from kproxy.common.errors import Code
from kproxy.fetching import poll
from kproxy.fetching.context import FetchContext, FetchPartition
from kproxy.fetching.poll import NextRequest, Poll, PollLimits
from kproxy.fetching.streamed_response import Pins
from kproxy.loop.pace import Pace
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.types import QueueId
from tests.fakes import memory_worker
from tests.wire import batch


class Nothing:
    """A client that has sent nothing else."""

    arrived = False

    def wake(self, event: Any) -> None: ...


class Following:
    """A session that follows the queues `a` and `b` of one worker."""

    def __init__(self) -> None:
        self.worker = memory_worker()
        self.shard: Any = self.worker.any_shard()
        self.context = FetchContext()
        self.ids = {name: QueueId(name.encode() * 16) for name in "ab"}
        for name, queue_id in self.ids.items():
            self.shard.apply(CreateQueue(queue_id, name, 1, {}).envelope())
            self.ask(name, 0)

    def put(self, name: str, count: int = 1) -> None:
        for _ in range(count):
            self.shard.apply(Envelope(Kind.APPEND, self.ids[name], 0, body=batch(b"v")))

    def ask(self, name: str, offset: int) -> None:
        followed = self.context.partitions.get((name, 0)) or FetchPartition((name, 0))
        followed.offset, followed.max_bytes = offset, 100  # a batch for each poll
        self.context.follow(followed)

    async def poll(
        self, *, full: bool = False, refuses: Callable[[Any], Code] | None = None
    ) -> list[str]:
        """Return the queues of which records are answered."""
        limits = PollLimits(min_bytes=1, max_bytes=1 << 20, max_wait_s=0.05, full=full)
        one = Poll(self.worker, self.context, limits, Pace(), Pins(), refuses)
        found = await one.run(cast(NextRequest, Nothing()))
        return [str(part.followed.ident[0]) for part in found if part.size]


async def test_a_record_is_seen_while_another_queue_always_has_some() -> None:
    """FAULT: a queue that was empty at a session's first poll was not looked at while another one
    had records, and what came meanwhile not before it changed again."""
    session = Following()
    session.put("a", 3)
    assert await session.poll(full=True) == ["a"]
    session.put("b")
    session.ask("a", 1)
    assert sorted(await session.poll()) == ["a", "b"]


async def test_a_record_is_seen_that_came_before_a_session_had_to_wait() -> None:
    session = Following()
    session.put("a")
    assert await session.poll(full=True) == ["a"]
    session.put("b")
    session.ask("a", 1)
    assert await session.poll() == ["b"]


async def test_a_record_is_seen_that_came_while_the_log_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: what came to one partition while the end of another one's log was asked for."""
    session = Following()

    async def asked(shards: Any) -> None:
        session.put("b")

    monkeypatch.setattr(poll, "_catch_up", asked)
    session.ask("a", 5)  # as another worker has told it
    first = Following.poll
    assert "b" in [*await first(session, full=True), *await first(session)]
