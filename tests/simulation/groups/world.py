"""Coordinators of one shard's groups, whose owner changes at any moment, and the way to them.

The log is kept; each worker has a copy of the rows, and is late (`tests.simulation.owners`). A
client's requests arrive in their order: late, or never, and its answers too. It asks again when it
has lost patience, while the first request may still be worked on. The handlers are the real ones.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.loop.callbacks import after
from kproxy.loop.clock import Clock
from kproxy.metadata.catalogue import StateLookup
from kproxy.metadata.cluster_view import SingleNode
from kproxy.protocol.responses import Broker
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import CreateQueue, GrowQueue
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.types import QueueId
from kproxy.worker.request import Request
from kproxy.worker.worker import Worker
from tests.fakes import MemoryShard
from tests.simulation import virtual_time
from tests.simulation.groups.truth import Part, Truth
from tests.simulation.owners import UNKNOWN, OwnedShard, OwnedWorld, Owner

Handler = Callable[[Any, Request], Awaitable[Any]]
NAMES = ("a", "b", "c")
SESSION_S = 4.0
_SOON_S, _LATE_S = (0.0, 0.001, 0.01, 0.05), (0.5, 2.0, 4.0)
_PARTITIONS_MAX = 7
_MS = {
    "group_initial_rebalance_delay_ms": 500,
    "group_session_ms_min": 1,
    "group_consumer_session_ms": int(SESSION_S * 1000),
    "group_consumer_min_session_timeout_ms": 1,
    "group_consumer_heartbeat_ms": 500,
    "group_consumer_min_heartbeat_interval_ms": 1,
    "group_share_session_timeout_ms": int(SESSION_S * 1000),
    "group_share_min_session_timeout_ms": 1,
    "group_share_heartbeat_interval_ms": 500,
    "group_share_min_heartbeat_interval_ms": 1,
}


class GroupShard(OwnedShard):
    _owner: "Life"

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        if not self.serving or not self._owner.alive:
            ticket.set_error(KafkaError(Code.NOT_LEADER_OR_FOLLOWER))
            return ticket
        parts = [Ticket([envelope]) for envelope in envelopes]
        done = after(
            len(parts), lambda: ticket.set_outcomes([o for p in parts for o in p.outcomes()])
        )
        for part in parts:
            part.add_done_callback(done)
            self._owner.send(part.envelopes[0], part)
        return ticket


class _Routes:
    """The way to the one shard."""

    shards = 1

    def __init__(self, shard: GroupShard) -> None:
        self._shard = shard

    def serving(self, index: int) -> GroupShard | None:
        return self._shard if self._shard.serving else None

    def all(self) -> list[GroupShard]:
        return [self._shard] if self._shard.serving else []

    def submit(self, name: str, envelope: Envelope) -> Ticket:
        return self._shard.append([envelope])

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        return self._shard.append(envelopes)

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        return self._shard.append([envelope])

    async def wait_for_catalogue(self, names: Iterable[str | None]) -> None:
        pass


class Life(Owner):
    """One life of a worker."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number)
        self.shard = GroupShard(self)
        routes: Any = _Routes(self.shard)
        self.alive = True
        self.worker = Worker(
            config=world.config, cluster=SingleNode(cluster_id="", me=Broker(0, "", 0)),
            routes=routes, lookup=StateLookup(self.shard.state),
            clock=Clock(world.now_ms, virtual_time.monotonic),
        )  # fmt: skip
        groups = self.worker.groups
        groups.services = groups.services._replace(unique_id=lambda: next(world.ids))
        self.tasks: Any = None
        for envelope in world.log:
            self.take(envelope)

    def works(self) -> Sequence[Any]:
        return [self.worker.groups.run, self._serve]

    async def _serve(self) -> None:
        async with anyio.create_task_group() as self.tasks:
            await anyio.sleep_forever()

    def crash(self) -> None:
        """End. Calls that are shielded from a client's end wait for the log no more."""
        self.alive = False
        super().crash()
        tickets, self.tickets = self.tickets, {}
        for ticket in tickets.values():
            ticket.set_outcomes([UNKNOWN])


