"""A Kafka cluster that delays, loses and reorders, and the disks of workers that crash."""

import asyncio
import copy
import random
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio

from kproxy.errors import Code, KafkaError
from kproxy.upstream.following import Record
from kproxy.upstream.published import NotPublished
from kproxy.virtual.envelope import Envelope
from kproxy.virtual.published import AS_OF_KEY, encode_as_of
from tests.simulation.plain import Plain

_DELAYS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.3)
_SLOW_S = 2.0


class SimKv:
    """`RocksKv` over a dict, with a disk: what was flushed outlives its worker."""

    def __init__(self, world: "World", path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._world, self._path = world, path
        self._life = world.life_of(path)
        self.rows = dict(world.disk.get(path, {}))
        self._keys: list[bytes] | None = None
        self._coming: dict[bytes, bytes] = {}
        self.shut_down = False

    def _check(self) -> None:
        if self.shut_down:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "closed")

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return self.rows.get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check()
        if self._keys is None:
            self._keys = sorted(self.rows)
        keys, rows = self._keys, self.rows
        found = keys[bisect_left(keys, start) : bisect_left(keys, end)]
        return iter([(key, rows[key]) for key in found])

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        self._check()
        for key, value in changes.items():
            if value is None:
                if self.rows.pop(key, None) is not None:
                    self._keys = None
            else:
                if key not in self.rows:
                    self._keys = None
                self.rows[key] = value

    def last_write(self, changes: dict[bytes, bytes | None]) -> None:
        self.shut_down = False
        self.write(changes)

    def push(self) -> None:
        pass

    def unflushed_deletions(self) -> int:
        return 0

    def unflushed_bytes(self) -> int:
        return 0

    def begin_flush(self) -> None:
        self._coming = dict(self.rows)

    def finish_flush(self) -> None:
        if self._life.alive:
            self._world.disk[self._path] = self._coming

    def flush(self) -> None:
        self.begin_flush()
        self.finish_flush()

    def shut(self) -> None:
        self.shut_down = True

    def close(self) -> None:
        self.shut_down = True


