"""Dead letters of a shard whose owner changes at any moment, and what is true of them.

Two shards: in shard 0 records are archived, and dead-letter queues have partitions in both. Owners
of shard 0 are late, killed, and deposed without knowing it. Their appends there come in order,
once or twice or not at all. Their appends to shard 1 come at once, late, twice, or never, and the
sender hears of it or not. Dead-letter queues grow, and groups are given others. The sender is the
real one (`kproxy.shares.dead_letters`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import anyio

from kproxy.common.counters import Counters
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.metadata.catalogue import Catalogue, QueueIds
from kproxy.metadata.group_settings import GroupSettings
from kproxy.protocol.batch import read_header
from kproxy.protocol.made_batches import content_of
from kproxy.protocol.records import keyed_records, unpacked
from kproxy.protocol.varint import read_varlong
from kproxy.shares.dead_letter_targets import ENABLE
from kproxy.shares.dead_letters import DeadLetters
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import AssignPartitions
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.shares import (
    EARLIEST,
    OWED,
    Cause,
    ChangeShares,
    Run,
    SetShares,
    ShareAction,
    ShareChange,
    ShareRuns,
)
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.rows.shares import DEAD_LETTERS, RecordState, state_byte
from kproxy.virtual.types import LogOffset, PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.present import present
from tests.simulation import virtual_time
from tests.simulation.owners import UNKNOWN, OwnedShard, OwnedWorld, Owner
from tests.simulation.twice import fold_twice
from tests.wire import keyed

SHARDS = 2
GROUPS = ("g", "h")
SOURCE, TARGETS = "source", ("dlq.a", "dlq.b")
_CAUSES = (Cause.REJECTED, Cause.DELIVERY_LIMIT)
_LATE_S = (0.0, 0.0, 0.01, 0.1, 1.0, 5.0, 25.0)


class Letter(NamedTuple):
    """A record of a dead-letter queue."""

    queue: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


def id_of(name: str) -> QueueId:
    return QueueId(name.encode().ljust(16, b"-"))


def headers_of(data: bytes, count: int) -> dict[str, str]:
    found, at = {}, 0
    for _ in range(count):
        parts = []
        for _ in range(2):
            size, at = read_varlong(data, at, len(data))
            parts.append(data[at : at + size].decode())
            at += size
        found[parts[0]] = parts[1]
    assert at == len(data)
    return found


def letters_in(shard: Any, name: str, key: PartitionKey) -> Iterator[Letter]:
    """Yield the records of one partition of a dead-letter queue, in order."""
    row = shard.state.partition(key)
    if row is None:
        return
    for _, stored in shard.state.batches(key, row.log_start, row.next_offset):
        data = memoryview(bytearray(stored.length))
        shard.segments.read_into(data, stored.segment, stored.position, True)
        for one in keyed_records(read_header(data), unpacked(data)):
            content = content_of(one.data)
            headers = headers_of(content.header_bytes, content.headers)
            yield Letter(name, key[1], content.key, content.value, headers)


class Queues:
    """The catalogue, as all workers have it announced."""

    changes = 0

    def __init__(self) -> None:
        self.by_name: dict[str, Queue] = {}

    def put(self, name: str, queue_id: QueueId, partitions: int, **configs: str) -> None:
        nothing = LogOffset(0)
        self.by_name[name] = Queue(
            name=name, queue_id=queue_id, partitions=partitions, wanted=partitions,
            created_at=nothing, changed_at=nothing, configs=configs,
        )  # fmt: skip

    def find(self, name: str) -> Queue | None:
        return self.by_name.get(name)

    def find_id(self, queue_id: QueueId) -> Queue | None:
        return next((one for one in self.by_name.values() if one.queue_id == queue_id), None)

    def all(self, first: str = "") -> Iterator[Queue]:
        return iter(self.by_name.values())

    def rows(self, first: str = "") -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def group_row(self, group: str) -> bytes | None:
        return None

    def configured_groups(self) -> Iterator[str]:
        return iter(())


def monotonic() -> float:
    """Return the loop's time, where there is a loop."""
    try:
        return virtual_time.monotonic()
    except RuntimeError:
        return 0.0


def dead_letters(shards: Any, routes: Any, world: Any, **config: Any) -> DeadLetters:
    """Make one over `world.queues` and `world.settings`; `world.submit` makes queues."""
    catalogue: Catalogue[Ticket] = Catalogue(world.queues, world.submit, 1, QueueIds(SHARDS))
    return DeadLetters(
        shards, routes, world.settings.__getitem__, catalogue, Config(**config), Counters(),
        Clock(now_ms=lambda: 1_700_000_000_000, monotonic=monotonic),
    )  # fmt: skip


