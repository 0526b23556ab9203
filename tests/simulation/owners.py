"""Owners of one shard and their log: they are late, killed, and deposed without knowing it.

An owner's appends arrive in their order, late, once or twice, or not at all, and the owner may
never hear which.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from kproxy.common.errors import Code
from kproxy.log.base import Ticket
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.outcome import Outcome
from tests.fakes import MemoryShard

UNKNOWN = Outcome(Code.REQUEST_TIMED_OUT)
_SOON_S = (0.0, 0.0, 0.001, 0.005, 0.02, 0.1)


class OwnedShard(MemoryShard):
    """An owner's copy of the shard; its appends go to the world's log."""

    def __init__(self, owner: "Owner", *where: int) -> None:
        super().__init__(*where, shared=True)
        self._owner = owner
        self.serving, self.claim_offset = False, -1

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        (envelope,) = envelopes
        self._owner.send(envelope, ticket)
        return ticket


class Owner:
    """One life of an owner."""

    shard: OwnedShard

    def __init__(self, world: Any, number: int) -> None:
        self.world, self.number = world, number
        self.rng: random.Random = world.rng
        self.counter = 0
        self.tickets: dict[int, Ticket] = {}
        self.more_to_send = anyio.Event()
        self.outgoing: list[Envelope] = []
        self.stalled_until = 0.0
        self.claiming = False
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            async with anyio.create_task_group() as tasks:
                for work in (*self.works(), self.follow_log, self.sending):
                    tasks.start_soon(work)

    def works(self) -> Sequence[Any]:
        """Return the tasks of an owner besides its log."""
        raise NotImplementedError

    def crash(self) -> None:
        self.scope.cancel()

    async def nap(self) -> None:
        """Wait a little, or as long as the owner stands still."""
        left = self.stalled_until - anyio.current_time()
        await anyio.sleep(left if left > 0 else self.rng.choice(_SOON_S))

    def send(self, envelope: Envelope, ticket: Ticket | None = None) -> None:
        self.counter += 1
        envelope.writer, envelope.counter = self.number, self.counter
        if ticket is not None:
            self.tickets[self.counter] = ticket
        self.outgoing.append(envelope)
        self.more_to_send.set()

    def claim(self) -> None:
        """Claim the shard, unless this worker owns it, as far as it knows, or has claimed it."""
        if not self.shard.serving and not self.claiming:
            self.claiming = True
            self.send(Claim().envelope())

    async def sending(self) -> None:
        """Send in order, as an idempotent producer; an append that is given up may have arrived."""
        while True:
            while self.outgoing:
                await self.nap()
                envelope = self.outgoing.pop(0)
                dice = self.rng.random() if self.world.trouble else 1.0
                if dice >= 0.02:
                    self.world.land(envelope)
                if dice < 0.04:
                    self.world.happened["an append lost" if dice < 0.02 else "its answer lost"] += 1
                    self.give_up(envelope)
                elif dice < 0.08 and envelope.kind != Kind.CLAIM:  # once more, some time
                    self.world.happened["an append sent again"] += 1
                    self.outgoing.insert(self.rng.randrange(self.last_place() + 1), envelope)
            self.more_to_send = anyio.Event()
            await self.more_to_send.wait()

    def last_place(self) -> int:
        """Return the last place for a copy among the envelopes that are still to be sent."""
        return len(self.outgoing)

    def give_up(self, envelope: Envelope) -> None:
        if envelope.kind == Kind.CLAIM:
            self.claiming = False
        ticket = self.tickets.pop(envelope.counter, None)
        if ticket is not None:
            ticket.set_outcomes([UNKNOWN])

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
        shard, offset = self.shard, len(self.shard.log)
        mine = envelope.writer == self.number
        if envelope.kind == Kind.CLAIM:
            shard.serving = mine
            if mine:
                self.claiming = False
                shard.claim_offset = offset
        self.answer(envelope, shard.apply(envelope))

    def answer(self, envelope: Envelope, outcome: Outcome) -> None:
        """Give an append that is this owner's its outcome."""
        mine = envelope.writer == self.number
        ticket = self.tickets.pop(envelope.counter, None) if mine else None
        if ticket is not None:
            ticket.set_outcomes([outcome])


AnOwner = TypeVar("AnOwner", bound=Owner)


class OwnedWorld(Generic[AnOwner]):
    """The log and its owners. `trouble`: whether anything goes wrong."""

    tasks: TaskGroup

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.trouble = True
        self.log: list[Envelope] = []
        self.landed = anyio.Event()
        self.workers: list[AnOwner] = []
        self.lives = 0
        self.happened: Counter[str] = Counter()

    def new_worker(self, number: int) -> AnOwner:
        """Return an owner that has read the log."""
        raise NotImplementedError

    def apply(self, envelope: Envelope) -> Outcome:
        """Apply an envelope to the truth."""
        raise NotImplementedError

    def land(self, envelope: Envelope) -> Outcome:
        """Append an envelope to the log, where it is durable."""
        if envelope.kind == Kind.CLAIM and self.trouble:
            others = [one for one in self.owners() if one.number != envelope.writer]
            amid = any(one.tickets for one in others)
            self.happened["taken over amid appends" if amid else "taken over"] += 1
            self.happened["taken over from several"] += len(others) > 1
        self.log.append(envelope)
        outcome = self.apply(envelope)
        landed, self.landed = self.landed, anyio.Event()
        landed.set()
        return outcome

    def start_worker(self) -> AnOwner:
        self.lives += 1
        worker = self.new_worker(self.lives)
        self.workers.append(worker)
        self.tasks.start_soon(worker.run)
        return worker

    def start(self, *works: Any) -> None:
        """Start two owners, of which one claims the shard, and the work."""
        for _ in range(2):
            self.start_worker()
        self.workers[0].claim()
        for work in (self.claims, *works):
            self.tasks.start_soon(work)

    def owners(self) -> list[AnOwner]:
        """Return the workers that think they own the shard."""
        return [worker for worker in self.workers if worker.shard.serving]

    async def claims(self) -> None:
        """Take the shard over, crash and stand still."""
        while self.trouble:
            await anyio.sleep(self.rng.choice((0.5, 2.0, 6.0)))
            worker = self.rng.choice(self.workers)
            dice = self.rng.random()
            if dice < 0.3:
                self.happened["crashed amid appends" if worker.tickets else "crashed"] += 1
                worker.crash()
                self.workers.remove(worker)
                worker = self.start_worker()
            elif dice < 0.6:
                self.happened["owner stalled" if worker.shard.serving else "other stalled"] += 1
                worker.stalled_until = anyio.current_time() + self.rng.choice((0.3, 1.5, 5.0))
                worker = self.rng.choice(self.workers)
            worker.claim()