class Threads:
    """In the place of anyio's `to_thread`: what is asked is done a little later."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def run_sync(self, function: Any, *args: Any, **_: Any) -> Any:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(self._rng.choice(_DELAYS) / 5)
        return function(*args)


class World:
    """All that outlives a worker."""

    def __init__(self, rng: random.Random, shards: int, directory: Path) -> None:
        self.rng = rng
        self.directory = directory
        self.calm = False
        self.logs: list[list[Envelope]] = [[] for _ in range(shards)]
        self.starts = [0] * shards
        self.queues: list[Record] = []
        self.rows: list[dict[bytes, bytes | None]] = [{} for _ in range(shards)]
        self.fences = [0] * shards
        self.disk: dict[Path, dict[bytes, bytes]] = {}
        self.lives: dict[str, Any] = {}  # by the name of a worker's directory
        self.plain = Plain(shards)
        self.trace: list[tuple[Any, ...]] = []
        self._compacted_to = 0
        self._left: list[int] = []  # offsets of the queues topic below that

    def life_of(self, path: Path) -> Any:
        return self.lives[path.relative_to(self.directory).parts[0]]

    def wipe(self, directory: Path) -> None:
        """As `rebuild.wipe`."""
        if self.life_of(directory).alive:
            self._remove(directory)

    def lose(self, name: str) -> None:
        """A worker's disk, all of it."""
        self._remove(self.directory / name)

    def _remove(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.disk = {p: r for p, r in self.disk.items() if directory not in p.parents}

    def delay(self) -> float:
        if not self.calm and self.rng.random() < 0.02:
            return self.rng.random() * _SLOW_S
        return self.rng.choice(_DELAYS)

    def dice(self, chance: float) -> bool:
        return not self.calm and self.rng.random() < chance

    def land(self, shard: int, envelope: Envelope) -> int:
        log = self.logs[shard]
        log.append(envelope)
        self.trace.append((shard, len(log), envelope.kind, envelope.writer, envelope.counter))
        self.plain.land(shard, len(log) - 1, envelope)
        return len(log) - 1

    # -- the queues topic

    def say(self, key: bytes, value: bytes | None, note: bytes | None) -> None:
        self.queues.append(Record("queues", len(self.queues), key, value, note))
        if self.dice(0.02):
            self.compact()

    def compact(self) -> None:
        last = {record.key: record.offset for record in self.queues}
        self._compacted_to = len(self.queues)
        self._left = sorted(last.values())

    def queues_from(self, position: int, most: int) -> list[Record]:
        found = self._left[bisect_left(self._left, position) :][:most]
        if len(found) < most:
            first = max(position, self._compacted_to)
            found += range(first, min(first + most - len(found), len(self.queues)))
        return [self.queues[offset] for offset in found]

    # -- the offset topic

    def read_whole(self, upstream: Any, topic: str, shard: int) -> Iterator[list[Any]]:
        yield list(self.rows[shard].items())


class SimRowsWriter:
    """`RowsWriter`: one transaction at a time, fenced by the next one's."""

    def __init__(self, upstream: Any, shard: int, row_bytes_max: int) -> None:
        self._life, self._shard = upstream.life, shard
        self._world: World = upstream.world
        self._epoch = -1

    def fence(self) -> None:
        if self._life.alive:
            self._world.fences[self._shard] += 1
            self._epoch = self._world.fences[self._shard]

    def write(self, rows: Iterator[tuple[bytes, bytes | None]], as_of: int) -> None:
        world = self._world
        if self._epoch != world.fences[self._shard]:
            raise NotPublished("fenced", True)
        if world.dice(0.05) or not self._life.alive:
            raise NotPublished("timed out", False)
        world.rows[self._shard] |= dict(rows) | {AS_OF_KEY: encode_as_of(as_of)}
        world.trace.append(("rows", self._shard, as_of))
        if world.dice(0.05):
            raise NotPublished("its fate is not known", False)

    def close(self) -> None:
        pass


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
        self.unfollowed: Callable[[int, int | None], None] = lambda counter, offset: None

    def next_counter(self) -> int:
        self._counter += 1
        return self._counter

    def _in_line(self, line: Any, then: Callable[[], None]) -> None:
        """A little later, behind what came before in this line."""
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
            fate = None if self._world.dice(0.01) else offset
            self._in_line(("report", partition), lambda: self._report(partition, sent, fate))

        self._in_line(("send", partition), land)

    def _report(self, partition: int, envelope: Envelope, offset: int | None) -> None:
        if not self._life.alive:
            return
        following = self._following.get(partition)
        if following is not None:
            following.reported([(envelope.counter, offset)])
        else:
            self.unfollowed(envelope.counter, offset)

    def publish_queue(
        self, key: bytes, value: bytes | None, done: Callable[[], None] | None = None,
        header: tuple[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        if key[:1] == b"q" and self._life.alive:
            name = key[1:].decode()
            assert self._life.shards.serving_name(name), "announced by who does not serve it"

        def land() -> None:
            if self._world.dice(0.03) or (not self._life.alive and self._rng.random() < 0.5):
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
        active = self._active.get(partition)
        if active is not None:
            active[1] = max(active[1], end)
        elif start < end:
            self._active[partition] = active = [start, end]
            self._tasks.start_soon(self._read, partition, self._following.get(partition), active)

    async def _read(self, partition: int, following: Any, active: list[Any]) -> None:
        world = self._world
        while True:
            await anyio.sleep(world.delay())
            if self._active.get(partition) is not active:
                return
            position, end = active
            if position < world.starts[partition]:
                del self._active[partition]
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
        return True

    async def trim(self, partition: int, offset: int) -> int:
        await anyio.sleep(self._world.delay())
        starts = self._world.starts
        if self._life.alive:
            starts[partition] = max(starts[partition], offset)
        return starts[partition]
