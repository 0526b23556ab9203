"""A worker's means without a cluster: one queues topic as a list, links that write to it."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kproxy.cluster.announcer import ClusterContext
from kproxy.cluster.catalogue.cache import CatalogueCache
from kproxy.cluster.command_router import CommandRouter
from kproxy.cluster.shard_owner import ShardOwner
from kproxy.common.counters import Counters
from kproxy.metadata.levels import Level
from kproxy.upstream.topic_tailer import Record
from kproxy.virtual.commands.envelope import Envelope
from tests.fakes import DictKv, MemoryShard

SHARDS = 4


class Topic:
    """The queues topic."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def compacted(self) -> list[Record]:
        """Return the last record of each key."""
        return sorted({record.key: record for record in self.records}.values())


class Link:
    """The announcements of a worker in the topic, and its commands in logs of others."""

    def __init__(self, topic: Topic, writer: int) -> None:
        self.topic = topic
        self.writer = writer
        self.counter = 0
        self.sent: list[tuple[int, Envelope]] = []
        self.deaf = False  # its announcements are lost

    def next_counter(self) -> int:
        self.counter += 1
        return self.counter

    def send(self, partition: int, envelope: Envelope) -> None:
        self.sent.append((partition, envelope))

    def publish_queue(
        self, key: bytes, value: bytes | None, done: Callable[[], None] | None = None,
        header: tuple[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        if self.deaf:
            return
        note = header[1] if header else None
        self.topic.records.append(Record("queues", len(self.topic.records), key, value, note))
        if done is not None:
            done()


class Tasks:
    """A task group whose tasks run when told to."""

    def __init__(self) -> None:
        self.waiting: list[Coroutine[Any, Any, None]] = []

    def start_soon(self, function: Any, *args: Any) -> None:
        self.waiting.append(function(*args))

    async def run(self) -> None:
        while self.waiting:
            await self.waiting.pop(0)


class Member:
    """One worker: its cache, its decisions, and the shards that it holds."""

    def __init__(
        self, topic: Topic, writer: int, now_ms: Callable[[], int] = lambda: 10**12
    ) -> None:
        self.topic = topic
        self.tasks: Any = Tasks()
        self.link: Any = Link(topic, writer)
        self.holders: dict[int, ShardOwner] = {}
        self.cache = CatalogueCache(DictKv(), SHARDS, self.serving)
        level = Level()
        voice = ClusterContext(
            link=self.link, shards=SHARDS, cache=self.cache, serving=self.serving,
            settle=self.settle, tasks=self.tasks, level=level,
        )  # fmt: skip
        self.command_router = CommandRouter(voice, now_ms)
        self.site: Any = SimpleNamespace(
            link=self.link, command_router=self.command_router, announce=lambda shard, claim: None,
            counters=Counters(),
            level=level,
        )  # fmt: skip

    async def settle(self) -> None:
        pass

    def serving(self, index: int) -> Any:
        holder = self.holders.get(index)
        return None if holder is None else holder.shard

    def all(self) -> list[Any]:
        return [holder.shard for holder in self.holders.values() if holder.shard is not None]

    def hold(self, index: int) -> tuple[ShardOwner, Any]:
        """Return a shard with an empty local copy, followed and not served yet."""
        shard: Any = MemoryShard(index, SHARDS, shared=True)
        shard.serving = False
        shard.tasks = self.tasks
        holder = self.holders[index] = ShardOwner(index, SHARDS, Path("-"), self.site)
        return holder, shard

    def fold(self, holder: ShardOwner, shard: Any, *envelopes: Envelope) -> None:
        """Fold each as from this worker, unless it says otherwise."""
        for envelope in envelopes:
            envelope.writer = envelope.writer or self.link.writer
            log_offset = len(shard.log)
            outcome = shard.apply(envelope)
            holder._applied(shard, log_offset, envelope, outcome)

    async def hear(self, upto: int | None = None) -> None:
        """Read the topic, as `Member._take` does."""
        found = self.topic.records[self.cache.next_offset : upto]
        for name in self.cache.apply(found):
            home = next((s for s in self.all() if self.cache._home(name) is s), None)
            if home is not None:
                self.command_router.announcer.say_again(home, name)
        await self.tasks.run()
