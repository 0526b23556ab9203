"""The simulated clients, and what they may rely on of their answers."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.metadata.catalogue import QueueIds
from kproxy.shard.appends import outcomes_of
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.types import QueueId, ShardId
from tests.commands import command
from tests.simulation.workers.cluster import World
from tests.simulation.workers.producers import Producers
from tests.simulation.workers.sim_worker import Life
from tests.wire import batch

NAMES = [f"q{i}" for i in range(5)]
GROUPS = [f"g{i}" for i in range(4)]
WITH_MEMBERS = GROUPS[:2]  # the others are of offsets alone
MEMBERS = [f"m{i}" for i in range(3)]
PATIENCE_S = 12.0
NEVER_MS = 2**50
_TIME_MS = 10**12
_NOT_SAID = frozenset(
    (Code.REQUEST_TIMED_OUT, Code.NOT_LEADER_OR_FOLLOWER, Code.KAFKA_STORAGE_ERROR)
)
"""The errors of a worker that does not know, or will not."""


class Clients:
    """All of them; `act` is one of them doing something."""

    def __init__(self, world: World, lives: Mapping[str, Life]) -> None:
        self._world = world
        self._rng: random.Random = world.rng
        self._lives = lives
        self._serial = 0
        self.producer_ids: set[int] = set()
        # Others get theirs from log offsets.
        self.producers = Producers(10**9) if world.conditions.transactions else Producers()
        self.leave_queues = False
        self.appended: dict[tuple[QueueId, int, int], bytes] = {}
        """The acknowledged batches, by queue, partition and base offset."""
        self.done: Counter[str] = Counter()
        self._acts: dict[Callable[[Life, str], Awaitable[None]], float] = {
            self._create: 0.10,
            self._delete: 0.05,
            self._change: 0.03,
            self._append: 0.10,
            self._commit: 0.16,
            self._produce: 0.36,
            self._trim: 0.06,
            self._group: 0.10,
            self._delete_group: 0.01,
            self._producer_id: 0.03,
        }

    async def act(self) -> None:
        assert not self._world.faults, self._world.faults[:3]
        life, name = self._life(), self._rng.choice(NAMES)
        if not life.began:
            return
        (act,) = self._rng.choices(list(self._acts), list(self._acts.values()))
        if self.leave_queues and act in (self._create, self._delete, self._change):
            return
        with anyio.move_on_after(PATIENCE_S), suppress(KafkaError):
            await act(life, name)

    def power_failed(self) -> None:
        """Drop what the cluster has lost although it had acknowledged it."""
        ends = {
            rows.partition_of(key): rows.decode_partition(data).next_offset
            for folded in self._world.folded
            for key, data in folded.of(b"p").items()
        }
        self.appended = {
            key: body for key, body in self.appended.items() if key[2] < ends.get(key[:2], 0)
        }
        self.producers = Producers(self.producers.first_id + 100)
        self.leave_queues = False

    # -- whom they ask, and what they are told

    def _life(self) -> Life:
        return self._rng.choice(list(self._lives.values()))

    def _served(self, name: str, index: int = 0) -> tuple[Life, Shard] | None:
        """Return a server of a partition or group: of two while one has not heard of the other."""
        number = shard_of(name, len(self._world.logs), index)
        alive = [life for life in self._lives.values() if life.alive]
        found = [(life, shard) for life in alive if (shard := life.serving(number)) is not None]
        return self._rng.choice(found) if found else None

    def _server(self, name: str, index: int = 0) -> Shard | None:
        served = self._served(name, index)
        return None if served is None else served[1]

    async def _ask(self, shard: Shard, envelope: Envelope) -> Outcome:
        (outcome,) = await shard.append([envelope]).wait()
        if outcome.code not in _NOT_SAID:
            assert outcome == self._truth(envelope), "answered otherwise than the log says"
        return outcome

    async def _ask_home(self, life: Life, name: str, envelope: Envelope) -> Code:
        (outcome,) = await outcomes_of([life.command_router.submit(name, envelope)])
        if outcome.code not in _NOT_SAID:
            truth = self._truth(envelope)
            assert truth is not None, "decided, but not in the log"
            assert outcome.code == truth.code, "decided otherwise than the log says"
        return outcome.code

    def _truth(self, envelope: Envelope) -> Outcome | None:
        return self._world.outcomes.get((envelope.writer, envelope.counter))

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    # -- queues

    async def _create(self, life: Life, name: str) -> None:
        shards = len(self._world.logs)
        values = {"name": name, "partitions": self._rng.choice((1, 1, 4)), "configs": {}}
        queue_id = QueueIds(shards, life.now_ms, self._rng.getrandbits).new(
            ShardId(shard_of(name, shards))
        )
        if not await self._ask_home(life, name, command(Kind.CREATE, queue_id, values=values)):
            self.done["created"] += 1

    async def _delete(self, life: Life, name: str) -> None:
        queue = life.cache.find(name)
        if queue is None:
            return
        if not await self._ask_home(life, name, command(Kind.DELETE, queue.queue_id)):
            self.done["deleted"] += 1
            other = self._life()
            await other.catalogue_barrier.wait()
            if other.alive and other.shards.serving_name(name) is None:
                assert other.cache.find_id(queue.queue_id) is None, "a deleted queue is found"

    async def _change(self, life: Life, name: str) -> None:
        queue = life.cache.find(name)
        if queue is None:
            return
        envelope = command(Kind.GROW, queue.queue_id, number=queue.partitions + 2)
        if self._rng.random() < 0.6:
            values = {"set": {"retention.ms": str(10**13 + self._rng.randrange(9))}, "drop": [],
                      "all": False}  # fmt: skip
            envelope = command(Kind.CONFIGURE, queue.queue_id, values=values)
        if not await self._ask_home(life, name, envelope):
            self.done["changed"] += 1

    # -- records

    def _partition(self, life: Life, name: str) -> tuple[QueueId, int, Shard | None] | None:
        queue = life.cache.find(name)
        if queue is None:
            return None
        index = self._rng.randrange(queue.partitions)
        return queue.queue_id, index, self._server(name, index)

    def _values(self) -> list[bytes]:
        serial = self._next()
        return [b"%d-%d" % (serial, i) * 40 for i in range(self._rng.randrange(1, 4))]

    async def _append(self, life: Life, name: str) -> None:
        match self._partition(life, name):
            case queue_id, index, Shard() as shard:
                values = self._values()
                body = batch(*values, times=(_TIME_MS,) * len(values))
                envelope = Envelope(Kind.APPEND, queue_id, index, body=body, number=NEVER_MS)
                outcome = await self._ask(shard, envelope)
                if not outcome.code:
                    self.appended[queue_id, index, outcome.number] = body
                    self.done["appended"] += 1

    async def _produce(self, life: Life, name: str) -> None:
        """Produce as an idempotent producer: one batch, again until it is acknowledged."""
        match self._partition(life, name):
            case queue_id, index, Shard() as shard:
                producer = self.producers.free((queue_id, index), self._rng)
                if producer is None:
                    return
                with producer.busy():
                    body = producer.batch(self._values)
                    base_offset = producer.sent_before(shard)
                    if base_offset is None:
                        base_offset = await self._send(shard, queue_id, index, body)
                    if base_offset is not None:
                        producer.acknowledged()
                        self.appended[queue_id, index, base_offset] = body
                        self.done["produced"] += 1

    async def _send(self, shard: Shard, queue_id: QueueId, index: int, body: bytes) -> int | None:
        times = 2 if self._rng.random() < self._world.conditions.sent_twice else 1
        envelopes = [
            Envelope(
                Kind.APPEND, queue_id, index, body=body, number=NEVER_MS, time_ms=_TIME_MS
            )
            for _ in range(times)
        ]  # fmt: skip
        for envelope in envelopes[1:]:
            shard.append([envelope])
        outcome = await self._ask(shard, envelopes[0])
        assert outcome.code not in (
            Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH,
        ), "what comes next in sequence is refused"  # fmt: skip
        return None if outcome.code else outcome.number

    async def _trim(self, life: Life, name: str) -> None:
        match self._partition(life, name):
            case queue_id, index, Shard() as shard:
                row = shard.state.partition((queue_id, index))
                if row is None:
                    return
                end = row.next_offset
                number = self._rng.choice((-1, end // 2, end, self._rng.randrange(end + 1)))
                envelope = command(Kind.TRIM, queue_id, index, number=number)
                if not (await self._ask(shard, envelope)).code:
                    self.done["trimmed"] += 1

    async def _producer_id(self, life: Life, name: str) -> None:
        shard = self._server(name)
        if shard is None:
            return
        outcome = await self._ask(shard, command(Kind.PRODUCER_ID))
        if not outcome.code:
            assert outcome.number not in self.producer_ids, "a producer id is given twice"
            self.producer_ids.add(outcome.number)
            self.done["identified"] += 1

    # -- groups

    async def _commit(self, life: Life, name: str) -> None:
        group = self._rng.choice(GROUPS)
        served = self._served(group)
        if served is None:
            return
        life, shard = served
        await life.shards.wait_for_catalogue([name])
        queue = life.cache.find(name)
        if queue is not None and shard.serving:
            deny = self._rng.random() < 0.5
            offset = self._rng.randrange(1000)
            offsets = [[queue.queue_id.hex(), 0, offset, -1, "", deny]]
            values = {"group": group, "offsets": offsets}
            outcome = await self._ask(shard, command(Kind.COMMIT, values=values))
            if outcome.codes == (Code.NONE,):
                self.done["committed"] += 1

    async def _group(self, life: Life, name: str) -> None:
        group = self._rng.choice(WITH_MEMBERS)
        shard = self._server(group)
        if shard is None:
            return
        data = shard.state.get(group_rows.group_key(group))
        after = -1 if data is None else group_rows.decode_group(data).version
        serial, members = self._next(), self._rng.choice((0, 0, 0, 1, 2))
        values = {
            "group": group, "after": after, "kind": "classic", "members": members,
            "values": {"generation": serial},
            "rows": {m: {"epoch": serial} if i < members else None
                     for i, m in enumerate(MEMBERS)},
        }  # fmt: skip
        envelope = command(Kind.GROUP, values=values, time_ms=_TIME_MS + serial)
        if not (await self._ask(shard, envelope)).code:
            self.done["grouped"] += 1

    async def _delete_group(self, life: Life, name: str) -> None:
        group = self._rng.choice(GROUPS)
        shard = self._server(group)
        if shard is not None:
            await self._ask(shard, command(Kind.DELETE_GROUP, values={"group": group}))