class Life(Owner):
    """One life of an owner of shard 0. It is the way to all logs, for its dead letters."""

    shards = SHARDS

    def __init__(self, world: "DeadWorld", number: int) -> None:
        super().__init__(world, number)
        self.shard = OwnedShard(self, 0, SHARDS)
        shard: Any = self.shard
        self.dead = dead_letters(
            lambda: [shard] if shard.serving else [], self, world, **world.config
        )
        for envelope in world.log:
            self.take(envelope)

    def works(self) -> Sequence[Any]:
        return [self.dead.run]

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        if index == 0:
            if self.shard.serving:
                return self.shard.append([envelope])
            return self.world.arrive(self.world.land, envelope)
        return self.world.arrive(self.world.elsewhere.apply, envelope)


class DeadWorld(OwnedWorld[Life]):
    """The logs of both shards, the owners of one, and what they owe."""

    def __init__(self, seed: int, **config: Any) -> None:
        super().__init__(seed)
        self.config, rng = config, self.rng
        self.here = MemoryShard(0, SHARDS, shared=True)  # the fold of the log
        self.elsewhere = MemoryShard(1, SHARDS, shared=True)
        self.queues = Queues()
        self.version = 0
        self.settings = {
            group: GroupSettings(
                dead_letter_queue=rng.choice(TARGETS), dead_letter_copies_record=rng.random() < 0.7
            )
            for group in GROUPS
        }
        self.owed: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._rows: set[bytes] = set()
        self.seen: Counter[str] = Counter()
        self.spread(SOURCE, 4)
        for name in TARGETS:
            self.spread(name, 1, **{ENABLE: "true"})
        changes = [
            ShareChange(key, ShareAction.INITIALISE, 1, EARLIEST) for key in self.source_keys()
        ]
        for group in GROUPS:
            self.land(SetShares(group, changes, 1).envelope())

    def submit(self, name: str, envelope: Envelope) -> Ticket:
        raise AssertionError("no queue is to be made")

    def spread(self, name: str, partitions: int, **configs: str) -> None:
        """Give a queue so many partitions, and tell everybody."""
        self.version += 1
        told = AssignPartitions(id_of(name), name, partitions, self.version, 1).envelope()
        self.land(told)
        self.elsewhere.apply(told)
        self.queues.put(name, id_of(name), partitions, **configs)

    def source_keys(self) -> list[PartitionKey]:
        keys = [(id_of(SOURCE), index) for index in range(4)]
        return [key for key in keys if self.here.state.partition(key) is not None]

    def new_worker(self, number: int) -> Life:
        return Life(self, number)

    # -- logs

    def apply(self, envelope: Envelope) -> Outcome:
        outcome = self.here.apply(envelope)
        if envelope.kind == Kind.SHARE:
            for key, data in self.here.kv.scan(*RowKind.DEAD_LETTER.range()):
                if key not in self._rows:
                    self._rows.add(key)
                    one = DEAD_LETTERS.decode(data)
                    self.owed[one.group, one.key[1]] += range(one.first, one.first + one.records)
        return outcome

    def arrive(self, take: Any, envelope: Envelope) -> Ticket:
        """Send to another's log, or to one's own that is another's by now."""
        ticket = Ticket([envelope])
        self.tasks.start_soon(self._arrive, take, envelope, ticket)
        return ticket

    async def _arrive(self, take: Any, envelope: Envelope, ticket: Ticket) -> None:
        trouble = self.trouble
        dice = self.rng.random() if trouble else 1.0
        await anyio.sleep(self.rng.random() * 0.02)
        if dice < 0.15:  # nobody knows what becomes of it
            ticket.set_outcomes([UNKNOWN])
            self.seen["forward lost" if dice < 0.05 else "forward late"] += 1
            if dice < 0.05:
                return
            await anyio.sleep(self.rng.choice(_LATE_S))
        outcome = take(envelope)
        if not ticket.done:
            if trouble and self.rng.random() < 0.05:  # it is there, and that is not known
                outcome = UNKNOWN
                self.seen["forward not answered"] += 1
            ticket.set_outcomes([outcome])
        if trouble and self.rng.random() < 0.05:
            await anyio.sleep(self.rng.choice(_LATE_S))
            take(envelope)
            self.seen["forward sent again"] += 1

    # -- what happens

    async def settle(self) -> None:
        """End the trouble, with one owner that stays."""
        self.trouble = False
        await anyio.sleep(12)
        self.rng.choice(self.workers).claim()
        await anyio.sleep(3)
        if not self.owners():
            self.workers[0].claim()

    async def produce(self) -> None:
        while self.trouble:
            await anyio.sleep(self.rng.random())
            key = self.rng.choice(self.source_keys())
            row = present(self.here.state.partition(key))
            first, count = row.next_offset, self.rng.randrange(1, 6)
            values = [b"%d-%d" % (key[1], offset) for offset in range(first, first + count)]
            data = keyed(*[(b"k", value) for value in values], codec=self.rng.randrange(5))
            self.land(Envelope(Kind.APPEND, *key, body=data))
            if self.rng.random() < 0.05:
                self.land(Trim(*key, self.rng.randrange(row.next_offset), 9).envelope())

    async def archive(self) -> None:
        """Have owners say what becomes of records; deposed ones too."""
        while self.trouble:
            await anyio.sleep(self.rng.random() * 0.5)
            owners = self.owners()
            if not owners:
                continue
            owner, group = self.rng.choice(owners), self.rng.choice(GROUPS)
            asked = []
            for key in self.source_keys():
                row = owner.shard.state.partition(key)
                if row is None or not row.next_offset:
                    continue
                first = self.rng.randrange(row.next_offset)
                runs = []
                while first < row.next_offset and len(runs) < 3:
                    count = self.rng.randrange(1, min(8, row.next_offset - first + 1) + 1)
                    count = min(count, row.next_offset - first)
                    byte = state_byte(RecordState.ARCHIVED, self.rng.randrange(1, 5))
                    runs.append(Run(first, count, byte, self.rng.choice(_CAUSES) | OWED))
                    first += count + self.rng.randrange(3)
                asked.append(ShareRuns(key, 1, runs))
            shard: Any = owner.shard
            if asked and owner.dead.owes(shard, group):
                owner.send(ChangeShares(group, asked, 9).envelope())

    async def change(self) -> None:
        """Grow dead-letter queues, and give groups others."""
        while self.trouble:
            await anyio.sleep(self.rng.choice((1.0, 4.0)))
            if self.rng.random() < 0.4:
                name = self.rng.choice(TARGETS)
                queue = self.queues.by_name[name]
                self.spread(name, min(5, queue.partitions + 1), **{ENABLE: "true"})
                self.seen["queue grown"] += 1
            else:
                group = self.rng.choice(GROUPS)
                if self.rng.random() < 0.4:  # not for so long that what is owed is dropped
                    self.settings[group] = GroupSettings()
                    self.seen["nowhere to send to"] += 1
                    await anyio.sleep(self.rng.choice((1.0, 3.0)))
                self.settings[group] = GroupSettings(
                    dead_letter_queue=self.rng.choice(TARGETS),
                    dead_letter_copies_record=self.rng.random() < 0.7,
                )

    async def run(self, seconds: float = 40) -> None:
        """Run so long with trouble; then one owner gets everything done."""
        async with anyio.create_task_group() as self.tasks:
            self.start(self.produce, self.archive, self.change)
            await anyio.sleep(seconds)
            await self.settle()
            with anyio.move_on_after(200):
                while next(self.here.kv.scan(*RowKind.DEAD_LETTER.range()), None) is not None:
                    await anyio.sleep(0.1)
            await anyio.sleep(60)  # late envelopes land
            self.tasks.cancel_scope.cancel()

    # -- what is true

    def letters(self) -> Iterator[Letter]:
        for name, queue in self.queues.by_name.items():
            for index in range(queue.partitions if name != SOURCE else 0):
                shard = (self.here, self.elsewhere)[shard_of(name, SHARDS, index)]
                yield from letters_in(shard, name, (queue.queue_id, index))

    def check(self) -> None:
        left = list(self.here.kv.scan(*RowKind.DEAD_LETTER.range()))
        self.seen["owed"] = sum(map(len, self.owed.values()))
        assert not left, f"{len(left)} are still owed"
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        ordered: dict[tuple[str, int, str, int], list[int]] = defaultdict(list)
        for letter in self.letters():
            headers = letter.headers
            assert headers["__dlq.errors.topic"] == SOURCE
            index = int(headers["__dlq.errors.partition"])
            offset = int(headers["__dlq.errors.offset"])
            stream = headers["__dlq.errors.group"], index
            if letter.value is not None:
                assert letter.value == b"%d-%d" % (index, offset)
            found[stream].append(offset)
            ordered[letter.queue, letter.partition, *stream].append(offset)
        for stream in self.owed.keys() | found.keys():
            assert sorted(found[stream]) == sorted(self.owed[stream]), f"{stream} differs"
        for (*_, group, index), offsets in ordered.items():
            order = {offset: at for at, offset in enumerate(self.owed[group, index])}
            places = [order[offset] for offset in offsets]
            assert places == sorted(places), f"{group} {index} is out of order"


World = TypeVar("World", bound=DeadWorld)


def lived(world: World, seed: int, *, shuffled: bool) -> World:
    """Run a world to its end, check it, and fold its logs twice."""
    virtual_time.run(world.run, seed, shuffled=shuffled)
    world.check()
    for shard, log in enumerate((world.log, world.elsewhere.log)):
        world.seen += fold_twice(log, shard, SHARDS, seed=seed)
    world.seen += world.happened
    return world
