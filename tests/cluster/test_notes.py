"""Notes of what is to be announced are removed beside the log: nothing is lost by that.

A note is removed once what it stands for is in the topic. After any crash, each note that is needed
is there: in the rows, or put again by the fold of the log behind them.
"""

import random
from typing import Any

import pytest

from kproxy.metadata.catalogue import QueueIds, StateLookup
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.queues import announce_key
from tests.cluster.fakes import SHARDS, Link, Member, Topic
from tests.commands import command

HOME = 0
NAMES = [name for name in (f"n{i}" for i in range(40)) if shard_of(name, SHARDS) == HOME][:3]


class SlowLink(Link):
    """A link whose words reach the topic, and their reports, when told to, or never."""

    def __init__(self, topic: Topic, writer: int, chance: random.Random) -> None:
        super().__init__(topic, writer)
        self.chance = chance
        self.said: list[Any] = []
        self.reports: list[Any] = []

    def publish_queue(self, key: bytes, value: Any, done: Any = None, header: Any = None) -> None:
        self.said.append((key, value, header))
        self.reports.append(done)

    def go_on(self) -> None:
        """Land some of the words, and report some of these, each in order."""
        for _ in range(self.chance.randrange(len(self.said) + 1)):
            key, value, header = self.said.pop(0)
            super().publish_queue(key, value, None, header)
        landed = len(self.reports) - len(self.said)
        for _ in range(self.chance.randrange(landed + 1)):
            done = self.reports.pop(0)
            if done is not None:
                done()


class History:
    """The log of one shard that one worker serves, and what its rows were at each time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topic = Topic()
        self.log: list[Envelope] = []
        self.member = Member(self.topic, 1)
        self.link = SlowLink(self.topic, 1, self.chance)
        for speaker in (self.member.command_router, self.member.command_router.announcer):
            speaker._link = self.link  # type: ignore[assignment]
        self.snapshots: list[tuple[int, dict[bytes, bytes]]] = []

    def changed(self, shard: Any) -> Envelope:
        name = self.chance.choice(NAMES)
        queue = shard.state.queue(name)
        if queue is None:
            values = {"name": name, "partitions": 1, "configs": {}}
            return command(Kind.CREATE, QueueIds(SHARDS).new(HOME), values=values)
        if self.chance.random() < 0.5:
            return command(Kind.DELETE, queue.queue_id)
        values = {"set": {"retention.ms": str(len(self.log))}, "drop": [], "all": False}
        return command(Kind.CONFIGURE, queue.queue_id, values=values)

    async def live(self) -> None:
        holder, shard = self.member.hold(HOME)
        self.fold(holder, shard, Envelope(Kind.CLAIM, writer=1))
        holder._serve(shard, 0)
        await self.member.tasks.run()
        for _ in range(self.chance.randrange(1, 12)):
            self.fold(holder, shard, self.changed(shard))
            await self.member.tasks.run()
            self.link.go_on()
            self.snapshots.append((len(shard.log), dict(shard.kv.rows)))

    def fold(self, holder: Any, shard: Any, envelope: Envelope) -> None:
        self.log.append(envelope)
        self.member.fold(holder, shard, envelope)
        self.snapshots.append((len(shard.log), dict(shard.kv.rows)))

    async def again(self, snapshot: tuple[int, dict[bytes, bytes]]) -> None:
        """Go on with these rows and the log, until the worker has said all there is to say."""
        position, found = snapshot
        topic = Topic()
        topic.records = list(self.topic.records)
        member = Member(topic, 2)
        await member.hear()
        holder, shard = member.hold(HOME)
        shard.kv.rows.update(found)
        shard.log.extend(self.log[:position])
        member.fold(holder, shard, *self.log[position:], Envelope(Kind.CLAIM, writer=2))
        holder._serve(shard, len(self.log))
        for _ in range(3):
            await member.tasks.run()
            await member.hear()
        listener = Member(topic, 3)
        await listener.hear()
        for name in NAMES:
            assert listener.cache.find(name) == StateLookup(shard.state).find(name), name


@pytest.mark.parametrize("first", range(0, 400, 100))
async def test_noted_queue_is_announced_after_any_crash(first: int) -> None:
    removed = 0
    for seed in range(first, first + 100):
        history = History(seed)
        await history.live()
        for snapshot in history.snapshots:
            removed += any(
                announce_key(name) not in snapshot[1] for name in NAMES if snapshot[0] > 3
            )
            await history.again(snapshot)
    assert removed > 100


async def test_a_note_of_what_came_later_stays() -> None:
    """The report of an earlier announcement comes after the queue has changed again."""

    history = History(0)
    holder, shard = history.member.hold(HOME)
    history.fold(holder, shard, Envelope(Kind.CLAIM, writer=1))
    holder._serve(shard, 0)
    await history.member.tasks.run()
    values: dict[str, Any] = {"name": NAMES[0], "partitions": 1, "configs": {}}
    create = command(Kind.CREATE, QueueIds(SHARDS).new(HOME), values=values)
    history.fold(holder, shard, create)
    (first,) = history.link.reports
    history.fold(holder, shard, command(Kind.DELETE, create.queue_id))
    first()
    assert shard.state.get(announce_key(NAMES[0])) == (2).to_bytes(8, "big")
    history.link.reports[1]()
    assert shard.state.get(announce_key(NAMES[0])) is None
    await history.member.tasks.run()
