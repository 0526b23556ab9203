"""ShareFetch (KIP-932): answers as a real Kafka 4.3.1 gives them.

Differences on purpose are kept out: a topic that is not there fails the whole request of a real
Kafka (UNKNOWN_SERVER_ERROR), as an unknown acquire mode does.
"""

from itertools import pairwise
from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.shares.cluster import ShareCluster, alike_in_shares
from tests.kafka.shares.sharer import (
    ACCEPT,
    NOT_LONG_MS,
    REJECT,
    RELEASE,
    RENEW,
    Sharer,
    acquired,
    another,
    sharing,
)
from tests.wire import Wire


@alike_in_shares
def test_sessions(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    part = (queue, 0)
    for epoch in (1, -1, -2):
        one.nothing(part, epoch=epoch)
    one.nothing(epoch=0, acks={part: [(0, 0, ACCEPT)]})
    cluster.write(queue, 3, 1, 3)
    one.fetch(part)
    for epoch in (7, -2):
        one.nothing(epoch=epoch)
    one.nothing(epoch=0)  # a new session, without partitions; what it has it keeps
    one.nothing()
    one.ack({part: [(0, 1, ACCEPT)]})
    for changes in (
        {"group_id": None}, {"member_id": None}, {"member_id": ""}, {"member_id": "x" * 37},
        {"member_id": "x" * 36}, {"member_id": "not a uuid"},
    ):  # fmt: skip
        one.nothing(part, epoch=0, **changes)
    one.nothing(part, epoch=-1, acks={part: [(2, 2, ACCEPT), (3, 3, RELEASE)]})
    one.nothing(epoch=-1)  # 4 to 6 it keeps: they are of no partition of that session
    one.fetch(part)
    one.close()
    one.fetch(part)


@alike_in_shares
def test_partitions_come_and_go(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue, partitions=3)
    parts = [(queue, index) for index in range(3)]
    one.nothing(parts[0])
    cluster.write(queue, 2)
    one.fetch()
    cluster.write(queue, 2, partition=1)
    one.nothing()
    one.fetch(parts[1])
    cluster.write(queue, 2, partition=2)
    one.fetch(parts[2], forget=[parts[1]])
    cluster.write(queue, 1, partition=1)
    one.nothing()
    one.fetch(parts[1])
    for index in (9, -1):
        one.nothing((queue, index))
        one.nothing()
        one.nothing(forget=[(queue, index)])
    one.nothing(epoch=-1, acks={parts[0]: [(0, 1, ACCEPT)]})
    one.fetch(parts[2], epoch=0)


@alike_in_shares
def test_strangers(cluster: ShareCluster, queue: str) -> None:
    """A fetch need not be a member's; the group must have been given the partition."""
    one = sharing(cluster, queue)
    part = (queue, 0)
    cluster.write(queue, 2)
    another(one, "stranger").fetch(part)
    cluster.make(queue + "-other")
    cluster.write(queue + "-other", 1)
    one.fetch((queue + "-other", 0))
    Sharer(cluster, queue + "-no-group", "one", queue).fetch(part)
    one.nothing(part)


LIMITS = [
    (5, 500), (3, 3), (7, 2), (10, 10), (1, 1), (12, 4), (500, 3), (500, 1), (4, 100),
]  # fmt: skip


@pytest.mark.parametrize(("version", "mode"), [(1, 0), (2, 0), (2, 1)])
@alike_in_shares
def test_limits(cluster: ShareCluster, queue: str, version: int, mode: int) -> None:
    """Batches of 3, 1, 5, 2, 10 and 1 records, by MaxRecords and BatchSize."""
    cluster.make(queue)
    cluster.write(queue, 3, 1, 5, 2, 10, 1)
    for records, size in LIMITS:
        group = f"{queue}-{records}-{size}"
        cluster.configure(group, share_auto_offset_reset="earliest")
        one = Sharer(cluster, group, "one", queue).silently(1)
        limits: dict[str, Any] = {
            "records": records, "batch_size": size, "version": version, "mode": mode,
        }  # fmt: skip
        one.fetch((queue, 0), **limits)
        left = one.got[queue, 0][-1][1] < 21
        (one.fetch if left else one.nothing)(**limits)


@alike_in_shares
def test_bytes(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    part = (queue, 0)
    cluster.write(queue, 3, 3, 3, 3)
    for max_bytes in (1, 100, 200):
        one.fetch(part, max_bytes=max_bytes)
    one.nothing(max_bytes=200)
    cluster.write(queue, 1)
    one.nothing(max_bytes=0)
    one.nothing(records=0)
    one.fetch(min_bytes=1_000)  # the time is up: what there is


@alike_in_shares
def test_waiting(cluster: ShareCluster, queue: str) -> None:
    """A record that is written ends a wait."""
    one, part = sharing(cluster, queue), (queue, 0)
    one.nothing(part)
    leader = cluster.leader(*part)
    values = {
        "group_id": queue, "member_id": one.id, "share_session_epoch": one.sessions[leader],
        "max_wait": 60_000, "min_bytes": 1, "max_records": 10, "batch_size": 10, "topics": (),
        "forgotten_topics_data": (),
    }  # fmt: skip
    with Wire(*leader.socket.getpeername()[:2], seconds=50) as own:
        own.send(ApiKey.SHARE_FETCH, 2, values)
        cluster.write(queue, 2)
        answer = own.receive(ApiKey.SHARE_FETCH, 2)[1]
    cluster.say("woken", acquired(answer.responses[0].partitions[0], apart=True))


@alike_in_shares
def test_redelivery(cluster: ShareCluster, queue: str) -> None:
    """Counts, limits over what comes again, and who gets the rest of a batch."""
    one = sharing(cluster, queue)
    two = another(one, "two")
    part = (queue, 0)
    cluster.write(queue, 10, 10)
    one.fetch(part, records=10, batch_size=10)
    one.ack({part: [(0, 9, 1, 2, 1, 2, 2, 2, 1, 2, 2, 1)]})
    one.fetch(records=2)
    one.fetch(records=2)
    one.nothing()
    two.nothing(part)
    one.ack({part: [(1, 1, RELEASE), (4, 5, REJECT), (12, 15, RELEASE)]})
    two.fetch()
    two.ack({part: [(1, 1, ACCEPT), (12, 12, ACCEPT)]})
    cluster.write(queue, 3)
    two.fetch(mode=1, records=2)
    one.fetch()
    two.nothing()
    one.close()
    two.fetch()


@alike_in_shares
def test_acknowledged_on_the_way(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue, partitions=2)
    first, second = (queue, 0), (queue, 1)
    cluster.write(queue, 4, 4)
    one.fetch(first)
    cluster.write(queue, 2, partition=1)
    one.fetch(second)
    one.nothing(acks={first: [(0, 1, ACCEPT)]})
    one.nothing(acks={first: [(0, 2, ACCEPT)], second: [(0, 0, ACCEPT), (9, 9, ACCEPT)]})
    one.nothing(acks={first: [(3, 3, ACCEPT)]}, records=0)
    one.nothing(acks={first: [(4, 4, ACCEPT)]}, max_bytes=0)
    one.nothing(acks={second: [(0, 0, RENEW)]})
    one.nothing(acks={second: [(0, 0, ACCEPT)], (queue, 9): [(0, 0, ACCEPT)]})
    one.nothing(forget=[(queue, 9)])
    cluster.write(queue, 1)
    one.nothing(acks={first: [(5, 7, RELEASE)]}, records=0)
    one.fetch()
    one.nothing(acks={second: [(1, 1, REJECT)]}, epoch=-1)
    one.fetch(first)


@alike_in_shares
def test_epochs_of_a_session_run_on(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    cluster.write(queue, 20)
    one.fetch((queue, 0))
    for first, last in pairwise(range(0, 20, 2)):
        one.nothing(acks={(queue, 0): [(first, last - 1, ACCEPT)]}, wait_ms=NOT_LONG_MS // 5)
