"""A Kafka cluster that delays, loses and reorders."""

import asyncio
import copy
import random
import shutil
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio

from kproxy.log.base import Ticket
from kproxy.upstream.link import DataLink
from kproxy.upstream.topic_tailer import Record
from kproxy.virtual.commands.envelope import NUMBERED, Envelope, Kind
from kproxy.virtual.outcome import Outcome
from tests.simulation.folded import Folded
from tests.simulation.workers.conditions import Conditions
from tests.simulation.workers.offset_topic import PublishedRows
from tests.simulation.workers.plain import Plain

DELAYS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.3)
_CLEANED_AFTER_S = 6.0  # longer than `catalogue_barrier` waits: Kafka cleans closed segments alone
_AS_USUAL = Conditions()
_TOLD = frozenset(
    (Kind.CREATE, Kind.GROW, Kind.CONFIGURE, Kind.DELETE, Kind.ASSIGN_PARTITIONS, Kind.QUEUE_READY)
)
"""The commands that are announced, or that other shards hear of."""


class World:
    """All that outlives a worker."""

    def __init__(
        self,
        rng: random.Random,
        shards: int,
        directory: Path,
        conditions: Conditions = _AS_USUAL,
    ) -> None:
        self.rng = rng
        self.directory = directory
        self.conditions = conditions
        self.calm = False
        self.logs: list[list[Envelope]] = [[] for _ in range(shards)]
        self.starts = [0] * shards
        self.queues: list[Record] = []
        self._said_at: list[float] = []
        self.published = [PublishedRows(i, shards, log) for i, log in enumerate(self.logs)]
        self.disk: dict[Path, dict[bytes, bytes]] = {}
        self.lives: dict[str, Any] = {}  # by the name of a worker's directory
        self.trace: list[tuple[Any, ...]] = []
        self.faults: list[str] = []
        self.happened: Counter[str] = Counter()
        self.landed: list[tuple[int, int]] = []  # shard and log offset, of all logs in turn
        self._read_logs()
        self._compacted_to = 0
        self._left: list[int] = []  # offsets of the queues topic below that

    def fault(self, what: str) -> None:
        """Note a fault that was seen where raising would be an error like others."""
        self.faults.append(what)

    def life_of(self, path: Path) -> Any:
        return self.lives[path.relative_to(self.directory).parts[0]]

    def wipe(self, directory: Path) -> None:
        """Stand in for `rebuild.wipe`."""
        if self.life_of(directory).alive:
            self.happened["a copy wiped"] += 1
            self._remove(directory)

    def lose(self, name: str) -> None:
        """Lose a worker's disk, all of it."""
        self._remove(self.directory / name)

    def _remove(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.disk = {p: r for p, r in self.disk.items() if directory not in p.parents}

    def delay(self) -> float:
        if not self.calm and self.rng.random() < self.conditions.slow:
            return self.rng.random() * self.conditions.slow_s
        return self.rng.choice(DELAYS)

    def dice(self, chance: float) -> bool:
        return not self.calm and self.rng.random() < chance

    # -- the logs

    def land(self, shard: int, envelope: Envelope) -> int:
        log = self.logs[shard]
        log.append(envelope)
        self.landed.append((shard, len(log) - 1))
        self.trace.append((shard, len(log), envelope.kind, envelope.writer, envelope.counter))
        self._take(shard, len(log) - 1)
        return len(log) - 1

    def _read_logs(self) -> None:
        """Read all logs from the start."""
        count = len(self.logs)
        self.plain = Plain(count)
        self.folded = [Folded(shard, count) for shard in range(count)]
        self.outcomes: dict[tuple[int, int], Outcome] = {}  # by writer and counter
        for shard, log_offset in self.landed:
            self._take(shard, log_offset)

    def _take(self, shard: int, log_offset: int) -> None:
        envelope = self.logs[shard][log_offset]
        self.plain.land(shard, log_offset, envelope)
        outcome = self.folded[shard].take(envelope)
        self.outcomes.setdefault((envelope.writer, envelope.counter), outcome)

    def power_fails(self) -> None:
        """Replace what brokers lost, the ends of their logs, by something else.

        They keep what others have been told of: a cluster could not be mended by itself without it.
        """
        for shard, log in enumerate(self.logs):
            told = [at for at, one in enumerate(log, 1) if one.kind in _TOLD]
            first = max(self.published[shard].as_of, self.starts[shard], *told[-1:], 0)
            for log_offset in range(self.rng.randint(first, len(log)), len(log)):
                log[log_offset] = Envelope(Kind.FOREIGN)
                self.happened["a record lost by a power cut"] += 1
        self._read_logs()

    # -- the queues topic

    def say(self, key: bytes, value: bytes | None, note: bytes | None) -> None:
        self.queues.append(Record("queues", len(self.queues), key, value, note))
        self._said_at.append(asyncio.get_running_loop().time())
        if self.dice(0.02):
            self.compact(_CLEANED_AFTER_S)

    def compact(self, after_s: float = 0.0) -> None:
        """Leave the last of each key, of records that have been there for so long."""
        until = asyncio.get_running_loop().time() - after_s
        self._compacted_to = bisect_right(self._said_at, until)
        last = {record.key: record.offset for record in self.queues[: self._compacted_to]}
        self._left = sorted(last.values())

    def queues_from(self, position: int, most: int) -> list[Record]:
        found = self._left[bisect_left(self._left, position) :][:most]
        if len(found) < most:
            first = max(position, self._compacted_to)
            found += range(first, min(first + most - len(found), len(self.queues)))
        return [self.queues[offset] for offset in found]

    # -- the offset topic

    def read_to_end(self, upstream: Any, topic: str, shard: int, **_: Any) -> Iterator[list[Any]]:
        yield list(self.published[shard].read().items())


class SimLink:
    """`DataLink` of one worker's life."""

    def __init__(self, world: World, life: Any, writer: int, tasks: Any) -> None:
        self._world, self._life, self._tasks = world, life, tasks
        self._rng = world.rng
        self.writer = writer
        self._counter = 0
        self._following: dict[int, Any] = {}
        self._active: dict[int, list[Any]] = {}
        self._lines: dict[Any, float] = {}
        self._landing: dict[int, Any] = {}
        self._again: dict[int, list[Envelope]] = {}  # envelopes to be sent again, by partition
        self.unfollowed: Callable[[int, int | None], None] = lambda counter, offset: None

    def next_counter(self) -> int:
        self._counter += 1
        return NUMBERED | self._counter

    def _in_line(self, line: Any, then: Callable[[], None]) -> None:
        """Call a little later, behind what came before in this line."""
        loop = asyncio.get_running_loop()
        at = max(self._lines.get(line, 0.0) + 1e-6, loop.time() + self._world.delay())
        self._lines[line] = at
        loop.call_at(at, then)

    # -- appending

    def send(self, partition: int, envelope: Envelope) -> None:
        sent = copy.copy(envelope)

        def land() -> None:
            if self._world.dice(0.01) or (not self._life.alive and self._rng.random() < 0.5):
                self._in_line(("report", partition), lambda: self._report(partition, sent, None))
                return
            offset = self._world.land(partition, sent)
            if not self._sends_again(partition, sent):
                self._tell_fate(partition, sent, offset)

        self._in_line(("send", partition), land)

    def _tell_fate(self, partition: int, sent: Envelope, offset: int) -> None:
        fate = None if self._world.dice(0.01) else offset
        self._in_line(("report", partition), lambda: self._report(partition, sent, fate))

    def _sends_again(self, partition: int, sent: Envelope) -> bool:
        """Return whether the answer for what has landed is lost, and for all that comes behind it
        until it is sent again: the cluster takes all of them twice, in their order."""
        again, doubled = self._again.setdefault(partition, []), self._world.conditions.doubled
        if not again and not (doubled and self._world.dice(doubled)):
            return False
        if not again:
            self._in_line(("send", partition), lambda: self._land_again(partition))
        again.append(sent)
        return True

    def _land_again(self, partition: int) -> None:
        for sent in self._again.pop(partition):
            if self._life.alive or self._rng.random() < 0.5:
                self._world.happened["an envelope taken twice"] += 1
                self._tell_fate(partition, sent, self._world.land(partition, sent))

    def land(self, partition: int, envelopes: Sequence[Envelope]) -> Ticket:
        link: Any = self
        return DataLink.land(link, partition, envelopes)

    def _landed(self, counter: int, outcome: Outcome) -> None:
        link: Any = self
        DataLink._landed(link, counter, outcome)

    def _report(self, partition: int, envelope: Envelope, offset: int | None) -> None:
        if not self._life.alive:
            return
        link: Any = self
        DataLink._land_reported(link, [(envelope.counter, offset)])
        following = self._following.get(partition)
        if following is not None:
            following.reported([(envelope.counter, offset)])
            return
        if offset is not None and self._world.conditions.transactions:
            self._call(partition, offset + 1)
        self.unfollowed(envelope.counter, offset)

    def _call(self, partition: int, end: int) -> None:
        """Wake followers as through the queues topic, which may lose the news."""

        def called(link: SimLink) -> None:
            following = link._following.get(partition)
            if following is not None and link._life.alive:
                following.called(end)

        for life in self._world.lives.values():
            if life.alive and life is not self._life and not self._world.dice(0.1):
                asyncio.get_running_loop().call_later(self._world.delay(), called, life.link)

    def publish_queue(
        self, key: bytes, value: bytes | None, done: Callable[[], None] | None = None,
        header: tuple[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        if key[:1] == b"q" and self._life.alive:
            name = key[1:].decode()
            if self._life.shards.serving_name(name) is None:
                self._world.fault(f"{name} is announced by who does not serve it")

        def land() -> None:
            if self._world.dice(self._world.conditions.unsaid) or (
                not self._life.alive and self._rng.random() < 0.5
            ):
                return
            self._world.say(key, value, header[1] if header else None)
            if done is not None:
                self._in_line("done", lambda: done() if self._life.alive else None)

        self._in_line("queues", land)

    # -- reading

    def follow(self, partition: int, following: Any) -> None:
        self._following[partition] = following

    def forget(self, partition: int) -> None:
        self._following.pop(partition, None)
        self._active.pop(partition, None)

    def read(self, partition: int, start: int, end: int) -> None:
        """Read a range, once other readers of the partition have ended."""
        active, following = self._active.get(partition), self._following.get(partition)
        if active is not None and active[2] is following:
            active[1] = max(active[1], end)
        elif start < end:
            self._active[partition] = active = [start, end, following]
            self._tasks.start_soon(self._read, partition, active)

    async def _read(self, partition: int, active: list[Any]) -> None:
        world = self._world
        while True:
            await anyio.sleep(world.delay())
            if self._active.get(partition) is not active:
                return
            position, end, following = active
            if position < world.starts[partition]:
                del self._active[partition]
                world.happened["trimmed past a reader"] += 1
                following.lost("the log was trimmed")
                return
            upto = min(end, position + self._rng.choice((1, 5, 50)))
            log = world.logs[partition]
            records = [(at, log[at]) for at in range(position, min(upto, len(log)))]
            active[0] = position + len(records)
            if active[0] >= active[1]:
                del self._active[partition]
            if records:
                await following.was_read(records)

    async def watch_ends(self) -> None:
        while True:
            await anyio.sleep(0.2)
            before = {p: following.next_offset for p, following in self._following.items()}
            ends = {p: len(self._world.logs[p]) for p in before}
            await anyio.sleep(self._world.delay())
            for partition, end in ends.items():
                following = self._following.get(partition)
                if following is not None:
                    following.saw_end(end, before[partition])

    async def end(self, partition: int) -> int:
        await anyio.sleep(self._world.delay())
        return len(self._world.logs[partition])

    async def start(self, partition: int) -> int:
        await anyio.sleep(self._world.delay())
        return self._world.starts[partition]

    async def queues_end(self) -> int:
        await anyio.sleep(self._world.delay())
        return len(self._world.queues)

    async def rows_settled(self, partition: int) -> bool:
        await anyio.sleep(self._world.delay())
        return self._world.published[partition].settled()

    async def trim(self, partition: int, offset: int) -> int:
        await anyio.sleep(self._world.delay())
        starts = self._world.starts
        if self._life.alive:
            if offset > self._world.published[partition].seen_as_of:
                self._world.fault(f"shard {partition} is trimmed to {offset}, without rows for it")
            self._world.happened["log trimmed"] += offset > starts[partition]
            starts[partition] = max(starts[partition], offset)
        return starts[partition]
