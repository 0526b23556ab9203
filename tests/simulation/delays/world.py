"""Delays over a log that loses, keeps back and repeats; workers whose clocks jump; and the truth.

D1: no record is seen before it is due, by the clock of who delivers it, and each is seen once.
D2: what waits together is seen in the order in which it is due; with a fixed delay, as it came.
D3: all of this over takeovers, crashes, rebuilt state and deletions; and in the end nothing waits.
"""

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.delays.delays import Delays
from kproxy.delays.looker import Looker, Means
from kproxy.delays.splitting import Split, split
from kproxy.handlers.produce import delaying
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.metadata.queue_settings import settings_of
from kproxy.protocol.batch import HEADER_BYTES, BadBatch, read_header
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, content_of_body, header
from kproxy.protocol.records import bodies, unpacked
from kproxy.virtual.commands.delays import Due, Later
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import delays as delay_rows
from kproxy.virtual.rows.delays import WAITING_BATCHES
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.present import present
from tests.simulation.twice import fold_twice
from tests.wire import batch

DAY_MS = 24 * 3600 * 1000
START_MS = 1_800_000_000_000
STEPS = 150
_LOST, _UNCERTAIN = 0.05, 0.05
_JUMPS = (1, 1, 20, 20, 50, 1000, 60_000, 3_600_000)
FIXED, HEADER, BOTH = (
    {"kproxy.delay.ms": "5000"}, {"kproxy.delay": "header"},
    {"kproxy.delay": "header", "kproxy.delay.ms": "3000", "compression.type": "zstd"},
)  # fmt: skip


class SimShard(MemoryShard):
    """A worker's copy of the shard: it appends to the world's log, and folds what is there."""

    def __init__(self, world: "World", writer: int) -> None:
        super().__init__()
        self._world = world
        self.writer = writer
        self.claim_offset = writer
        self.is_zombie = False  # it does not see that another has taken over
        self.on_delayed: Any = None

    def follow(self) -> None:
        for envelope in self._world.log[len(self.log) :]:
            self.apply(envelope)

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        for one in envelopes:
            one.writer, one.counter = self.writer, self._world.planned_at.get(self.writer, 0)
        dice = self._world.rng.random()
        if dice < _LOST + _UNCERTAIN:
            if dice < _UNCERTAIN:
                self._world.late.append(list(envelopes))
            ticket.set_error(KafkaError(Code.KAFKA_STORAGE_ERROR))
            return ticket
        first = self._world.land(envelopes)
        if self.is_zombie:
            ticket.set_error(KafkaError(Code.NOT_LEADER_OR_FOLLOWER))
        else:
            self.follow()
            ticket.set_outcomes(self._world.outcomes[first : first + len(envelopes)])
        return ticket


