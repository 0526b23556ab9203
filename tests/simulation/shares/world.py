"""Share groups on a shard whose owner changes at any moment: its log, workers, and what is true.

The log is kept; each worker has a copy of the rows, and is late. An owner's appends arrive in
their order, late, once or twice, or not at all, and the owner may never hear which. A worker that
was deposed and does not know it goes on serving. The soft layer is the real one (`kproxy.shares`).
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from kproxy.common.counters import Counters
from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.metadata.group_settings import GroupSettings
from kproxy.shard.located import Located
from kproxy.shard.watchers import Watchers
from kproxy.shares.sessions import ShareSessions
from kproxy.shares.share_partitions import SharePartitions
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import LogOffset, PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.simulation.shares.truth import GROUPS, Truth

Result = TypeVar("Result")
_UNKNOWN = Outcome(Code.REQUEST_TIMED_OUT)
_SOON_S = (0.0, 0.0, 0.001, 0.005, 0.02, 0.1)


class Gone(Exception):
    """The worker has crashed: no answer comes."""


class OrderedWatchers(Watchers):
    """Each seed is the same each time."""

    def wake(self, keys: set[PartitionKey]) -> None:
        for key in sorted(keys):
            watchers: Any = self._by_key.get(key, ())
            for watcher in sorted(watchers, key=lambda one: one.group):
                watcher.changed(key)


class SimShard(MemoryShard):
    """A worker's copy of the shard; what it appends goes to the world's log."""

    def __init__(self, worker: "Worker") -> None:
        super().__init__(shared=True)
        self._worker = worker
        self.watchers = OrderedWatchers()
        self.serving, self.claim_offset = False, -1

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        (envelope,) = envelopes
        self._worker.send(envelope, ticket)
        return ticket


class Budget:
    async def wait_for_room(self) -> None:
        pass


class Worker:
    """One life of a worker. It is the source of its polls."""

    stopping = False

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number = world, number
        self.rng = world.rng
        self.answer_memory: Any = Budget()
        self.shard = SimShard(self)
        self.counter = 0
        self.tickets: dict[int, Ticket] = {}
        self.more_to_send = anyio.Event()
        self.outgoing: list[Envelope] = []
        self.stalled_until = 0.0
        self.claiming = False
        self.calls: set[anyio.CancelScope] = set()
        self.alive = True
        self.scope = anyio.CancelScope()
        self.shares = SharePartitions(
            world.settings.__getitem__, lambda shard, group, *lost: group == GROUPS[0], lambda: 1,
            Counters(),
        )  # fmt: skip
        self.sessions = ShareSessions(self.shares, 100, 1000)
        for envelope in world.log:
            self.take(envelope)

    async def run(self) -> None:
        with self.scope:
            async with anyio.create_task_group() as tasks:
                for work in (self.shares.run, self.sessions.run, self.follow_log, self.sending):
                    tasks.start_soon(work)

    def crash(self) -> None:
        self.alive = False
        self.scope.cancel()
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

    async def nap(self) -> None:
        """Wait a little, or as long as the worker stands still."""
        left = self.stalled_until - anyio.current_time()
        await anyio.sleep(left if left > 0 else self.rng.choice(_SOON_S))

    def send(self, envelope: Envelope, ticket: Ticket | None = None) -> None:
        self.counter += 1
        envelope.writer, envelope.counter = self.number, self.counter
        if ticket is not None:
            self.tickets[self.counter] = ticket
        self.outgoing.append(envelope)
        self.more_to_send.set()

    async def sending(self) -> None:
        """Send in order, as an idempotent producer; an append that is given up may have arrived."""
        while True:
            while self.outgoing:
                await self.nap()
                envelope = self.outgoing.pop(0)
                dice = self.rng.random() if self.world.trouble else 1.0
                if dice < 0.02:
                    self.give_up(envelope)
                    continue
                self.world.land(envelope)
                if dice < 0.04:
                    self.give_up(envelope)
                elif (
                    dice < 0.08 and envelope.kind != Kind.CLAIM
                ):  # once more, some time; not behind a claim that follows it
                    most = next(
                        (at for at, one in enumerate(self.outgoing) if one.kind == Kind.CLAIM),
                        len(self.outgoing),
                    )
                    self.outgoing.insert(self.rng.randrange(most + 1), envelope)
            self.more_to_send = anyio.Event()
            await self.more_to_send.wait()

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

    def give_up(self, envelope: Envelope) -> None:
        ticket = self.tickets.pop(envelope.counter, None)
        if ticket is not None:
            ticket.set_outcomes([_UNKNOWN])

    async def follow_log(self) -> None:
        while True:
            await self.nap()
            if len(self.shard.log) == len(self.world.log):
                await self.world.landed.wait()
            for _ in range(self.rng.choice((1, 1, 2, 10))):
                if len(self.shard.log) < len(self.world.log):
                    self.take(self.world.log[len(self.shard.log)])

    def take(self, envelope: Envelope) -> None:
        """Apply the log's next envelope."""
        mine = envelope.writer == self.number
        if envelope.kind == Kind.CLAIM and not mine:
            self.shard.serving = False
        outcome = self.shard.apply(envelope)
        ticket = self.tickets.pop(envelope.counter, None) if mine else None
        if ticket is not None:
            ticket.set_outcomes([outcome])

    # -- as a source

    def partition(self, topic: str | bytes, index: int) -> Located:
        assert isinstance(topic, bytes)
        if not self.shard.serving:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
        key = QueueId(topic), index
        if self.shard.state.partition(key) is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_ID)
        nothing = LogOffset(0)
        queue = Queue(name="q", queue_id=key[0], partitions=1, wanted=1, created_at=nothing,
                      changed_at=nothing, configs={})  # fmt: skip
        shard: Any = self.shard
        return Located(queue, key, shard)

    async def long_poll(self, changed: anyio.Event, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await changed.wait()


class World:
    """The log and the workers. `trouble`: whether anything goes wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.trouble = True
        self.log: list[Envelope] = []
        self.landed = anyio.Event()
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
        self.truth = Truth(self.settings)
        self.keys: list[PartitionKey] = []
        self.workers: list[Worker] = []
        self.lives = 0
        self.tasks: TaskGroup
        self.controls: set[tuple[PartitionKey, int]] = set()

    def land(self, envelope: Envelope) -> Outcome:
        """Append an envelope to the log, where it is durable."""
        self.log.append(envelope)
        outcome = self.truth.take(envelope)
        landed, self.landed = self.landed, anyio.Event()
        landed.set()
        return outcome

    def start_worker(self) -> Worker:
        self.lives += 1
        worker = Worker(self, self.lives)
        self.workers.append(worker)
        self.tasks.start_soon(worker.run)
        return worker

    def owners(self) -> list[Worker]:
        """Return the workers that think they own the shard."""
        return [worker for worker in self.workers if worker.shard.serving]

    async def claims(self) -> None:
        """Take the shard over, crash and stand still."""
        while self.trouble:
            await anyio.sleep(self.rng.choice((0.5, 2.0, 6.0)))
            worker = self.rng.choice(self.workers)
            dice = self.rng.random()
            if dice < 0.3:
                worker.crash()
                self.workers.remove(worker)
                worker = self.start_worker()
                worker.claim()
            elif dice < 0.6:
                worker.stalled_until = anyio.current_time() + self.rng.choice((0.3, 1.5, 5.0))
                self.rng.choice(self.workers).claim()
            else:
                worker.claim()

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
