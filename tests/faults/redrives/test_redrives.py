"""A redrive while servers are killed: each letter is where it came from once, and in order.

Dead letters of many queues lie in four partitions. A redrive gives them back; again and again, as
long as it goes on, a server is killed with SIGKILL. In the end each queue has its letters, each
once, those of one partition in their order, and as the records that they were.
"""

import random
import time
from collections import Counter, defaultdict
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.clients.calls import WAIT_S, alter, consumer, create
from tests.clients.routes.calls import producer
from tests.clients.shares.test_dead_letters import headers_of
from tests.faults.servers import Servers
from tests.faults.test_routes import ends
from tests.harness import eventually

WORKERS = 2
DEAD, PARTITIONS = "dlq.work", 4


class Size(NamedTuple):
    letters: int
    queues: int
    rate: str
    kills: int  # at least
    limit_s: int


SHORT = Size(1200, 6, "400/s", 2, 120)
LONG = Size(1_000_000, 100, "20000/s", 10, 3000)


def fill(address: str, size: Size) -> None:
    client = producer(address, queue_buffering_max_messages=100_000)
    for number in range(size.letters):
        headers = {
            "number": str(number), "__dlq.errors.topic": f"work-{number % size.queues}",
            "kproxy.dlq.cause": "rejected",
        }  # fmt: skip
        while True:
            try:
                client.produce(DEAD, b"%d" % number, partition=number % PARTITIONS, headers=headers)
                break
            except BufferError:
                client.poll(0.1)
    assert client.flush(10 * WAIT_S) == 0


def contents(address: str, queues: list[str], count: int) -> dict[str, list[Message]]:
    """Return all records of these queues, once there are so many and none more comes."""
    reader = consumer(
        address, "reader", enable_auto_commit=False, reconnect_backoff_max_ms=200,
        topic_metadata_refresh_interval_ms=-1,
    )  # fmt: skip
    found: dict[str, list[Message]] = defaultdict(list)
    with closing(reader):
        reader.assign([TopicPartition(queue, 0, 0) for queue in queues])
        left, until = count, time.monotonic() + WAIT_S
        while time.monotonic() < until:
            messages = [one for one in reader.consume(5000, 0.5) if one.error() is None]
            for one in messages:
                found[one.topic() or ""].append(one)
            left -= len(messages)
            if messages:
                until = time.monotonic() + (WAIT_S if left > 0 else 1)
    return found


def problems(found: dict[str, list[Message]], size: Size) -> list[str]:
    """List the letters lost, doubled, at a wrong place, out of order, or not as they were."""
    said = []
    times: Counter[int] = Counter()
    for queue, messages in found.items():
        last = [-1] * PARTITIONS
        for one in messages:
            number = int(one.value() or b"")
            times[number] += 1
            if queue != f"work-{number % size.queues}":
                said.append(f"{number} is in {queue}")
            if headers_of(one) != {"number": str(number), "kproxy.redriven": "1"}:
                said.append(f"{number} has {headers_of(one)}")
            if number <= last[number % PARTITIONS]:
                said.append(f"{number} is out of order in {queue}")
            last[number % PARTITIONS] = number
    said += [f"lost {number}" for number in range(size.letters) if not times[number]]
    return said + [
        f"{number} is there {count} times" for number, count in times.items() if count > 1
    ]


def ordered(address: str, settings: dict[str, str]) -> bool:
    """Order a redrive; the same one again is the same."""
    with suppress(KafkaException):  # nobody has answered in time
        alter(address, DEAD, **settings)
        return True
    return False


def reached(reader: Consumer, queues: list[str], count: int) -> int:
    """Return how many records the queues have had, if there are so many; else 0."""
    found = sum(ends(reader, queues).values())
    return found if found >= count else 0


@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_each_letter_is_redriven_once_and_in_order(servers: Servers, size: Size) -> None:
    rng = random.Random(7)
    queues = [f"work-{number}" for number in range(size.queues)]
    create(servers.address, DEAD, partitions=PARTITIONS)
    create(servers.address, *queues)
    fill(servers.address, size)
    settings = {"kproxy_redrive_to": "work-*", "kproxy_redrive_job": "1"}
    if size.rate:
        settings["kproxy_redrive_rate"] = size.rate
    eventually(partial(ordered, servers.address, settings), size.limit_s)
    step, landed, kills = size.letters // (2 * size.kills), 0, 0
    with closing(consumer(servers.address, "ends", reconnect_backoff_max_ms=200)) as reader:
        while landed < size.letters:
            wanted = min(landed + step, size.letters)
            landed = eventually(partial(reached, reader, queues, wanted), size.limit_s)
            if landed < size.letters:
                servers.kill(rng)
                servers.wait_ready()
                kills += 1
    assert kills >= size.kills, "it was over too soon"
    found = contents(servers.address, queues, size.letters)
    said = problems(found, size)
    assert said == [], (len(said), said[:5])