class SimWorker:
    """A worker that serves the shard, or thinks so."""

    def __init__(self, world: "World", writer: int, off_ms: int) -> None:
        self.shard: Any = SimShard(world, writer)
        self._world = world
        self.off_ms = off_ms
        clock = Clock(now_ms=self.now_ms)
        queues = SimpleNamespace(find_id=self.shard.state.queue_by_id)
        config = Config()
        self.delays = Delays(lambda: [self.shard], queues, config, clock)
        self.looker = Looker(self.shard, Means(queues, config, clock))

    def now_ms(self) -> int:
        return self._world.now_ms + self.off_ms

    async def look(self) -> bool:
        """Look as long as there is more; return whether nothing failed."""
        for _ in range(500):
            self._world.planned_at[self.shard.writer] = len(self.shard.log)
            try:
                if not await self.looker.scan_once():
                    return True
            except KafkaError:
                self.looker._retry()
                return False
        raise AssertionError("it never ends")


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        self.log: list[Envelope] = []
        self.outcomes: list[Outcome] = []
        self.late: list[list[Envelope]] = []
        self.planned_at: dict[int, int] = {}
        self.truth = MemoryShard()  # the fold of all of the log
        self.writers = 0
        self.queues: dict[QueueId, dict[str, str]] = {}
        self.deleted: set[QueueId] = set()
        self.dues: dict[bytes, tuple[int, int, int]] = {}  # by value: due, log offset, fixed delay
        self.seen: dict[PartitionKey, list[bytes]] = {}
        self.values = self.jumps = self.takeovers = self.retried = self.split = 0
        self.sequences: dict[PartitionKey, int] = {}
        self.became: Counter[str] = Counter()
        self.deposed: list[SimWorker] = []
        self.worker = self.take_over()

    # -- the log

    def land(self, envelopes: Sequence[Envelope]) -> int:
        first = len(self.log)
        for one in envelopes:
            copy = Envelope(
                one.kind, one.queue_id, one.partition, number=one.number, time_ms=one.time_ms,
                body=bytes(one.body), writer=one.writer, counter=one.counter,
            )  # fmt: skip
            key: PartitionKey = (copy.queue_id, copy.partition)
            before = self.ends(key)
            outcome = self.truth.apply(copy)
            self.log.append(copy)
            self.outcomes.append(outcome)
            if self.ends(key) != before or outcome.number > 0:
                self.check(key, copy, outcome)
        return first

    def ends(self, key: PartitionKey) -> list[int]:
        """Return the ends of the visible and of the waiting records."""
        found = [self.truth.state.partition(one) for one in (key, delay_rows.hidden(key))]
        return [0 if row is None else row.next_offset for row in found]

    def check(self, key: PartitionKey, one: Envelope, outcome: Outcome) -> None:
        """Hold what became visible, or waits from now on, against the truth."""
        order = self.seen.setdefault(key, [])
        if one.kind == Kind.APPEND:
            order += [value for _, value in self.records(bytes(one.body))]
        elif one.kind == Kind.LATER:
            asked = Later.decode(one)
            for at, size in asked.later:
                for due_ms, value in self.records(bytes(one.body[at : at + size])):
                    self.dues[value] = (due_ms, len(self.log) - 1, asked.delay_ms)
            if asked.now is not None:
                at, size = asked.now
                order += [value for _, value in self.records(bytes(one.body[at : at + size]))]
        elif one.kind == Kind.DUE and outcome.number >= 0:
            self.is_seen(Due.decode(one), one)

    def is_seen(self, due: Due, one: Envelope) -> None:
        planned_at, last_ms = one.counter, 0
        for at, size in due.now:
            head = read_header(one.body, at)
            assert head.is_log_append_time
            assert head.max_timestamp == one.time_ms
            for _, value in self.records(bytes(one.body[at : at + size])):
                due_ms, _, _ = self.dues[value]
                assert due_ms <= one.time_ms, f"{value!r} is early by {due_ms - one.time_ms} ms"
                last_ms = max(last_ms, due_ms)
                order = self.seen.setdefault(due.key, [])
                assert value not in order, f"{value!r} is seen twice"
                order.append(value)
        for key, _ in self.truth.kv.scan(*delay_rows.waiting_range(due.key)):
            due_ms, last_offset = WAITING_BATCHES.parts(key)[1:]
            stored = present(self.truth.state.batch_at(delay_rows.hidden(due.key), last_offset))
            if due_ms < last_ms:
                assert stored.log_offset >= planned_at, "something that was due before waits on"

    def records(self, data: bytes) -> list[tuple[int, bytes]]:
        """(time, value) of each."""
        head = read_header(data)
        return [
            (time_ms, content_of_body(body).value or b"")
            for _, time_ms, _, body, _ in bodies(head, unpacked(data), headers=False)
        ]

    # -- what happens

    def take_over(self) -> SimWorker:
        self.writers += 1
        worker = SimWorker(self, self.writers, self.rng.choice((0, 0, -30, 40, 700)))
        claim = Claim().envelope()
        claim.writer = self.writers
        self.land([claim])
        worker.shard.follow()
        return worker

    async def run(self) -> None:
        for _ in range(STEPS):
            await self.step()
        await self.end()
        self.became = fold_twice(self.log, shared=False, seed=self.seed)

    def counted(self) -> Counter[str]:
        """Return how often what happened."""
        names = ("jumps", "takeovers", "retried", "split")
        return self.became + Counter({name: getattr(self, name) for name in names})

    async def step(self) -> None:
        dice = self.rng.random()
        if not self.queues or dice < 0.04:
            self.create()
        elif dice < 0.05:
            self.delete()
        elif dice < 0.09:
            self.jump()
        elif dice < 0.13:
            self.depose()
        elif dice < 0.18 and self.late:
            self.land(self.late.pop(self.rng.randrange(len(self.late))))
            self.worker.shard.follow()
        elif dice < 0.20 and self.deposed:
            await self.rng.choice(self.deposed).look()
            self.worker.shard.follow()
        elif dice < 0.65:
            self.produce()
        else:
            self.now_ms += self.rng.choice(_JUMPS)
            await self.look()

    async def look(self) -> None:
        """Look; a record that was due at its begin is delivered, or failed to be appended."""
        now_ms, end = self.worker.now_ms(), len(self.log)
        if await self.worker.look():
            for queue in self.queues.keys() - self.deleted:
                key: PartitionKey = (queue, 0)
                left = [
                    WAITING_BATCHES.parts(found)[1:]
                    for found, _ in self.truth.kv.scan(*delay_rows.waiting_range(key))
                ]
                assert not [1 for due_ms, _ in left if due_ms <= now_ms], f"left before {end}"

    def jump(self) -> None:
        """Put a worker's clock forward or back, by less than an hour."""
        self.jumps += 1
        self.worker.off_ms = self.rng.choice((-1_500_000, -1000, -30, 30, 1000, 1_500_000))

    def depose(self) -> None:
        """Have another worker take the shard over; the one before may not know, or is gone."""
        self.takeovers += 1
        if self.rng.random() < 0.5:
            self.deposed = [*self.deposed[-1:], self.worker]
            self.worker.shard.is_zombie = True
        self.worker = self.take_over()

    def create(self) -> None:
        configs = self.rng.choice((FIXED, HEADER, BOTH))
        queue = QueueId(bytes([len(self.queues) + 1]) * 16)
        self.queues[queue] = configs
        made = CreateQueue(queue, f"q{len(self.queues)}", 1, configs)
        self.land([made.envelope()])
        self.worker.shard.follow()

    def delete(self) -> None:
        queue = self.rng.choice(list(self.queues))
        self.deleted.add(queue)
        self.land([DeleteQueue(queue).envelope()])
        self.worker.shard.follow()

    def produce(self) -> None:
        """Append a batch as the Produce handler does."""
        living = list(self.queues.keys() - self.deleted)
        if not living:
            return
        queue = self.rng.choice(sorted(living))
        key: PartitionKey = (queue, 0)
        settings = settings_of(self.queues[queue])
        sent = self.batch_for(key, settings.demands.codec or 0)
        head, now_ms = read_header(sent), self.worker.now_ms()
        found: Split | None = None
        assert settings.delay is not None
        if settings.delay.by_header:
            found = split(head, sent, unpacked(sent), settings.delay, now_ms, 1 << 20)
        if delaying.waits(settings, head, found):
            worker: Any = SimpleNamespace(delays=self.worker.delays, level=self.worker.shard.level)
            try:
                made = delaying.later(
                    worker, self.worker.shard, key, settings, sent, head, found, now_ms, 0
                )
            except BadBatch as error:
                raise AssertionError(str(error)) from error
            self.split += found is not None and not found.whole
        else:
            made = Envelope(Kind.APPEND, *key, body=sent)
        ticket = self.worker.shard.append([made])
        while ticket.error is not None or self.rng.random() < 0.15:
            self.retried += 1
            ticket = self.worker.shard.append([made])
        assert ticket.outcomes()[0].code == Code.NONE

    def batch_for(self, key: PartitionKey, codec: int) -> bytes:
        pieces = []
        for _ in range(self.rng.choice((1, 1, 2, 5, 90))):
            self.values += 1
            dice, more = self.rng.random(), []
            if dice < 0.5:
                ahead = self.rng.choice((0, 30, 1000, self.rng.randrange(10_000), DAY_MS // 24))
                more = [header("kproxy.delay-ms", str(ahead))]
            elif dice < 0.7:
                at = self.worker.now_ms() + self.rng.randrange(-1000, DAY_MS)
                more = [header("kproxy.deliver-at", str(at))]
            value = b"%d" % self.values
            pieces.append((body_of(Content(None, value), more), self.worker.now_ms()))
        made = batch_of_bodies(pieces, codec)
        sequence = self.sequences.get(key, 0)
        self.sequences[key] = sequence + len(pieces)
        times = tuple(time_ms for _, time_ms in pieces)
        return batch(
            *[b""] * len(pieces), times=times, attributes=codec, packed=made[HEADER_BYTES:],
            producer_id=7, epoch=0, sequence=sequence,
        )  # fmt: skip

    # -- in the end

    async def end(self) -> None:
        """Time goes by, nothing fails any more: all is seen, each once."""
        self.late.clear()
        self.deposed.clear()
        self.worker.off_ms = 0
        for _ in range(60):
            self.now_ms += DAY_MS // 12
            while not await self.worker.look():
                pass
        self.worker.shard.follow()
        for value, (_, landed, _) in self.dues.items():
            queue = self.log[landed].queue_id
            if queue not in self.deleted:
                assert self.seen[queue, 0].count(value) == 1, f"{value!r} is not seen"
        for queue in self.queues.keys() - self.deleted:
            self.is_ordered((queue, 0))
        assert not [key for key in self.truth.kv.rows if key[:1] == b"Y" and self.lives(key)]

    def lives(self, key: bytes) -> bool:
        return _partition_of(key)[0] not in self.deleted

    def is_ordered(self, key: PartitionKey) -> None:
        """Check that records with a fixed delay are seen in the order of their arrival."""
        fixed = [self.dues[v] for v in self.seen.get(key, ()) if v in self.dues]
        landed = [at for _, at, delay_ms in fixed if delay_ms]
        assert landed == sorted(landed), "the order of arrival is lost"


def _partition_of(key: bytes) -> PartitionKey:
    return QueueId(key[1:17]), int.from_bytes(key[17:21], "big")
