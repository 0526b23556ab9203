"""An entrance while servers are killed and stopped: each record is once in its queue, in order.

An idempotent producer puts records into an entrance of four partitions; a filter takes some of
them from it. Again and again a server is killed with SIGKILL or stands still for longer than its
session, while cuts are on their way. In the end each queue has what its key was given, in that
order, and the filter's queue what it asked for. The history (`tests/histories`) is sound, too.
"""

import random
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.clients.calls import WAIT_S, consumer
from tests.clients.routes.calls import entrance, producer, taking
from tests.clients.transactions.recorded import records
from tests.faults.servers import Servers
from tests.harness import eventually
from tests.histories.checker import assert_sound
from tests.histories.operations import Recorder, Sends

ENTRANCE, FILTERED, LOST = "in", "red", "lost"
PARTITIONS = 4
RED_EVERY, LOST_EVERY = 7, 50


class Size(NamedTuple):
    records: int
    queues: int
    disturbances: int
    limit_s: int


SHORT = Size(16_000, 300, 4, 120)
LONG = Size(1_000_000, 10_000, 60, 3000)


def make(address: str) -> None:
    """Create the entrance, and the queue that takes some of its records."""
    entrance(address, ENTRANCE, "to.{key}", PARTITIONS, LOST)
    taking(address, FILTERED, ENTRANCE, "header:tag:red")


class Work:
    """The records produced, by the queue that is to have them."""

    def __init__(self, address: str, queues: int, histories: Path) -> None:
        self.histories = histories
        self.recorder = Recorder(histories / "test.jsonl", "test")
        self.recorder.rules(whole=True, unordered=[FILTERED, LOST])
        self._sends = Sends(self.recorder, "producer")
        self.wanted: dict[str, list[bytes]] = {}
        self.red: Counter[bytes] = Counter()
        self._queues = queues
        self._number = self.acknowledged = 0
        self._failed: list[Any] = []
        self._producer = producer(
            address, retry_backoff_ms=50, queue_buffering_max_messages=100_000,
            message_timeout_ms=300_000,
        )  # fmt: skip

    def produce(self, records: int, seconds: float) -> None:
        """Produce so many records, spread over a time."""
        began = time.monotonic()
        for done in range(records):
            self._one(self._number)
            self._number += 1
            if done % 100 == 0:
                self._producer.poll(max(0.0, began + seconds * done / records - time.monotonic()))

    def _one(self, number: int) -> None:
        key: bytes | None = b"k%d" % (number % self._queues)
        value, headers = b"%d" % number, []
        queue = f"to.k{number % self._queues}"
        if number % LOST_EVERY == 0:
            key, queue = b"not a name", LOST
        if number % RED_EVERY == 0:
            headers = [("tag", b"red")]
            self.red[value] += 1
        self.wanted.setdefault(queue, []).append(value)
        places = [queue, FILTERED] if headers else [queue]
        note = self._sends.add(*([one, 0, None, value] for one in places), has_offset=False)

        def delivered(error: Any, message: Any) -> None:
            note(error, message)
            self.acknowledged += not error
            if error:
                self._failed.append(error)

        while True:
            try:
                self._producer.produce(ENTRANCE, value, key, headers=headers, on_delivery=delivered)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def finish(self, seconds: float) -> None:
        assert self._producer.flush(seconds) == 0
        self._sends.close()
        assert not self._failed, self._failed[:3]


def ends(reader: Consumer, queues: list[str]) -> dict[str, int]:
    found = {}
    for queue in queues:
        part = TopicPartition(queue, 0)
        with suppress(KafkaException):  # the leader may have just changed
            found[queue] = reader.get_watermark_offsets(part, WAIT_S, cached=False)[1]
    return found