class Line:
    """A client's connections: what it sends arrives in order."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._last = 0.0

    async def ask(
        self, life: Life, handler: Handler, version: int, body: Any, patience_s: float
    ) -> Any:
        """Return the answer; None if none comes."""
        world, answers, answered = self._world, list[Any](), anyio.Event()
        header: Any = SimpleNamespace(client_id="c", api_version=version)
        request = Request(header=header, body=body)

        async def serve() -> None:
            answer = await handler(life.worker, request)
            if not life.alive:
                return
            if world.dice(0.03):
                world.happened["answer to a member lost"] += 1
                return
            await anyio.sleep(world.delay_s())
            answers.append(answer)
            answered.set()

        async def arrive(at: float) -> None:
            await anyio.sleep_until(at)
            if life.alive and life.tasks is not None and not world.dice(0.03):
                life.tasks.start_soon(serve)
            else:
                world.happened["request of a member lost"] += 1

        self._last = max(self._last + 1e-6, anyio.current_time() + world.delay_s())
        world.tasks.start_soon(arrive, self._last)
        with anyio.move_on_after(patience_s):
            await answered.wait()
        if not answers:
            world.happened["member lost patience"] += 1
        return answers[0] if answers else None


class World(OwnedWorld[Life]):
    """The log, the workers and the queues."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        interval_ms = self.rng.choice((0, 300, 1500))
        self.config = Config(
            group_consumer_assignment_interval_ms=interval_ms,
            group_share_assignment_interval_ms=interval_ms,
            **_MS,
        )
        self.ids = itertools.count()
        self.folded = MemoryShard(shared=True)
        self.names: dict[bytes, str] = {}
        self.truth = Truth(self.names)
        self.faults: list[AssertionError] = []
        self.slow = self.rng.choice((0.0, 0.02, 0.08))
        for name in NAMES:
            queue_id = QueueId(name.encode() * 16)
            self.names[bytes(queue_id)] = name
            made = CreateQueue(queue_id, name, self.rng.randrange(1, 4), {})
            self.land(made.envelope())

    def now_ms(self) -> int:
        try:
            return int(virtual_time.monotonic() * 1000) + 10**12
        except RuntimeError:
            return 10**12

    def apply(self, envelope: Envelope) -> Outcome:
        outcome = self.folded.apply(envelope)
        with self.noted():
            self.truth.take(envelope, outcome)
        return outcome

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a fault, which ends the run: where it is seen it would end one task alone."""
        try:
            yield
        except AssertionError as error:
            self.faults.append(error)

    def new_worker(self, number: int) -> Life:
        return Life(self, number)

    def dice(self, chance: float) -> bool:
        return self.trouble and self.rng.random() < chance

    def delay_s(self) -> float:
        return self.rng.choice(_LATE_S if self.dice(self.slow) else _SOON_S)

    def somebody(self) -> Life | None:
        """Return a worker that a client takes for the coordinator; it may be so no more."""
        owners = self.owners()
        if self.dice(0.05) or not owners:
            return self.rng.choice(self.workers) if self.workers else None
        return self.rng.choice(owners)

    def parts(self, names: Iterable[str]) -> frozenset[Part]:
        """Return the partitions of queues."""
        queues = [self.folded.state.queue(name) for name in names]
        return frozenset((q.name, i) for q in queues if q is not None for i in range(q.partitions))

    async def grow(self) -> None:
        while self.trouble:
            await anyio.sleep(self.rng.choice((3.0, 9.0)))
            queue = self.folded.state.queue(self.rng.choice(NAMES))
            if queue is not None and queue.partitions < _PARTITIONS_MAX:
                self.land(GrowQueue(queue.queue_id, queue.partitions + 1).envelope())
                self.happened["queue grown"] += 1

    async def settle(self) -> None:
        """End the trouble, with one owner that stays."""
        self.trouble = False
        for worker in self.workers:
            worker.stalled_until = 0.0
        await anyio.sleep(12)
        if len(self.owners()) != 1:
            self.rng.choice(self.workers).claim()
            await anyio.sleep(3)
