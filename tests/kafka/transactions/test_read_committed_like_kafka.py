"""The records of transactions that readers see: answers as a real Kafka 4.3.1 gives them.

Not compared: partitions of a transaction in which it left no record. A real Kafka writes a marker
there too, and an offset is gone.
"""

import random
import struct
from typing import Any

import pytest
from crc32c import crc32c

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served
from tests.kafka.cluster import LONG_AGO, Cluster, batch_head, is_whole, name
from tests.kafka.recorded import Recorded, Target
from tests.kafka.transactions.producer import Producer, alike_in_transactions
from tests.wire import Wire, batches, fetch_values


def two(cluster: Cluster, queue: str, tv: int = 2) -> tuple[Producer, Producer]:
    cluster.make(queue)
    return Producer(cluster, queue + "-1", tv).init(), Producer(cluster, queue + "-2", tv).init()


def seen(cluster: Cluster, queue: str, version: int = 12) -> None:
    """Fetch at every offset, and behind the end."""
    for isolation in (0, 1):
        for offset in range(cluster.end_offset(queue) + 2):
            cluster.fetch(queue, offset, isolation=isolation, version=version)


@pytest.mark.parametrize("tv", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
@alike_in_transactions
def test_markers(cluster: Cluster, queue: str, tv: int, commit: bool) -> None:
    """Byte by byte, but for what is of today: producer id, times, CRC, leader epoch."""
    one, _ = two(cluster, queue, tv)
    one.add((queue, 0)).write(queue).end(commit)
    data = batches(cluster.fetch(queue, 1).records)[0][1]
    (crc,) = struct.unpack_from(">I", data, 17)
    assert crc == crc32c(data[21:])
    first, last = struct.unpack_from(">qq", data, 27)
    assert first == last > LONG_AGO
    assert batch_head(data)[1] == one.pid
    cluster.say("marker", (data[:12].hex(), data[16:17], data[21:27].hex(), data[51:].hex()))


@pytest.mark.parametrize("version", [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16])
@alike_in_transactions
def test_fetch(cluster: Cluster, queue: str, version: int) -> None:
    one, other = two(cluster, queue)
    seen(cluster, queue, version)
    cluster.plain_write(queue, b"a", b"b")
    one.write(queue, b"c", b"d")
    cluster.plain_write(queue, b"e")
    seen(cluster, queue, version)
    other.write(queue, b"f")
    one.abort()
    seen(cluster, queue, version)
    other.commit()
    one.write(queue, b"g")
    cluster.plain_write(queue, b"h")
    seen(cluster, queue, version)


@pytest.mark.parametrize("tv", [1, 2])
@pytest.mark.parametrize("seed", range(3))
@alike_in_transactions
def test_many_producers_in_one_partition(cluster: Cluster, queue: str, tv: int, seed: int) -> None:
    dice = random.Random(seed)
    cluster.make(queue)
    makers = [Producer(cluster, f"{queue}-{n}", tv).init() for n in range(4)]
    busy: set[int] = set()
    for _ in range(25):
        which = dice.randrange(4)
        if which in busy and dice.random() < 0.5:
            makers[which].end(dice.random() < 0.5)
            busy.discard(which)
        else:
            if tv == 1:
                makers[which].add((queue, 0))
            makers[which].write(queue, *[b"v"] * dice.randrange(1, 4))
            busy.add(which)
        cluster.fetch(queue, dice.randrange(cluster.end_offset(queue) + 1))
        cluster.offsets(queue, -1, -2)
    seen(cluster, queue)


@alike_in_transactions
def test_some_at_a_time(cluster: Cluster, queue: str) -> None:
    """Bytes run out."""
    one, other = two(cluster, queue)
    for n in range(8):
        one.write(queue, b"x" * 300)
        other.write(queue, b"y" * 300)
        (one if n % 2 else other).abort()
        (other if n % 2 else one).end(n % 3 == 0)
    offset = 0
    while offset < cluster.end_offset(queue):
        for isolation in (0, 1):
            part = cluster.fetch(queue, offset, isolation=isolation, partition_max_bytes=1000)
        offset = [base for base, data in batches(part.records) if is_whole(data)][-1] + 1


@alike_in_transactions
def test_offsets_by_time(cluster: Cluster, queue: str) -> None:
    """A marker has a time too: -3 finds it, or nothing where it may not be read yet."""
    asked = (-1, -2, -3, 0, 1000, 2000, 2001, 3000, 4000, 5000, 5001)
    one, other = two(cluster, queue)

    def look() -> None:
        cluster.offsets(queue, *asked)

    def times(*ms: int) -> tuple[int, ...]:
        return tuple(LONG_AGO + t for t in ms)

    look()
    one.write(queue, b"a", b"b", times=times(1000, 2000))
    look()
    other.write(queue, b"c", times=times(3000))
    look()
    one.commit()
    look()
    other.write(queue, b"d", times=times(5000))
    one.write(queue, b"e", times=times(4000))
    look()
    other.abort()
    look()
    one.abort()
    look()


@alike_in_transactions
def test_offsets_in_every_version(cluster: Cluster, queue: str) -> None:
    one, other = two(cluster, queue)
    one.write(queue, b"a", b"b").commit()
    other.write(queue, b"c")
    one.write(queue, b"d").abort()
    cluster.offsets(queue, -1, -2, 200_000_000, versions=tuple(range(2, 11)))
    cluster.offsets(queue, -3, versions=(7, 10))
    cluster.offsets(queue + "-absent", -1)


def delete_records(cluster: Cluster, queue: str, offset: int) -> None:
    part = {"partition_index": 0, "offset": offset}
    topics = [{"name": queue, "partitions": [part]}]
    answer = cluster.leader(queue).call(
        ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout": 5000}
    )
    found = answer.topics[0].partitions[0]
    cluster.say(f"delete before {offset}", f"{name(found.error_code)} {found.low_watermark}")


@pytest.mark.parametrize("commit", [True, False])
@alike_in_transactions
def test_records_of_open_transactions_are_deleted(
    cluster: Cluster, queue: str, commit: bool
) -> None:
    """Not compared: a start within a batch, of which a real Kafka takes the batch's first offset
    as the last stable one."""
    one, other = two(cluster, queue)
    for offset in (1, 3, -1):
        one.write(queue, b"a").write(queue, b"b").write(queue, b"c")
        other.write(queue, b"d")
        base = cluster.end_offset(queue) - 4
        delete_records(cluster, queue, offset if offset < 0 else base + offset)
        for isolation in (0, 1):
            for at in range(base + 1, base + 5):
                cluster.fetch(queue, at, isolation=isolation)
        cluster.offsets(queue, -1, -2, 0)
        cluster.producers(queue)
        one.end(commit)
        for isolation in (0, 1):
            for at in range(base + 1, base + 6):
                cluster.fetch(queue, at, isolation=isolation)
        cluster.offsets(queue, -1, -2)
        other.end(not commit)
        cluster.fetch(queue, base + 4)
    delete_records(cluster, queue, -1)
    cluster.fetch(queue, cluster.end_offset(queue))
    one.write(queue).commit()
    cluster.fetch(queue, cluster.end_offset(queue) - 2)


@alike_in_transactions
def test_sessions(cluster: Cluster, queue: str) -> None:
    """Incremental fetches tell of a partition when there is something new to be read."""
    one, other = two(cluster, queue)
    wire = cluster.leader(queue)
    state = {0: [0, 0, 0], 1: [0, 0, 0]}  # by isolation: session, epoch, offset

    def poll() -> None:
        for isolation, (session, epoch, offset) in state.items():
            with Wire(*wire.socket.getpeername()[:2]) as own:
                values = fetch_values(
                    {(queue, 0): offset}, session_id=session, epoch=epoch, isolation=isolation
                )
                answer = own.call(ApiKey.FETCH, 12, values)
            found: list[Any] = []
            for topic in answer.responses:
                for part in topic.partitions:
                    got = batches(part.records)
                    found.append(
                        (part.high_watermark, part.last_stable_offset,
                         [cluster.shown(data) for _, data in got])
                    )  # fmt: skip
                    if got:
                        (delta,) = struct.unpack_from(">i", got[-1][1], 23)
                        offset = got[-1][0] + delta + 1
            state[isolation] = [answer.session_id, epoch + 1, offset]
            cluster.say(f"poll isolation {isolation}", (name(answer.error_code), found))

    poll()
    poll()
    one.write(queue)
    poll()
    poll()
    other.write(queue)
    one.abort()
    poll()
    poll()
    other.commit()
    poll()
    poll()
    cluster.plain_write(queue, b"v")
    poll()


@alike_in_transactions
def test_waiting_for_the_end_of_a_transaction(cluster: Cluster, queue: str) -> None:
    """A long fetch that may read committed records only is woken by a marker, not by a record."""
    one, _ = two(cluster, queue)
    wire = cluster.leader(queue)
    for commit in (True, False):
        one.write(queue)
        end = cluster.end_offset(queue)
        with Wire(*wire.socket.getpeername()[:2]) as own:
            values = fetch_values({(queue, 0): end - 1}, wait_ms=10_000, isolation=1)
            own.send(ApiKey.FETCH, 12, values)
            one.write(queue)
            one.end(commit)
            answer = own.receive(ApiKey.FETCH, 12)[1]
        part = answer.responses[0].partitions[0]
        shown = [cluster.shown(data) for _, data in batches(part.records)]
        cluster.say("woken", (part.last_stable_offset, part.high_watermark, shown))


def test_markers_where_nothing_was_written(recorded: Recorded, server: Served) -> None:
    """Here kproxy differs on purpose: no offset is gone for a transaction without records."""

    def script(target: Target) -> list[int]:
        queue = recorded.name
        with Wire(target.host, target.port) as wire, Cluster(wire) as cluster:
            cluster.make(queue, 2)
            one = Producer(cluster, queue, tv=1).init()
            one.add((queue, 0), (queue, 1)).write(queue).commit()
            return [cluster.end_offset(queue, index) for index in range(2)]

    assert recorded.both(script, server) == ([2, 1], [2, 0])
