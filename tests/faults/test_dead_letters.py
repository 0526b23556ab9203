"""Dead letters while servers are killed: each record that a group gives up is there once.

A member rejects all records of some partitions. Again and again the server that has them is killed
with SIGKILL right after it has answered, before the dead letters are sent, or settled. Then the
dead-letter queue must hold each record of which the rejection was answered, or done, once.
"""

import random
import time
from collections import Counter
from contextlib import closing

from confluent_kafka import KafkaException, Message, TopicPartition

from tests.clients.calls import WAIT_S, alter, consumer, create, producer
from tests.clients.shares.members import FLAGS, REJECT, configure, member, poll
from tests.clients.shares.test_dead_letters import ENABLED, headers_of
from tests.faults.servers import Servers

__all__ = ["FLAGS"]

QUEUE, DEAD, GROUP = "work", "dlq.work", "g"
PARTITIONS, DEAD_PARTITIONS = 4, 3
RECORDS, KILLS = 1200, 5
DONE_S = 180


def fill(address: str, first: int, count: int) -> None:
    client = producer(address, reconnect_backoff_max_ms=200, enable_idempotence=True)
    for number in range(first, first + count):
        client.produce(QUEUE, b"%d" % number, partition=number % PARTITIONS)
    assert client.flush(2 * WAIT_S) == 0


class Member:
    """A member that rejects each record it is given."""

    def __init__(self, address: str) -> None:
        self.consumer = member(address, GROUP, QUEUE, **{"max.poll.records": 50})
        self.answered: set[tuple[int, int]] = set()
        self.given: set[tuple[int, int]] = set()

    def work(self) -> int:
        """Reject what one poll gives; how many were."""
        messages = poll(self.consumer, 0.2)
        for one in messages:
            self.given.add((one.partition() or 0, one.offset() or 0))
            self.consumer.acknowledge(one, REJECT)
        if not messages:
            return 0
        try:
            answers = self.consumer.commit_sync(5)
        except KafkaException:  # its server died
            return 0
        if any(answers.values()):
            return 0
        self.answered |= {(one.partition() or 0, one.offset() or 0) for one in messages}
        return len(messages)


def letters(address: str) -> list[Message]:
    """Return all records of the dead-letter queue."""
    reader = consumer(address, "reader", enable_auto_commit=False, reconnect_backoff_max_ms=200)
    found: list[Message] = []
    with closing(reader):
        parts = [TopicPartition(DEAD, index, 0) for index in range(DEAD_PARTITIONS)]
        reader.assign(parts)
        for part in parts:
            _, part.offset = reader.get_watermark_offsets(part, WAIT_S, cached=False)
        until = time.monotonic() + WAIT_S
        while len(found) < sum(part.offset for part in parts):
            assert time.monotonic() < until
            found += [one for one in reader.consume(200, 0.2) if one.error() is None]
    return found


def test_each_dead_letter_is_there_once(servers: Servers) -> None:
    rng = random.Random(5)
    create(servers.address, QUEUE, partitions=PARTITIONS)
    create(servers.address, DEAD, partitions=DEAD_PARTITIONS)
    alter(servers.address, DEAD, **ENABLED)
    configure(
        servers.address, GROUP, errors_deadletterqueue_topic_name=DEAD,
        errors_deadletterqueue_copy_record_enable="true", share_record_lock_duration_ms=2000,
        share_delivery_count_limit=10,
    )  # fmt: skip
    worker = Member(servers.address)
    until = time.monotonic() + DONE_S
    with closing(worker.consumer):
        for life in range(KILLS):
            servers.wait_ready()
            fill(servers.address, life * RECORDS // KILLS, RECORDS // KILLS)
            rejected = 0
            while rejected < 20:
                assert time.monotonic() < until
                rejected += worker.work()
            time.sleep(rng.choice((0, 0, 0.05, 0.3)))
            servers.kill(rng)
        servers.wait_ready()
        while len(found := letters(servers.address)) < RECORDS:
            assert time.monotonic() < until, (len(found), len(worker.answered))
            for _ in range(5):
                worker.work()
    time.sleep(1)
    found = letters(servers.address)
    places = [
        tuple(int(headers_of(one)[f"__dlq.errors.{name}"]) for name in ("partition", "offset"))
        for one in found
    ]
    times = Counter(places)
    assert set(times.values()) == {1}
    assert len(times) == RECORDS
    assert times.keys() >= worker.answered
    assert worker.given == times.keys()
    for one, (partition, offset) in zip(found, places, strict=True):
        assert one.value() == b"%d" % (offset * PARTITIONS + partition)
        assert one.partition() == partition % DEAD_PARTITIONS