def contents(
    address: str, wanted: dict[str, int], partitions: int = 1, recorder: Recorder | None = None
) -> dict[str, list[bytes]]:
    """Return all records of these queues, and check that there are so many and no more."""
    reader = consumer(
        address, "reader", enable_auto_commit=False, reconnect_backoff_max_ms=200,
        topic_metadata_refresh_interval_ms=-1,
    )  # fmt: skip
    found: dict[str, list[bytes]] = {queue: [] for queue in wanted}
    with closing(reader):
        reader.assign(
            [TopicPartition(queue, part, 0) for queue in wanted for part in range(partitions)]
        )
        left, until = sum(wanted.values()), time.monotonic() + WAIT_S
        while time.monotonic() < until:
            began = time.monotonic_ns()
            messages = [one for one in reader.consume(5000, 0.5) if one.error() is None]
            if messages and recorder is not None:
                recorder.invoke("poll", at=began).ok(records(messages))
            for one in messages:
                found[one.topic() or ""].append(one.value() or b"")
                left -= 1
                until = time.monotonic() + (WAIT_S if left > 0 else 1)
    return found


def problems(wanted: dict[str, list[bytes]], found: dict[str, list[bytes]]) -> list[str]:
    """List the records lost, doubled, or out of order, by queue."""
    said = []
    for queue, values in wanted.items():
        times, due = Counter(found.get(queue, [])), Counter(values)
        said += [f"{queue}: lost {value!r}" for value in due - times]
        said += [f"{queue}: too much {value!r}" for value in times - due]
        if times == due and queue != LOST and found[queue] != values:
            said.append(f"{queue}: out of order")
    return said


def of_the_entrance(address: str, work: Work) -> list[str]:
    """Whether the entrance itself has what it was given, to tell what the fault is of."""
    given = [value for values in work.wanted.values() for value in values]
    has = Counter(contents(address, {ENTRANCE: len(given)}, PARTITIONS)[ENTRANCE])
    missing, doubled = Counter(given) - has, has - Counter(given)
    return [
        f"the entrance lacks {missing.total()}: {list(missing)[:3]}",
        f"the entrance has {doubled.total()} too much: {list(doubled)[:3]}",
    ]


@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_each_record_is_once_in_its_queue_and_in_order(
    servers: Servers, tmp_path: Path, size: Size
) -> None:
    rng = random.Random(11)
    make(servers.address)
    work = Work(servers.address, size.queues, tmp_path / "history")
    for disturbance in range(size.disturbances):
        servers.wait_ready()
        work.produce(size.records // size.disturbances, 2.0)
        if disturbance % 3 == 1:
            servers.stop_one()
        else:
            servers.kill(rng)
    servers.wait_ready()
    work.finish(size.limit_s)
    wanted = {queue: len(values) for queue, values in work.wanted.items()}
    wanted[FILTERED] = work.red.total()
    with closing(consumer(servers.address, "ends")) as reader:

        def landed() -> bool:
            some = rng.sample(sorted(wanted), min(20, len(wanted)))
            found = ends(reader, some)
            return all(found.get(queue, 0) >= wanted[queue] for queue in some)

        eventually(landed, size.limit_s)
        for queue, count in wanted.items():

            def whole(queue: str = queue, count: int = count) -> bool:
                return ends(reader, [queue]).get(queue, 0) >= count

            eventually(whole, WAIT_S)
    found = contents(servers.address, wanted, recorder=work.recorder)
    said = problems(work.wanted, found)
    assert said == [], (len(said), said[:5], of_the_entrance(servers.address, work))
    assert Counter(found[FILTERED]) == work.red
    assert_sound(work.histories)


def test_checker_finds_planted_faults() -> None:
    wanted = {"a": [b"1", b"2"], LOST: [b"3", b"4"]}
    assert problems(wanted, {"a": [b"1", b"2"], LOST: [b"4", b"3"]}) == []
    assert problems(wanted, {"a": [b"2", b"1"], LOST: [b"3", b"4"]}) == ["a: out of order"]
    assert problems(wanted, {"a": [b"1"], LOST: [b"3", b"4"]}) == ["a: lost b'2'"]
    doubled = {"a": [b"1", b"2", b"2"], LOST: [b"3", b"4"]}
    assert problems(wanted, doubled) == ["a: too much b'2'"]
