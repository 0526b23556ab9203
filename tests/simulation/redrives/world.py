"""Redrives out of a shard whose owner changes at any moment, and what is true of them.

As in the simulation of routes, whose owners, messages and logs these are. Dead letters come all the
time; redrives are set, changed while they run, cancelled, and set once more.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import anyio

from kproxy.protocol.batch import read_header
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, content_of_body, header
from kproxy.protocol.records import bodies, unpacked
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import ConfigureQueue
from kproxy.virtual.folds.redrives import FILTER, JOB, TO, redrive_of
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.routes import Route, decode_route, route_in
from kproxy.virtual.types import PartitionKey, QueueId
from tests.present import present
from tests.simulation.routes.dead_letters import SHARDS, headers_of
from tests.simulation.routes.world import PARTITIONS, RouteWorld, queues_of
from tests.wire import TODAY_MS

DEAD = next(name for name in map("dlq.{}".format, range(9)) if shard_of(name, SHARDS) == 0)
ORIGINS = ("eu-a", "eu-b", "eu-c", "us-a", "us-b")
TARGETS = ("again-a", "again-b", "eu-*", "*")
FILTERS = ("", "header:kind:x", "key:k1|k2")
TIMES_MAX = 3


class Letter:
    """A dead letter that was put in; `at` is its offset."""

    def __init__(self, world: "RedriveWorld", source: PartitionKey, at: int) -> None:
        rng = world.rng
        self.source, self.at = source, at
        self.value = b"%d-%d" % (source[1], at)
        self.key = rng.choice((b"k1", b"k2", b"k3", None))
        self.origin = rng.choice((*ORIGINS, None, "__own", DEAD))
        self.kind = rng.choice(("x", "y"))
        self.times = rng.choice((0, 0, 1, TIMES_MAX - 1, TIMES_MAX))

    def body(self) -> bytes:
        said = {"kind": self.kind, "kproxy.dlq.cause": "rejected"}
        if self.origin is not None:
            said["__dlq.errors.topic"] = self.origin
        if self.times:
            said["kproxy.redriven"] = str(self.times)
        return body_of(Content(self.key, self.value), [header(*one) for one in said.items()])

    def target(self, to: str, what: str) -> str | None:
        """Return where it is to go; None: nowhere."""
        if self.times >= TIMES_MAX or (what.startswith("header") and self.kind != "x"):
            return None
        if what.startswith("key") and self.key not in (b"k1", b"k2"):
            return None
        if not to.endswith("*"):
            return to
        if self.origin is None or self.origin in ("__own", DEAD):
            return None
        return self.origin if self.origin.startswith(to[:-1]) else None


class Job:
    """A redrive out of one partition: where it begins and ends, where letters go, and which."""

    def __init__(self, first: int, end: int, to: str, what: str) -> None:
        self.first, self.end = first, end
        self.to, self.what = to, what

    def cancel(self, route: Route | None) -> None:
        """Note that nothing goes behind the last cut."""
        if route is not None:
            self.end = min(self.end, route.cut)

    def has(self, offset: int) -> bool:
        return self.first <= offset < self.end


def runs_of(offsets: list[int]) -> int:
    """Return how many rising sequences these are, at least, one within the other.

    The last cut of a job that was cancelled may land after some of the next one's.
    """
    lasts: list[int] = []
    for offset in offsets:
        before = [last for last in lasts if last < offset]
        if before:
            lasts.remove(max(before))
        lasts.append(offset)
    return len(lasts)


class RedriveWorld(RouteWorld):
    """The logs of both shards, the owners of one, the letters, and the jobs."""

    entrances = ()

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.letters_in: list[Letter] = []
        self.jobs: dict[tuple[PartitionKey, str], Job] = {}
        self.names = itertools.count(1)
        self.make(DEAD, PARTITIONS)

    def follow_filters(self, name: str) -> None:
        """Do nothing: there are no filters."""

    # -- what happens

    def set(self, configs: dict[str, str]) -> None:
        """Configure the dead-letter queue, and note what is to come of it."""
        queue = present(self.here.state.queue(DEAD))
        was, now = (one.get(JOB) if TO in one else None for one in (queue.configs, configs))
        definer = redrive_of(queue.queue_id, queue.configs)
        rows = {
            key: route_in(self.here.state.get, key, definer) if definer else None
            for key in self.sources(DEAD)
        }  # fmt: skip
        told = ConfigureQueue(queue.queue_id, configs, [], replace_all=True).envelope()
        assert not self.land(told).code
        self.queues.put(DEAD, queue.queue_id, PARTITIONS, **configs)
        to, what = configs.get(TO, ""), configs.get(FILTER, "")
        for key in self.sources(DEAD):
            if was is not None and was != now:
                self.jobs[key, was].cancel(rows[key])
            row = present(self.here.state.partition(key))
            if now is not None and (key, now) not in self.jobs:
                self.jobs[key, now] = Job(row.log_start, row.next_offset, to, what)

    async def change(self) -> None:
        while self.trouble:
            await anyio.sleep(self.rng.choice((0.1, 0.5, 2.0)))
            configs = dict(present(self.here.state.queue(DEAD)).configs)
            dice = self.rng.random()
            if dice < 0.5 or TO not in configs:
                configs = {JOB: str(next(self.names))}
                self.seen["job"] += 1
            elif dice < 0.65:
                configs = {}
                self.seen["cancelled"] += 1
            elif dice < 0.8:
                old = self.rng.randrange(1, next(self.names))
                configs = {JOB: str(old)}
                self.seen["once more"] += 1
            else:
                self.seen["changed"] += 1
            if configs:
                configs |= {TO: self.rng.choice(TARGETS), FILTER: self.rng.choice(FILTERS)}
            self.set(configs)

    async def produce(self) -> None:
        while self.trouble:
            await anyio.sleep(self.rng.random() * 0.3)
            key = self.rng.choice(self.sources(DEAD))
            row = present(self.here.state.partition(key))
            first = row.next_offset
            some = [Letter(self, key, first + n) for n in range(self.rng.randrange(1, 8))]
            self.letters_in += some
            made = batch_of_bodies([(one.body(), TODAY_MS) for one in some], self.rng.randrange(5))
            assert self.land(Envelope(Kind.APPEND, *key, body=made)).number == first
            if self.rng.random() < 0.06:
                self.trim(key, self.rng.randrange(row.log_start, row.next_offset + 1))

    # -- what is true

    def arrived(self, shard: Any, queue_id: QueueId) -> Iterator[tuple[bytes, dict[str, str]]]:
        """Yield (value, headers) of a queue's records."""
        key = queue_id, 0
        row = present(shard.state.partition(key))
        for _, stored in shard.state.batches(key, 0, row.next_offset):
            data = memoryview(bytearray(stored.length))
            shard.segments.read_into(data, stored.segment, stored.position, True)
            for one in bodies(read_header(data), unpacked(bytes(data)), headers=False):
                content = content_of_body(one[3])
                headers = headers_of(content.header_bytes, content.headers)
                yield present(content.value), headers

    def check(self) -> None:
        by_value = {one.value: one for one in self.letters_in}
        found: Counter[tuple[bytes, str]] = Counter()
        order: dict[tuple[PartitionKey, str], list[int]] = defaultdict(list)
        for shard in (self.here, self.elsewhere):
            for queue in queues_of(shard):
                if queue.name == DEAD:
                    continue
                for value, headers in self.arrived(shard, queue.queue_id):
                    letter = by_value[value]
                    said = {"kind": letter.kind, "kproxy.redriven": str(letter.times + 1)}
                    assert headers == said
                    found[value, queue.name] += 1
                    order[letter.source, queue.name].append(letter.at)
        wanted: Counter[tuple[bytes, str]] = Counter()
        jobs: dict[tuple[PartitionKey, str], set[str]] = defaultdict(set)
        for letter in self.letters_in:
            for (source, number), job in self.jobs.items():
                if source != letter.source or not job.has(letter.at):
                    continue
                name = letter.target(job.to, job.what)
                if name:
                    wanted[letter.value, name] += 1
                    jobs[source, name].add(number)
        for key, times in found.items():
            assert times <= wanted[key], f"{key} is there {times} times, not {wanted[key]}"
        for key, times in wanted.items():
            letter = by_value[key[0]]
            if letter.at >= self.trimmed[letter.source]:
                assert found[key] == times, f"{key} is there {found[key]} times, not {times}"
        for where, offsets in order.items():
            assert runs_of(offsets) <= len(jobs[where]), f"{where} is out of order"
        self.seen["redriven"] += sum(found.values())
        self.check_routes()

    def check_routes(self) -> None:
        """Check that all jobs are over."""
        for _, data in self.here.kv.scan(*RowKind.ROUTE.range()):
            route = decode_route(data)
            assert route.is_over, route
            assert route.landed == route.cut
