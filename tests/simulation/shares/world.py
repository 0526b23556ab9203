"""Share groups on a shard whose owner changes at any moment: its log, workers, and what is true.

The log is kept; each worker has a copy of the rows, and is late. An owner's appends arrive in
their order, late, once or twice, or not at all, and the owner may never hear which. A worker that
was deposed and does not know it goes on serving. The soft layer is the real one (`kproxy.shares`).
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio

from kproxy.common.counters import Counters
from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.metadata.group_settings import GroupSettings
from kproxy.shard.located import Located
from kproxy.shard.watchers import Watchers
from kproxy.shares.lanes.share_lanes import LaneMemory
from kproxy.shares.sessions import ShareSessions
from kproxy.shares.share_partitions import SharePartitions
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import LogOffset, PartitionKey, QueueId
from tests.simulation.owners import OwnedShard, OwnedWorld, Owner
from tests.simulation.shares.truth import GROUPS, Truth

Result = TypeVar("Result")


class Gone(Exception):
    """The worker has crashed: no answer comes."""


class OrderedWatchers(Watchers):
    """Each seed is the same each time."""

    def wake(self, keys: set[PartitionKey]) -> None:
        for key in sorted(keys):
            watchers: Any = self._by_key.get(key, ())
            for watcher in sorted(watchers, key=lambda one: one.group):
                watcher.changed(key)


class Budget:
    async def wait_for_room(self) -> None:
        pass


class Worker(Owner):
    """One life of a worker. It is the source of its polls."""

    stopping = False

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number)
        self.answer_memory: Any = Budget()
        self.shard = OwnedShard(self)
        self.shard.watchers = OrderedWatchers()
        self.calls: set[anyio.CancelScope] = set()
        self.alive = True
        self.shares = SharePartitions(
            world.settings.__getitem__, lambda shard, group, *lost: group == GROUPS[0],
            world.now_ms, Counters(), LaneMemory(world.lane_bytes, Counters(), salt=number),
        )  # fmt: skip
        self.sessions = ShareSessions(self.shares, 100, 1000)
        for envelope in world.log:
            self.take(envelope)

    def works(self) -> Sequence[Any]:
        return [self.shares.run, self.sessions.run]

    def crash(self) -> None:
        self.alive = False
        super().crash()
        for call in self.calls:
            call.cancel()

    async def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Do a client's request. Raises Gone."""
        if not self.alive:
            raise Gone
        with anyio.CancelScope() as scope:
            self.calls.add(scope)
            try:
                return await work()
            finally:
                self.calls.discard(scope)
        raise Gone

    # -- the log

    def last_place(self) -> int:
        """Return the last place that is not behind a claim."""
        claims = (at for at, one in enumerate(self.outgoing) if one.kind == Kind.CLAIM)
        return next(claims, len(self.outgoing))

    def claim(self) -> None:
        """Claim the shard, unless this worker serves it, as far as it knows, or has a claim out."""
        if self.shard.serving or self.claiming:
            return
        ticket = Ticket([Claim().envelope()])
        self.claiming = True

        def done() -> None:
            self.claiming = False
            outcome = ticket.outcomes()[0]
            if not outcome.code:
                self.shard.serving, self.shard.claim_offset = True, outcome.number

        ticket.add_done_callback(done)
        self.send(ticket.envelopes[0], ticket)

    def take(self, envelope: Envelope) -> None:
        if envelope.kind == Kind.CLAIM and envelope.writer != self.number:
            self.shard.serving = False
        self.answer(envelope, self.shard.apply(envelope))

    # -- as a source

    @property
    def queue_changes(self) -> int:
        return self.shard.state.queue_changes

    def partition(self, topic: str | bytes, index: int) -> Located:
        assert isinstance(topic, bytes)
        if not self.shard.serving:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
        key = QueueId(topic), index
        if self.shard.state.partition(key) is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_ID)
        nothing = LogOffset(0)
        queue = Queue(name="q", queue_id=key[0], partitions=1, wanted=1, created_at=nothing,
                      changed_at=nothing, configs=self.world.configs)  # fmt: skip
        shard: Any = self.shard
        return Located(queue, key, shard)

    async def long_poll(self, changed: anyio.Event, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await changed.wait()


class World(OwnedWorld[Worker]):
    """The log and the workers."""

    lane_bytes = 1 << 20
    configs: dict[str, str] = {}  # noqa: RUF012 - of each queue, never changed in place

    def now_ms(self) -> int:
        return 1

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        backoffs: tuple[tuple[int, ...], ...] = ((), (), (300,), (200, 1500))
        self.settings = {
            group: GroupSettings(
                lock_duration_ms=rng.choice((1000, 3000)),
                delivery_count_limit=rng.choice((2, 3, 5)),
                record_locks_max=rng.choice((8, 30, 200)),
                read_committed=group == GROUPS[1],
                retry_backoff_ms=rng.choice(backoffs),
            )
            for group in GROUPS
        }
        self.truth = self.new_truth()
        self.keys: list[PartitionKey] = []
        self.controls: set[tuple[PartitionKey, int]] = set()

    def new_truth(self) -> Truth:
        return Truth(self.settings)

    def apply(self, envelope: Envelope) -> Outcome:
        return self.truth.take(envelope)

    def new_worker(self, number: int) -> Worker:
        return Worker(self, number)

    async def settle(self) -> None:
        """End the trouble, with one owner that stays."""
        self.trouble = False
        for worker in self.workers:
            worker.stalled_until = 0.0
        await anyio.sleep(12)
        worker = self.rng.choice(self.workers)
        if self.rng.random() < 0.3 or not self.owners():
            worker.claim()
            await anyio.sleep(3)
