"""Seeded: several workers append to one shard's log at once, over a network that does anything.

Appends are delayed, reordered between workers, lost and doubled; reports are delayed and lost;
readers lag; workers die and come back with nothing. In all cases every worker's rows must be
the fold of the log, byte for byte, and every outcome that was answered that of its place in it.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.log.sequencer import Applied, Sequencer
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.types import QueueId
from tests.commands import command
from tests.fakes import MemoryShard
from tests.simulation.seeds import seeds, sums
from tests.simulation.twice import fold_twice
from tests.wire import batch

pytestmark = pytest.mark.usefixtures("one_producer_inline")

STEPS = 150
WORKERS = 3
QUEUES = [QueueId(bytes([i]) * 16) for i in range(1, 4)]


@dataclass
class Worker:
    """A worker's copy of the shard, and what it answered."""

    life: int
    counter: int = 0
    read_to: int = 0
    shard: MemoryShard = field(default_factory=MemoryShard)
    reports: list[tuple[int, int]] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sequencer = Sequencer(self.life, 0)

    def apply(self, ready: list[Applied]) -> None:
        for offset, envelope, counter in ready:
            assert offset == len(self.shard.log)
            outcome = self.shard.apply(envelope)
            if counter is not None:
                self.answers[counter] = (offset, outcome)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[Envelope] = []
        self.flying: list[tuple[Worker, Envelope]] = []
        self.lives = 0
        self.workers = [self.born() for _ in range(WORKERS)]
        self.sequences = dict.fromkeys(QUEUES, 0)
        self.done: Counter[str] = Counter()

    def born(self) -> Worker:
        self.lives += 1
        return Worker(self.lives)

    def run(self) -> None:
        for _ in range(STEPS):
            worker = self.rng.choice(self.workers)
            self.rng.choices(
                (self.send, self.land, self.report, self.read, self.give_up, self.die),
                (6, 6, 5, 6, 0.4, 0.15),
            )[0](worker)
        while self.flying:
            self.land(self.workers[0])
        for worker in self.workers:
            self.read(worker, everything=True)
        self.check()

    def send(self, worker: Worker) -> None:
        envelope = self.envelope()
        envelope.writer, envelope.counter = worker.life, worker.counter
        worker.sequencer.sent(envelope)
        worker.counter += 1
        self.flying.append((worker, envelope))

    def land(self, _: Worker) -> None:
        """Land the earliest of some worker's appends in the log, or lose it on the way."""
        if not self.flying:
            return
        owner = self.rng.choice(self.flying)[0]
        at = next(i for i, flight in enumerate(self.flying) if flight[0] is owner)
        _, envelope = self.flying.pop(at)
        if self.rng.random() < 0.05:
            owner.sequencer.unreported(envelope.counter)
            self.done["lost"] += 1
            return
        if self.rng.random() < 0.95:  # else the report is lost: the reader will bring it
            owner.reports.append((envelope.counter, len(self.log)))
        else:
            self.done["not reported"] += 1
        self.log.append(envelope)
        if self.rng.random() < 0.03:  # a producer that was not idempotent sent it again
            self.log.append(envelope)
            self.done["landed twice"] += 1

    def report(self, worker: Worker) -> None:
        if worker.reports:
            worker.apply(worker.sequencer.reported(*worker.reports.pop(0)))

    def read(self, worker: Worker, everything: bool = False) -> None:
        end = len(self.log)
        if not everything:
            end = min(end, worker.read_to + self.rng.randrange(1, 6))
        for offset in range(worker.read_to, end):
            worker.apply(worker.sequencer.read(offset, self.log[offset]))
        worker.read_to = end

    def give_up(self, worker: Worker) -> None:
        if worker.counter:
            worker.sequencer.unreported(self.rng.randrange(worker.counter))
            self.done["given up"] += 1

    def die(self, worker: Worker) -> None:
        """Restart a worker as another writer, which knows nothing; its appends may still land."""
        amid = any(flight[0] is worker for flight in self.flying)
        self.done["died amid appends" if amid else "died"] += 1
        self.workers[self.workers.index(worker)] = self.born()

    def envelope(self) -> Envelope:
        queue = self.rng.choice(QUEUES)
        dice = self.rng.random()
        if dice < 0.1:
            name = f"q{queue[0]}"
            values = {"name": name, "partitions": 1, "configs": {}}
            return command(Kind.CREATE, queue, values=values)
        if dice < 0.14:
            return command(Kind.TRIM, queue, 0, number=self.rng.randrange(-1, 9))
        if dice < 0.2:
            offsets = [[queue.hex(), 0, self.rng.randrange(9), -1, "", False]]
            return command(Kind.COMMIT, values={"group": "g", "offsets": offsets})
        if dice < 0.22:
            return command(Kind.DELETE, queue)
        sequence = max(0, self.sequences[queue] - self.rng.choice((0, 0, 0, 1)))
        self.sequences[queue] = sequence + 1
        body = batch(b"v", producer_id=self.rng.randrange(-1, 3), epoch=0, sequence=sequence)
        return Envelope(Kind.APPEND, queue, 0, time_ms=self.rng.randrange(3), body=body)

    def check(self) -> None:
        self.done += fold_twice(self.log)
        truth = MemoryShard()
        outcomes = [truth.apply(envelope) for envelope in self.log]
        for worker in self.workers:
            assert worker.sequencer.next_offset == len(self.log)
            assert not worker.sequencer.gap
            assert worker.shard.kv.rows == truth.kv.rows
            for counter, (offset, outcome) in worker.answers.items():
                landed = self.log[offset]
                assert (landed.writer, landed.counter) == (worker.life, counter)
                assert outcome == outcomes[offset]
            self.done["answered"] += sum(
                outcome.code == Code.NONE for _, outcome in worker.answers.values()
            )


def run(seed: int) -> Counter[str]:
    simulation = Simulation(seed)
    simulation.run()
    return simulation.done


@seeds(1000, each=100)
def test_all_workers_agree_with_the_log(seeds: range) -> None:
    assert sums(run, seeds)["answered"] > 200
