"""An in-memory shard: the same fold and state, over a dict and a log that commits at once."""

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from anyio.abc import TaskGroup

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.loop.garbage import collect_less
from kproxy.metadata.catalogue import StateLookup
from kproxy.metadata.cluster_view import SingleNode
from kproxy.metadata.levels import Level
from kproxy.protocol.responses import Broker
from kproxy.shard.watchers import Watchers
from kproxy.store.damage import Damage, is_sound
from kproxy.store.rocks import Checkpoint
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.state import State
from kproxy.virtual.types import ShardId
from kproxy.worker.shards import OneShard
from kproxy.worker.worker import Worker


@contextmanager
def as_served() -> Iterator[None]:
    """Look for cycles as in a process that serves, not among all that tests have left."""
    thresholds = gc.get_threshold()
    collect_less()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def chunks_of(answer: StreamedResponse) -> list[bytearray]:
    """Return all chunks of an answer, as a connection sends them."""
    chunks = []
    with answer.pinned():
        while (chunk := await answer.read()) is not None:
            chunks.append(chunk)
    return chunks


class DictKv:
    """`Kv` over a dict."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self.rows = dict(rows or {})

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter([(k, self.rows[k]) for k in sorted(k for k in self.rows if start <= k < end)])

    walk = scan

    def let_go(self) -> None:
        pass

    def unflushed_deletions(self) -> int:
        return 0

    def unflushed_bytes(self) -> int:
        return 0

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


class MemorySegments:
    """The store of a memory shard's bodies: one long segment."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.damage = Damage()

    def read_into(self, buffer: memoryview, segment: int, position: int, wait: bool) -> bool:
        return self.read_run([buffer], segment, position, len(buffer), wait)

    def read_run(
        self, buffers: list[memoryview], segment: int, position: int, size: int, wait: bool
    ) -> bool:
        for buffer in buffers:
            buffer[:] = self.data[position : position + len(buffer)]
            position += len(buffer)
        return True

    @contextmanager
    def pinned(self, segments: set[int]) -> Iterator[None]:
        yield

    def batch(
        self, segment: int, position: int, length: int, *, wait: bool = True
    ) -> bytearray | None:
        data = bytearray(length)
        self.read_into(memoryview(data), segment, position, wait)
        self.check(data, segment, position)
        return data

    def check(self, batch: bytearray | memoryview, segment: int, position: int) -> None:
        if not is_sound(batch):
            raise self.damage.note(segment, position, "is not what was written", lasts=True)

    def pin(self, segments: set[int]) -> None: ...

    def unpin(self, segments: set[int]) -> None: ...


class MemoryShard:
    """A fake for `kproxy.shard.shard.Shard`."""

    def __init__(self, shard: int = 0, shards: int = 1, *, shared: bool = False) -> None:
        self.kv = DictKv()
        self.state = State(self.kv, 1000)
        self.fold = Fold(self.state, ShardId(shard), shards, shared=shared)
        self.watchers = Watchers()
        self.used: set[Any] = set()
        self.segments = MemorySegments()
        self.log: list[Envelope] = []
        self.serving = True
        self.shard = ShardId(shard)
        self.claim_offset = 0
        self.refused_some = False
        self.level = Level()
        self.tasks: TaskGroup | None = None
        self.on_command: Callable[[int, Envelope, Outcome], None] = lambda *_: None

    @property
    def applied_through(self) -> Checkpoint:
        return Checkpoint(len(self.log))

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        assert self.level.admits(envelopes), f"written above level {self.level.value}: {envelopes}"
        ticket = Ticket(list(envelopes))
        ticket.set_outcomes([self.apply(envelope) for envelope in envelopes])
        return ticket

    def commit(self, changes: dict[bytes, bytes | None]) -> None:
        self.state.put_all(changes)
        self.kv.write(self.state.drain())

    def apply(self, envelope: Envelope) -> Outcome:
        place = LogLocation(0, len(self.segments.data), len(envelope.body))
        self.segments.data += envelope.body
        outcome = self.fold.apply(len(self.log), envelope, place)
        self.log.append(envelope)
        self.kv.write(self.state.drain())
        if envelope.kind != Kind.APPEND:
            self.on_command(len(self.log) - 1, envelope, outcome)
        self.watchers.wake(self.state.take_touched())
        return outcome


def refused_append(envelopes: Sequence[Envelope], code: Code = Code.KAFKA_STORAGE_ERROR) -> Ticket:
    """Return a log's answer to an append that it refuses."""
    ticket = Ticket(list(envelopes))
    ticket.set_error(KafkaError(code))
    return ticket


def memory_worker(**settings: Any) -> Worker:
    """Return a worker over a memory shard, with a clock that stands still unless moved."""
    clock = itertools.count(int(time.time() * 1000))
    shard: Any = MemoryShard()
    worker = Worker(
        config=Config(**settings),
        cluster=SingleNode(cluster_id="test-cluster", me=Broker(1, "127.0.0.1", 9092)),
        routes=OneShard(shard),
        lookup=StateLookup(shard.state),
        clock=Clock(now_ms=lambda: next(clock)),
    )
    shard.on_command = worker.security.applied
    return worker
