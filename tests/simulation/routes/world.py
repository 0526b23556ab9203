"""Entrances and filters of a shard whose owner changes at any moment, and what is true of them.

Two shards: the sources are in shard 0, what they pass on goes to queues of both. Owners of shard 0
are late, killed, and deposed without knowing it. Their appends there come in order, once or
twice or not at all. Their appends to shard 1 come at once, late, twice, or never, and the sender
hears of it or not. Transactions are aborted, records trimmed, settings changed, sources, definers
and targets deleted and made again. Two entrances pass records to each other's names. The passages
are the real ones (`kproxy.routes`).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import anyio

from kproxy.common.counters import Counters
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.metadata.catalogue import Catalogue, QueueIds
from kproxy.protocol.batch import control_batch, read_header
from kproxy.protocol.made_batches import content_of_body
from kproxy.protocol.records import bodies, unpacked
from kproxy.routes.passages import Passages
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import ConfigureQueue, CreateQueue, DeleteQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.routes import DefineRoute
from kproxy.virtual.commands.transactions import Begin, Marker
from kproxy.virtual.folds.route_definitions import FILTER, FROM, FROM_START, TO, UNROUTABLE, spec_of
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.routes import ROUTES, decode_route
from kproxy.virtual.rows.transactions import tag_of
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.present import present
from tests.simulation.owners import OwnedShard, OwnedWorld, Owner
from tests.simulation.routes.dead_letters import (
    SHARDS,
    DeadWorld,
    Life,
    Queues,
    monotonic,
)
from tests.wire import TODAY_MS, batch, keyed, record

LOST = "lost"
PARTITIONS = 4  # an entrance's: half of them are in shard 0
_TRANSACTIONAL = 0x10


def _letters(shard: int, prefix: str, count: int) -> list[str]:
    """Return so many letters that make names of this shard, with this prefix."""
    return [c for c in "abcdefghijklmnopqrstuvwxyz" if shard_of(prefix + c, SHARDS) == shard][
        :count
    ]


SOURCE_KEYS = _letters(0, "in-", 2)
ENTRANCES = ["in-" + letter for letter in SOURCE_KEYS]
KEYS = [*[c.encode() for c in dict.fromkeys([*SOURCE_KEYS, *"abcdefgh"])], None, b"\xff"]
TEMPLATES = ("t-{key}", "u-{key}", "in-{key}")
FILTERS = [f"f{shard}-{_letters(shard, f'f{shard}-', 1)[0]}" for shard in range(SHARDS)]
FILTER_TEXTS = ("key:a|b|c", "key:c|d", "")


class Sent(NamedTuple):
    """A record that a client sent."""

    source: PartitionKey
    name: str
    offset: int
    key: bytes | None
    value: bytes
    committed: bool


class RouteShard(OwnedShard):
    def __init__(self, life: Any) -> None:
        super().__init__(life, 0, SHARDS)
        self.on_routed: Any = lambda: None

    def apply(self, envelope: Envelope) -> Outcome:
        outcome = super().apply(envelope)
        if self.state.routed:
            self.on_routed()
        return outcome


class RouteLife(Life):
    """One life of an owner of shard 0. It is the way to all logs, for its routes."""

    def __init__(self, world: "RouteWorld", number: int) -> None:  # without Life's dead letters
        Owner.__init__(self, world, number)
        self.shard = RouteShard(self)
        shard: Any = self.shard
        catalogue: Catalogue[Ticket] = Catalogue(world.queues, world.submit, 1, QueueIds(SHARDS))
        self.dead: Any = Passages(
            lambda: [shard] if shard.serving else [], self, catalogue, Config(), Counters(),
            Clock(now_ms=lambda: next(world.clock_ms), monotonic=monotonic),
        )  # fmt: skip
        for envelope in world.log:
            self.take(envelope)

    def send(self, envelope: Envelope, ticket: Ticket | None = None) -> None:
        super().send(envelope, ticket)
        if envelope.kind == Kind.CUT and self.world.trouble and self.rng.random() < 0.1:
            self.world.tasks.start_soon(self.send_again, envelope)

    async def send_again(self, envelope: Envelope) -> None:
        """Send a late copy, which other cuts may have overtaken."""
        await anyio.sleep(self.rng.random())
        self.outgoing.append(envelope)
        self.more_to_send.set()


class RouteWorld(DeadWorld):
    """The logs of both shards, the owners of one, and what went in."""

    entrances: Sequence[str] = ENTRANCES

    def __init__(self, seed: int) -> None:
        OwnedWorld.__init__(self, seed)
        self.here = MemoryShard(0, SHARDS, shared=True)
        self.elsewhere = MemoryShard(1, SHARDS, shared=True)
        self.queues = Queues()
        self.numbers = itertools.count(1)
        self.clock_ms = itertools.count(1_700_000_000_000)
        self.sent: list[Sent] = []
        self.epochs: dict[tuple[PartitionKey, QueueId], list[tuple[int, str, str]]] = defaultdict(
            list
        )
        """A route's epochs: (first offset, definer's name, template or filter; "": nowhere)."""
        self.trimmed: Counter[PartitionKey] = Counter()
        self.gone: set[QueueId] = set()
        self.archive: list[tuple[str, QueueId, list[tuple[str, bytes]]]] = []
        self.as_of = itertools.count(1)
        self.told_of: set[tuple[str, QueueId]] = set()
        self.seen: Counter[str] = Counter()
        for name in self.entrances:
            self.make_entrance(name)

    # -- logs

    def new_worker(self, number: int) -> Life:
        return RouteLife(self, number)

    def land(self, envelope: Envelope) -> Outcome:
        outcome = super().land(envelope)
        self.note(envelope, outcome)
        if envelope.kind == Kind.CLAIM and self.trouble:
            self.trim_under_way()
        return outcome

    def trim_under_way(self) -> None:
        """Trim records that a new owner has to ship again."""
        for key, data in list(self.here.kv.scan(*RowKind.ROUTE.range())):
            source, route = ROUTES.parts(key)[0], decode_route(data)
            if route.landed < route.cut and self.rng.random() < 0.6:
                self.trim(source, self.rng.randrange(route.landed, route.cut) + 1)

    def trim(self, key: PartitionKey, at: int) -> None:
        self.trimmed[key] = max(self.trimmed[key], at)
        self.land(Trim(*key, at, 9).envelope())

    def note(self, envelope: Envelope, outcome: Outcome) -> None:
        if envelope.kind == Kind.SHIP:
            self.seen["taken" if outcome.number > 0 else "void"] += 1
            if self.trouble and self.workers and self.rng.random() < 0.04:  # amid the parts
                self.rng.choice(self.workers).claim()
            for queue in outcome.made:
                self.follow_filters(queue.name)
        elif envelope.kind == Kind.CUT:
            self.seen["void cut" if outcome.code else "cut"] += 1

    def shard(self, name: str) -> Any:
        return (self.here, self.elsewhere)[shard_of(name, SHARDS)]

    def apply_in(self, name: str, envelope: Envelope) -> Outcome:
        """Apply an envelope in the home shard of a queue."""
        if shard_of(name, SHARDS) == 0:
            return self.land(envelope)
        return self.elsewhere.apply(envelope)

    # -- queues and routes

    def new_id(self) -> QueueId:
        return QueueId(b"queue%011d" % next(self.numbers))

    def delete(self, name: str) -> None:
        queue = self.shard(name).state.queue(name)
        if queue is not None:
            self.archive.append((name, queue.queue_id, list(self.records_in(name))))
            self.gone.add(queue.queue_id)
            self.apply_in(name, DeleteQueue(queue.queue_id).envelope())
            self.queues.by_name.pop(name, None)

    def make(self, name: str, partitions: int, **configs: str) -> QueueId:
        """Make a queue, anew where it is there."""
        self.delete(name)
        queue_id = self.new_id()
        self.apply_in(name, CreateQueue(queue_id, name, partitions, configs).envelope())
        self.queues.put(name, queue_id, partitions, **configs)
        return queue_id

    def sources(self, name: str) -> list[PartitionKey]:
        queue = self.here.state.queue(name)
        if queue is None:
            return []
        keys = [(queue.queue_id, index) for index in range(queue.wanted)]
        return [key for key in keys if self.here.state.partition(key) is not None]

    def note_epoch(self, name: str, definer: QueueId, told: str, text: str, start: bool) -> None:
        for key in self.sources(name):
            row = present(self.here.state.partition(key))
            epochs = self.epochs[key, definer]
            at = row.log_start if start and not epochs else row.next_offset
            if epochs and epochs[-1][0] == at:
                epochs.pop()
            epochs.append((at, told, text))

    def entrance_configs(self) -> dict[str, str]:
        keep = self.rng.choice(("true", "true", "false"))
        return {TO: self.rng.choice(TEMPLATES), UNROUTABLE: LOST, "kproxy.route.keep": keep}

    def make_entrance(self, name: str) -> None:
        configs = self.entrance_configs()
        queue_id = self.make(name, PARTITIONS, **configs)
        self.note_epoch(name, queue_id, name, configs[TO], start=False)
        self.follow_filters(name)

    def follow_filters(self, name: str) -> None:
        """Move the filters of a queue of this name to the start of a new one."""
        for filtered in FILTERS:
            queue = self.shard(filtered).state.queue(filtered)
            if queue is not None and queue.configs.get(FROM) == name:
                for key in self.sources(name):
                    epoch = 0, filtered, "filter " + queue.configs[FILTER]
                    self.epochs[key, queue.queue_id] = [epoch]

    def configure_entrance(self, name: str) -> None:
        queue = self.here.state.queue(name)
        if queue is None or name not in self.queues.by_name:
            return
        configs = self.entrance_configs() if self.rng.random() < 0.8 else {}
        self.land(ConfigureQueue(queue.queue_id, configs, [], replace_all=True).envelope())
        self.queues.put(name, queue.queue_id, PARTITIONS, **configs)
        self.note_epoch(name, queue.queue_id, name, configs.get(TO, ""), start=False)

    def define(self, source: str, definer: QueueId, name: str, spec: str, text: str, start: bool,
               ) -> None:  # fmt: skip
        """Define a route as the definer's home shard does: once, or again."""
        told = DefineRoute(definer, source, spec, start, next(self.as_of)).envelope()
        for _ in range(self.rng.choice((1, 1, 2))):
            self.land(told)
        first = (source, definer) not in self.told_of
        self.told_of.add((source, definer))
        self.note_epoch(source, definer, name, text, start and first)

    def change_filter(self, name: str) -> None:
        """Make, change or delete a filter, or let it be a plain queue for a while.

        Its home may be either shard.
        """
        state, dice = self.shard(name).state, self.rng.random()
        queue, before = state.queue(name), None
        if queue is not None:
            before = queue.configs.get(FROM)
            if dice < 0.3:
                self.delete(name)
                if before is not None:
                    self.define(before, queue.queue_id, name, "", "", False)
                return
        source, text = self.rng.choice((*ENTRANCES, LOST)), self.rng.choice(FILTER_TEXTS)
        if shard_of(source, SHARDS):
            source = ENTRANCES[0]
        start = self.rng.random() < 0.5
        configs = {FROM: source, FILTER: text, FROM_START: "true" if start else "false"}
        if dice > 0.8 and before is not None:
            configs = {}
        if queue is None:
            definer = self.new_id()
            # Its definitions are told of by hand: where all is in one shard the fold does so.
            self.apply_in(name, CreateQueue(definer, name, 1, {}).envelope())
        else:
            definer = queue.queue_id
        changed = ConfigureQueue(definer, configs, [], replace_all=True).envelope()
        self.apply_in(name, changed)
        queue = present(state.queue(name))
        self.queues.put(name, definer, 1, **configs)
        if before is not None and before != configs.get(FROM):
            self.define(before, definer, name, "", "", False)
        if configs:
            spec = spec_of(queue).decode()
            self.define(source, definer, name, spec, f"filter {text}", start)

    # -- what happens

    async def change(self) -> None:
        while self.trouble:
            await anyio.sleep(self.rng.choice((0.1, 0.5, 2.0)))
            dice = self.rng.random()
            if dice < 0.25:
                self.configure_entrance(self.rng.choice(ENTRANCES))
            elif dice < 0.32:
                self.make_entrance(self.rng.choice(ENTRANCES))
            elif dice < 0.6:
                self.change_filter(self.rng.choice(FILTERS))
            else:
                names = {q.name for s in (self.here, self.elsewhere) for q in queues_of(s)}
                targets = sorted(names.difference(ENTRANCES, FILTERS))
                if targets:
                    self.delete(self.rng.choice(targets))
                    self.seen["target deleted"] += 1

    def batch(self, key: PartitionKey, name: str, *, producer: int = -1, commit: bool = True,
              sequence: int = 0) -> None:  # fmt: skip
        count = self.rng.randrange(1, 8)
        row = self.here.state.partition(key)
        if row is None:
            return
        first, records = row.next_offset, []
        for offset in range(first, first + count):
            wanted = self.rng.choice(KEYS)
            value = b"%s-%d-%d" % (key[0], key[1], offset)
            records.append((wanted, value))
            self.sent.append(Sent(key, name, offset, wanted, value, commit))
        more: Any = {"codec": self.rng.randrange(5)}
        if producer >= 0:
            more = {"producer_id": producer, "epoch": 0, "sequence": sequence}
            more["codec"] = _TRANSACTIONAL
        outcome = self.land(Envelope(Kind.APPEND, *key, body=_keyed(records, more)))
        assert (outcome.code, outcome.number) == (0, first)

    async def produce(self) -> None:
        while self.trouble:
            await anyio.sleep(self.rng.random() * 0.3)
            name = self.rng.choice((*ENTRANCES, LOST))
            keys = self.sources(name)
            if not keys:
                continue
            key = self.rng.choice(keys)
            if self.rng.random() < 0.15:
                self.tasks.start_soon(self.transaction, key, name)
            else:
                self.batch(key, name)
            row = self.here.state.partition(key)
            if row is not None and self.rng.random() < 0.06:
                self.trim(key, self.rng.randrange(row.log_start, row.next_offset + 1))

    async def transaction(self, key: PartitionKey, name: str) -> None:
        producer, commit = 1000 + next(self.numbers), self.rng.random() < 0.5
        begin = Begin(producer, 0, 1, producer, tag_of("t"), [key], [], 6)
        self.land(begin.envelope())
        sequence = 0
        for _ in range(self.rng.randrange(1, 4)):
            before = len(self.sent)
            self.batch(key, name, producer=producer, commit=commit, sequence=sequence)
            sequence += len(self.sent) - before
            await anyio.sleep(self.rng.choice((0.0, 0.1, 1.0)))
        made = control_batch(producer, 1, commit=commit, time_ms=4)
        self.land(Marker(made, producer, 0, producer, commit, [key], [], 4).envelope())
        self.seen["committed" if commit else "aborted"] += 1

    async def run(self, seconds: float = 25) -> None:
        """Run so long with trouble; then one owner gets everything done."""
        async with anyio.create_task_group() as self.tasks:
            self.start(self.produce, self.change)
            await anyio.sleep(seconds)
            await self.settle()
            await anyio.sleep(150)  # late envelopes land
            self.tasks.cancel_scope.cancel()

    # -- what is true

    def records_in(self, name: str) -> Iterator[tuple[str, bytes]]:
        """(name, value) of what was passed on to the living queue of this name, in its order."""
        shard = self.shard(name)
        queue = shard.state.queue(name)
        if queue is None:
            return
        key = queue.queue_id, 0
        row = present(shard.state.partition(key))
        own = queue.queue_id
        for _, stored in shard.state.batches(key, 0, row.next_offset):
            data = memoryview(bytearray(stored.length))
            shard.segments.read_into(data, stored.segment, stored.position, True)
            head = read_header(data)
            if head.is_control:
                continue
            for one in bodies(head, unpacked(bytes(data)), headers=False):
                value = present(content_of_body(one[3]).value)
                if value[:16] != own:
                    yield name, value

    def target_of(self, one: Sent, definer: QueueId) -> str | None:
        """Return the queue that a record goes to by one route; None: nowhere."""
        found = None
        for start, name, text in self.epochs[one.source, definer]:
            if start <= one.offset:
                found = name, text
        if found is None or not found[1] or not one.committed:
            return None
        name, text = found
        if text.startswith("filter "):
            key = (one.key or b"").decode("latin-1")
            wanted = text.removeprefix("filter key:").split("|") if text != "filter " else None
            matches = wanted is None or (one.key is not None and key[:1] in wanted)
            return name if matches else None
        if one.key is None or one.key == b"\xff":
            return LOST
        made = text.replace("{key}", one.key.decode())
        return LOST if made == name else made

    def check(self) -> None:
        where: dict[tuple[bytes, str, QueueId | None], int] = Counter()
        order: dict[tuple[PartitionKey, str], list[int]] = defaultdict(list)
        by_value = {one.value: one for one in self.sent}
        for name, queue_id, records in [*self.archive, *self.living()]:
            for _, value in records:
                one = by_value[value]
                where[value, name, queue_id if name in FILTERS else None] += 1
                order[one.source, name].append(one.offset)
        for (source, name), offsets in order.items():
            if name not in FILTERS:
                assert offsets == sorted(offsets), f"{name} of {source} is out of order"
        wanted: dict[tuple[bytes, str, QueueId | None], bool] = {}
        routes = defaultdict(list)
        for source, definer in self.epochs:
            routes[source].append(definer)
        for one in self.sent:
            for definer in routes[one.source]:
                name = self.target_of(one, definer)
                if name is not None:
                    key = one.value, name, definer if name in FILTERS else None
                    lost = one.offset < self.trimmed[one.source] or one.source[0] in self.gone
                    wanted[key] = not (lost or definer in self.gone)
        for key, times in where.items():
            assert key in wanted, f"{key} should not be there"
            assert times == 1, f"{key} is there {times} times"
        missing = [key for key, must in wanted.items() if must and key not in where]
        assert not missing, f"{len(missing)} are missing: {missing[:3]}"
        self.seen["passed on"] += len(where)
        self.check_routes()

    def living(self) -> Iterator[tuple[str, QueueId, list[tuple[str, bytes]]]]:
        for shard in (self.here, self.elsewhere):
            for queue in queues_of(shard):
                yield queue.name, queue.queue_id, list(self.records_in(queue.name))

    def check_routes(self) -> None:
        """Check that every cut has landed, and that routes that ended are gone."""
        for key, data in self.here.kv.scan(*RowKind.ROUTE.range()):
            source, _ = ROUTES.parts(key)
            row, route = self.here.state.partition(source), decode_route(data)
            if row is not None:
                assert route.landed == route.cut == row.last_stable, (source, route)
                assert route.ends is None


def queues_of(shard: Any) -> list[Any]:
    names = [key[1:].decode() for key, _ in shard.kv.scan(*RowKind.QUEUE.range())]
    return [shard.state.queue(name) for name in names]


def _keyed(records: list[tuple[bytes | None, bytes]], more: dict[str, Any]) -> bytes:
    codec = more.pop("codec")
    if codec != _TRANSACTIONAL:
        return keyed(*records, codec=codec, **more)
    data = b"".join(record(i, value, key) for i, (key, value) in enumerate(records))
    return batch(
        *[b""] * len(records), times=(TODAY_MS,) * len(records), attributes=_TRANSACTIONAL,
        packed=data, **more,
    )  # fmt: skip
