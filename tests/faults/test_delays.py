"""Delayed records while servers are killed: each is seen once, none before it is due, in order.

An idempotent producer goes on sending while a server is killed with SIGKILL, again and again: while
records wait, while they are appended, and while both happens.
"""

import random
import time
from contextlib import closing

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from tests.clients.calls import WAIT_S, consumer, create, producer
from tests.faults.servers import Servers

FIXED, HEADER = "later.fixed", "later.header"
PARTITIONS, DELAY_MS, AHEAD_MS = 3, 700, 2500
KILLS, ROUNDS, AT_ONCE = 4, 12, 10
DONE_S = 150


class Sender:
    """Numbers with the time at which they are due, and which of them were acknowledged."""

    def __init__(self, address: str, rng: random.Random) -> None:
        self._rng = rng
        self._producer = producer(
            address, reconnect_backoff_max_ms=200, retry_backoff_ms=50, enable_idempotence=True,
            linger_ms=2,
        )  # fmt: skip
        self.acknowledged: set[bytes] = set()
        self.failed: list[object] = []
        self._number = 0

    def _done(self, error: object, message: Message) -> None:
        if error:
            self.failed.append(error)
        else:
            self.acknowledged.add(message.value() or b"")

    def send(self) -> None:
        for _ in range(AT_ONCE):
            self._number += 1
            now_ms = int(time.time() * 1000)
            due_ms = now_ms + DELAY_MS
            partition = self._number % PARTITIONS
            self._producer.produce(
                FIXED, b"%d %d" % (self._number, due_ms), partition=partition,
                on_delivery=self._done,
            )  # fmt: skip
            due_ms = now_ms + self._rng.randrange(-100, AHEAD_MS)
            self._producer.produce(
                HEADER, b"%d %d" % (self._number, due_ms), partition=partition,
                headers={"kproxy.deliver-at": str(due_ms)}, on_delivery=self._done,
            )  # fmt: skip
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(3 * WAIT_S) == 0
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


def there(address: str, queue: str) -> list[list[Message]]:
    """Return all records of a queue by now, by partition."""
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
    return found


def test_each_is_seen_once_and_never_early(servers: Servers) -> None:
    rng = random.Random(7)
    servers.wait_ready()
    create(servers.address, FIXED, partitions=PARTITIONS, kproxy_delay_ms=DELAY_MS)
    create(servers.address, HEADER, partitions=PARTITIONS, kproxy_delay="header")
    sender = Sender(servers.address, rng)
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
        found = there(servers.address, queue)
        while sum(map(len, found)) < sent:
            assert time.monotonic() < until, sum(map(len, found))
            time.sleep(0.2)
            found = there(servers.address, queue)
        values = [one.value() or b"" for part in found for one in part]
        assert len(values) == len(set(values)) == sent
        assert set(values) <= sender.acknowledged
        for part in found:
            numbers = []
            for one in part:
                number, due_ms = map(int, (one.value() or b"").split())
                numbers.append(number)
                kind, time_ms = one.timestamp()
                waited = kind == TIMESTAMP_LOG_APPEND_TIME  # else it was due when it came
                assert waited or queue == HEADER
                assert time_ms >= due_ms or not waited, f"{number} is early"
            if queue == FIXED:
                assert numbers == sorted(numbers)
    time.sleep(1)
    assert sum(len(part) for part in there(servers.address, HEADER)) == sent
