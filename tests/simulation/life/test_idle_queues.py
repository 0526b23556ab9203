"""An expiry that races with all that may come to a queue: nothing acknowledged goes with it.

The owner's look and its EXPIRE_QUEUE lie apart, and anything comes in between. The simulation notes
all that was acknowledged, by the fold's answers alone, and holds each deletion against it. It
proves itself on mistakes that are planted in the fold.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kproxy.protocol.batch import control_batch
from kproxy.virtual.commands.delays import Due
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import CommitOffsets, OffsetCommit
from kproxy.virtual.commands.queues import CreateQueue, ExpireQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.transactions import Begin, Marker
from kproxy.virtual.folds import idle
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.delays import hidden, waiting_in
from kproxy.virtual.rows.idle import IDLE_MS, WITH_RECORDS
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.simulation.seeds import seeds, sums
from tests.virtual.commands.delay_cases import later, waiting
from tests.wire import batch

IDLE = 60_000
STEPS = 60


class Lost(AssertionError):
    """Something that was acknowledged is gone."""


class Queue:
    """The knowledge that the clients of one queue have of it."""

    def __init__(self, key: PartitionKey, *, with_records: bool) -> None:
        self.key, self.with_records = key, with_records
        self.records = self.waiting = 0
        self.end = self.changed_ms = 0
        self.open: dict[int, int] = {}  # transactions, by their producers
        self.committed_ms = -IDLE * 10


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shard, self.now_ms, self.names = MemoryShard(), 10 * IDLE, 0
        self.there: list[Queue] = []
        self.late: list[tuple[Queue, int, int]] = []  # looks whose commands are on their way
        self.done: Counter[str] = Counter(dict.fromkeys(("expired", "kept"), 0))

    def apply(self, envelope: Envelope) -> Outcome:
        return self.shard.apply(envelope)

    def run(self) -> Counter[str]:
        for _ in range(STEPS):
            if not self.there or self.rng.random() < 0.1:
                self.create()
            self.now_ms += self.rng.choice((0, 1, IDLE // 3, IDLE))
            queue = self.rng.choice(self.there)
            step: Callable[[Queue], None] = self.rng.choice(
                (self.append, self.append, self.commit, self.wait, self.deliver, self.trim,
                 self.begin, self.end, self.look, self.look, self.look)
            )  # fmt: skip
            step(queue)
            if self.late and self.rng.random() < 0.5:
                self.expire(*self.late.pop(self.rng.randrange(len(self.late))))
        return self.done

    def create(self) -> None:
        self.names += 1
        key = (QueueId(self.names.to_bytes(16, "big")), 0)
        queue = Queue(key, with_records=self.rng.random() < 0.3)
        configs = {IDLE_MS: str(IDLE), WITH_RECORDS: "true" if queue.with_records else "false"}
        assert not self.apply(CreateQueue(key[0], f"q{self.names}", 1, configs).envelope()).code
        self.there.append(queue)

    def append(self, queue: Queue) -> None:
        if not self.apply(Envelope(Kind.APPEND, *queue.key, body=batch(b"v"))).code:
            queue.records += 1
            queue.changed_ms = self.now_ms

    def commit(self, queue: Queue) -> None:
        commit = CommitOffsets("g", "", -1, [OffsetCommit(*queue.key, 0, -1, "", False)],
                               self.now_ms)  # fmt: skip
        if not any(self.apply(commit.envelope(NEWEST)).codes):
            queue.committed_ms = self.now_ms

    def wait(self, queue: Queue) -> None:
        if not self.apply(later(queue.key, waiting(self.now_ms + 1))).code:
            queue.waiting += 1
            queue.changed_ms = self.now_ms

    def deliver(self, queue: Queue) -> None:
        aside = self.shard.state.partition(hidden(queue.key))
        if aside is None or not queue.waiting:
            return
        last = next(self.shard.state.batches(hidden(queue.key), aside.log_start, 1 << 40))[0]
        due = Due.envelope(queue.key, [last], [batch(b"due")], time_ms=1 << 50, look_ms=1)
        if self.apply(due).number == 1:
            queue.waiting -= 1
            queue.records += 1
            queue.changed_ms = self.now_ms

    def trim(self, queue: Queue) -> None:
        if not self.apply(Trim(*queue.key, -1).envelope()).code:
            queue.records = 0

    def begin(self, queue: Queue) -> None:
        producer, number = self.rng.randrange(1, 1 << 40), self.rng.randrange(1, 1 << 40)
        self.apply(Begin(producer, 0, 1, number, b"tag of t", [queue.key], [], 6).envelope())
        body = batch(b"t", producer_id=producer, epoch=0, sequence=0, attributes=0x10)
        if not self.apply(Envelope(Kind.APPEND, *queue.key, body=body)).code:
            queue.open[producer] = number
            queue.records += 1
            queue.changed_ms = self.now_ms

    def end(self, queue: Queue) -> None:
        if queue.open:
            producer, number = queue.open.popitem()
            made = control_batch(producer, 0, commit=True, time_ms=4)
            self.apply(Marker(made, producer, 0, number, True, [queue.key], [], 4).envelope())
            queue.records += 1
            queue.changed_ms = self.now_ms

    def look(self, queue: Queue) -> None:
        row = self.shard.state.partition(queue.key)
        if row is not None:
            self.late.append((queue, row.next_offset, self.now_ms))

    def expire(self, queue: Queue, end: int, looked_ms: int) -> None:
        outcome = self.apply(ExpireQueue(queue.key[0], end, looked_ms).envelope())
        if outcome.code or queue not in self.there:
            self.done["kept"] += 1
            return
        self.done["expired"] += 1
        self.there.remove(queue)
        if queue.changed_ms > looked_ms or queue.committed_ms > looked_ms - IDLE:
            raise Lost("it was used since")
        if queue.waiting or queue.open or (queue.records and not queue.with_records):
            raise Lost("it had something")


def run(seed: int) -> Counter[str]:
    return World(seed).run()


@seeds(100, long=10_000, each=100)
def test_nothing_that_was_acknowledged_goes_with_a_queue(seeds: range) -> None:
    seen = sums(run, seeds)
    assert min(seen.values()) > len(seeds)


MISTAKES: dict[str, tuple[str, Any]] = {
    "commits": ("_is_committed_since", lambda *_: False),
    "waiting records": ("waiting_in", lambda get, key: waiting_in(lambda _: None, key)),
    "transactions": ("OPEN_TRANSACTIONS", type("Nothing", (), {"range": lambda *_: (b"~", b"~")})),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    name, value = MISTAKES[mistake]
    monkeypatch.setattr(idle, name, value() if isinstance(value, type) else value)
    with pytest.raises(Lost):
        sums(run, range(60))


def test_an_expiry_that_does_not_look_at_the_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        """An EXPIRE_QUEUE whose end is always the right one."""

        @staticmethod
        def decode(envelope: Envelope) -> Any:
            asked = ExpireQueue.decode(envelope)
            row = shards[-1].state.partition((asked.queue_id, 0))
            return asked if row is None else asked._replace(end=row.next_offset)

    shards: list[MemoryShard] = []
    made = World.__init__

    def noted(self: World, seed: int) -> None:
        made(self, seed)
        shards.append(self.shard)

    monkeypatch.setattr(World, "__init__", noted)
    monkeypatch.setattr(idle, "ExpireQueue", Blind)
    with pytest.raises(Lost):
        sums(run, range(60))
