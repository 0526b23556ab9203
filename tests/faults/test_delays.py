"""Delayed records while servers are killed: each is seen once, none before it is due, in order.

An idempotent producer goes on sending while a server is killed with SIGKILL, again and again: while
records wait, while they are appended, and while both happens. All of it is recorded as a history
(`tests/histories`).
"""

import random
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from tests.clients.calls import WAIT_S, consumer, create, producer
from tests.clients.transactions.recorded import records
from tests.faults.servers import Servers
from tests.histories.checker import assert_sound
from tests.histories.operations import Recorder, Sends

FIXED, HEADER = "later.fixed", "later.header"
PARTITIONS, DELAY_MS, AHEAD_MS = 3, 700, 2500
KILLS, ROUNDS, AT_ONCE = 4, 12, 10
DONE_S = 150


class Sender:
    """Numbers with the time at which they are due, recorded as they are sent."""

    def __init__(self, address: str, rng: random.Random, recorder: Recorder) -> None:
        self._rng = rng
        self._sends = Sends(recorder, "producer")
        self._producer = producer(
            address, reconnect_backoff_max_ms=200, retry_backoff_ms=50, enable_idempotence=True,
            linger_ms=2,
        )  # fmt: skip
        self.failed: list[object] = []
        self.acknowledged = 0
        self._number = 0

    def _produce(self, queue: str, partition: int, value: bytes, **more: Any) -> None:
        note = self._sends.add([queue, partition, None, value], has_offset=False)

        def delivered(error: object, message: Message) -> None:
            note(error, message)
            self.acknowledged += not error
            if error:
                self.failed.append(error)

        self._producer.produce(queue, value, partition=partition, on_delivery=delivered, **more)

    def send(self) -> None:
        for _ in range(AT_ONCE):
            self._number += 1
            now_ms = int(time.time() * 1000)
            due_ms = now_ms + DELAY_MS
            partition = self._number % PARTITIONS
            self._produce(FIXED, partition, b"%d %d" % (self._number, due_ms))
            due_ms = now_ms + self._rng.randrange(-100, AHEAD_MS)
            headers = {"kproxy.deliver-at": str(due_ms)}
            self._produce(HEADER, partition, b"%d %d" % (self._number, due_ms), headers=headers)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(3 * WAIT_S) == 0
        self._sends.close()
        assert not self.failed, self.failed[:3]


def end_of(consumer: Consumer, part: TopicPartition) -> int:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(part, WAIT_S, cached=False)[1])
        except KafkaException:  # its shard is being taken over
            if time.monotonic() > until:
                raise
            time.sleep(0.1)  # a poll would take records


def there(address: str, queue: str, recorder: Recorder) -> list[list[Message]]:
    """Return all records of a queue by now, by partition."""
    reading = recorder.invoke("poll", process=f"reader {time.monotonic_ns()}")
    found: list[list[Message]] = [[] for _ in range(PARTITIONS)]
    reader = consumer(address, "reader", enable_auto_commit=False, reconnect_backoff_max_ms=200)
    with closing(reader):
        parts = [TopicPartition(queue, index, 0) for index in range(PARTITIONS)]
        reader.assign(parts)
        ends = [end_of(reader, part) for part in parts]
        until = time.monotonic() + WAIT_S
        while sum(map(len, found)) < sum(ends):
            assert time.monotonic() < until, ([len(part) for part in found], ends)
            for one in reader.consume(500, 0.2):
                if one.error() is None:
                    found[one.partition() or 0].append(one)
    reading.ok(records([one for part in found for one in part]))
    return found


def test_each_is_seen_once_and_never_early(servers: Servers, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history/test.jsonl", "test")
    recorder.rules(whole=True, unordered=[HEADER])
    rng = random.Random(7)
    servers.wait_ready()
    create(servers.address, FIXED, partitions=PARTITIONS, kproxy_delay_ms=DELAY_MS)
    create(servers.address, HEADER, partitions=PARTITIONS, kproxy_delay="header")
    sender = Sender(servers.address, rng, recorder)
    until = time.monotonic() + DONE_S
    for _ in range(KILLS):
        servers.wait_ready()
        for _ in range(ROUNDS):
            sender.send()
            time.sleep(rng.choice((0.02, 0.05, 0.1)))
        servers.kill(rng)
    sender.flush()
    sent = KILLS * ROUNDS * AT_ONCE
    for queue in (FIXED, HEADER):
        found = there(servers.address, queue, recorder)
        while sum(map(len, found)) < sent:
            assert time.monotonic() < until, sum(map(len, found))
            time.sleep(0.2)
            found = there(servers.address, queue, recorder)
        values = [one.value() or b"" for part in found for one in part]
        assert len(values) == len(set(values)) == sent
        for part in found:
            for one in part:
                number, due_ms = map(int, (one.value() or b"").split())
                kind, time_ms = one.timestamp()
                waited = kind == TIMESTAMP_LOG_APPEND_TIME  # else it was due when it came
                assert waited or queue == HEADER
                assert time_ms >= due_ms or not waited, f"{number} is early"
    time.sleep(1)
    assert sum(len(part) for part in there(servers.address, HEADER, recorder)) == sent
    assert_sound(tmp_path / "history")
