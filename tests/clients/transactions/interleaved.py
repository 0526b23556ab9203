"""Transactions that send and poll at random, over queues that they share; all is recorded.

    python -m tests.clients.transactions.interleaved ADDRESS PREFIX SLOT QUEUES HISTORIES

runs one transaction after another with librdkafka, until something fails. A `group` slot shares the
queues with its fellows, and commits its offsets in the transactions; an `all` slot polls each queue
from where it is; a `reader` slot polls by itself, and looks at ends and committed offsets. Members
poll committed records alone.
"""

import os
import random
import sys
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tests.clients.calls import create
from tests.clients.transactions.calls import (
    COMMITTED,
    UNCOMMITTED,
    committed_offsets,
    ends,
    read,
    settle,
    transactional,
)
from tests.clients.transactions.processes import Processes
from tests.clients.transactions.recorded import Transaction, places, poll
from tests.histories.operations import Recorder

SLOTS = ("group-1", "group-2", "all-1", "all-2", "reader-1")
ABORTED = 0.2
AT_ONCE, POLL_S = 20, 0.03
PAUSE_S = 0.02


def names(prefix: str, queues: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(queues)]


class Member:
    """One that polls, and runs transactions."""

    def __init__(self, address: str, prefix: str, slot: str, queues: list[str], into: Path) -> None:
        name = f"{slot}.{os.getpid()}"
        self.address, self.group, self.queues = address, prefix, queues
        self.name = name
        self.recorder = Recorder(into / f"{name}.jsonl", name)
        self.in_group = slot.startswith("group")
        self._rng = random.Random(name)
        self._sent = 0
        self._open: Transaction | None = None
        self.consumer = Consumer(
            {"bootstrap.servers": address, "group.id": prefix, "session.timeout.ms": 6000,
             "heartbeat.interval.ms": 500, "isolation.level": COMMITTED, "log_level": 0,
             "enable.auto.commit": False, "auto.offset.reset": "earliest",
             "reconnect.backoff.max.ms": 200}
            | ({"group.instance.id": slot} if self.in_group else {})
        )  # fmt: skip
        if self.in_group:
            self.consumer.subscribe(queues, on_assign=self._assigned)
        else:
            self.consumer.assign([TopicPartition(one, 0, OFFSET_BEGINNING) for one in queues])

    def _assigned(self, _: Consumer, parts: list[TopicPartition]) -> None:
        if self._open is not None:
            self._open.assigned(parts)
        else:
            self.recorder.event("ok", "assign", places(parts))

    def read(self) -> None:
        """Poll, and look at what only grows."""
        poll(self.recorder, self.consumer, AT_ONCE, 0.1)
        looking = self._rng.choice(["ends", "offsets", "none", "none"])
        try:
            if looking == "ends":
                level = self._rng.choice([COMMITTED, UNCOMMITTED])
                look_at_ends(self.recorder, self.address, self.queues, level)
            elif looking == "offsets":
                look_at_offsets(self.recorder, self.address, self.group, self.queues)
        except (KafkaException, TimeoutError):  # pending offsets; a server that is away
            time.sleep(0.1)

    def run(self, producer: object) -> None:
        """Run one transaction."""
        rng = self._rng
        plan = [rng.choice([*self.queues, None]) for _ in range(rng.randrange(2, 6))]
        values = []
        for queue in plan:
            if queue is not None:
                self._sent += 1
                values.append((queue, f"{self.name}.{self._sent}".encode()))
        left = iter(values)
        positions: dict[str, int] = {}
        first: dict[str, int] = {}
        running = self._open = Transaction(self.recorder, producer, values)  # type: ignore[arg-type]
        for queue in plan:
            if queue is not None:
                running.send(*next(left))
                if rng.random() < 0.5:
                    running.flush()
                continue
            for one in running.poll(self.consumer, AT_ONCE, POLL_S):
                first.setdefault(one.topic() or "", one.offset() or 0)
                positions[one.topic() or ""] = (one.offset() or 0) + 1
        if self.in_group and positions:
            running.commit_offsets(self.consumer, self.group, positions)
        if rng.random() > ABORTED:
            running.commit()
            self._open = None
            return
        running.abort()
        self._open = None
        if self.in_group:  # its successor would do so, too
            for queue, offset in first.items():
                self.consumer.seek(TopicPartition(queue, 0, offset))
            back = [[queue, 0, offset] for queue, offset in first.items()]
            self.recorder.event("ok", "assign", back)


def look_at_ends(recorder: Recorder, address: str, queues: list[str], level: str) -> None:
    looking = recorder.invoke("ends", level)
    found = ends(address, queues, level)
    looking.ok([[queue, 0, end] for queue, end in found.items()])


def look_at_offsets(recorder: Recorder, address: str, group: str, queues: list[str]) -> None:
    looking = recorder.invoke("offsets")
    found = committed_offsets(address, group, queues)
    looking.ok([group, [[queue, 0, offset] for queue, offset in found.items()]])


class Work(Processes):
    """Queues, and the processes that work on them."""

    def __init__(self, address: str, prefix: str, queues: int, histories: Path) -> None:
        super().__init__(histories.parent / "members.log")
        self.address, self.prefix, self.histories = address, prefix, histories
        self.queues = names(prefix, queues)
        create(address, *self.queues)
        self._recorder = Recorder(histories / "test.jsonl", "test")
        self._recorder.rules(whole=True)
        for slot in SLOTS:
            self.run(
                slot, sys.executable, "-m", "tests.clients.transactions.interleaved", address,
                prefix, slot, str(queues), str(histories),
            )  # fmt: skip

    def committed(self) -> int:
        """Return the number of transactions committed so far."""
        events = [path.read_bytes() for path in self.histories.glob("*.[0-9]*.jsonl")]
        return sum(some.count(b'"type": "ok", "f": "txn"') for some in events)

    def finish(self, seconds: float) -> None:
        """Stop all, end what is open, and read all."""
        self.stop()
        for slot in SLOTS:
            if not slot.startswith("reader"):
                transactional(self.address, f"{self.prefix}-{slot}")
        settle(self.address, self.queues, seconds)
        reading = self._recorder.invoke("poll", COMMITTED)
        found = read(self.address, self.queues)
        reading.ok([[queue, 0, at, value] for queue, some in found.items() for at, value in some])
        for level in (COMMITTED, UNCOMMITTED):
            look_at_ends(self._recorder, self.address, self.queues, level)
        look_at_offsets(self._recorder, self.address, self.prefix, self.queues)


def main(address: str, prefix: str, slot: str, queues: str, histories: str) -> None:
    member = Member(address, prefix, slot, names(prefix, int(queues)), Path(histories))
    if slot.startswith("reader"):
        while True:
            member.read()
    producer = transactional(address, f"{prefix}-{slot}", **{"transaction.timeout.ms": 10_000})
    while True:
        member.run(producer)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
