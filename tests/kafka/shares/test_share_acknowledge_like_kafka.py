"""ShareAcknowledge (KIP-932): answers as a real Kafka 4.3.1 gives them."""

import pytest

from tests.kafka.shares.cluster import NEVER, ShareCluster, alike_in_shares
from tests.kafka.shares.sharer import (
    ACCEPT,
    GAP,
    NOT_LONG_MS,
    REJECT,
    RELEASE,
    RENEW,
    RENEWING,
    Acks,
    another,
    sharing,
)

Listed = list[tuple[int, ...]]

BAD_FORM: list[Listed] = [
    [(3, 1, ACCEPT)],
    [(5, 6, ACCEPT), (2, 3, ACCEPT)],
    [(2, 4, ACCEPT), (3, 5, ACCEPT)],
    [(1, 3, ACCEPT, ACCEPT)],
    [(1, 3)],
    [(1, 3, ACCEPT, ACCEPT, ACCEPT, ACCEPT)],
    [(1, 1, 5)],
    [(1, 1, -1)],
    [(1, 1, RENEW)],
    [(1, 3, ACCEPT, 9, ACCEPT)],
    [(1, 1, ACCEPT), (5, 4, ACCEPT)],
]

BAD_PLACE: list[Listed] = [
    [(0, 0, ACCEPT), (100, 101, ACCEPT)],
    [(100, 101, ACCEPT)],
    [(18, 25, ACCEPT)],
    [(21, 21, ACCEPT)],
    [(2, 4, ACCEPT), (4, 5, ACCEPT)],  # passes as a form, though they overlap
]


@alike_in_shares
def test_bad_acknowledgements(cluster: ShareCluster, queue: str) -> None:
    """Each is refused alone, and nothing of it is done."""
    one = sharing(cluster, queue)
    part = (queue, 0)
    cluster.write(queue, 1, 5, 5, 5, 5)
    one.fetch(part)
    for listed in (*BAD_FORM, *BAD_PLACE):
        one.ack({part: listed})
    for listed in BAD_FORM:
        one.nothing(acks={part: listed}, records=0)
    one.ack({part: [(0, 20, ACCEPT)]})
    for first, last, kind in ((0, 20, ACCEPT), (5, 5, RELEASE), (100, 100, ACCEPT)):
        one.ack({part: [(first, last, kind)]})  # records below the start are done with


@alike_in_shares
def test_sessions(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    part = (queue, 0)
    accept: Acks = {part: [(0, 0, ACCEPT)]}
    cluster.write(queue, 3)
    for epoch in (0, 1, -1, -2):
        one.ack(accept, epoch=epoch)
    one.fetch(part)
    for epoch in (0, 77, -2):
        one.ack(accept, epoch=epoch)
    for changes in (
        {"group_id": None}, {"member_id": None}, {"member_id": ""}, {"member_id": "x" * 37},
    ):  # fmt: skip
        one.ack(accept, **changes)
    one.ack({part: []})
    one.ack({})
    one.ack(accept, version=1)
    one.close({part: [(1, 1, ACCEPT)]})
    one.ack(accept, epoch=1)
    one.fetch(part)
    one.close({part: [(2, 2, ACCEPT), (1, 1, ACCEPT)]})  # refused, and given up even so
    one.fetch(part)


@alike_in_shares
def test_states(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    two = another(one, "two")
    part = (queue, 0)

    def acks(who: str, *listed: tuple[int, ...]) -> None:
        (one if who == "one" else two).ack({part: list(listed)})

    cluster.write(queue, 5, 5, 5)
    one.fetch(part)
    two.nothing(part)
    acks("two", (0, 0, ACCEPT))  # not its own
    acks("one", (0, 1, ACCEPT), (3, 3, RELEASE))
    acks("one", (3, 3, ACCEPT))  # no more
    acks("one", (1, 1, ACCEPT))  # below the start: done
    acks("one", (2, 2, REJECT))
    acks("one", (2, 2, REJECT))
    acks("one", (4, 4, GAP))  # a record, even so
    acks("one", (5, 5, ACCEPT), (7, 7, ACCEPT), (7, 7, ACCEPT))
    acks("one", (5, 9, ACCEPT, RELEASE, REJECT, GAP, ACCEPT))
    acks("one", (6, 6, ACCEPT))
    two.fetch()
    acks("one", (3, 3, ACCEPT))  # now another's
    acks("one", (3, 3, ACCEPT), (10, 10, ACCEPT))
    acks("one", (10, 10, ACCEPT))
    cluster.share_offsets(queue, part)
    acks("two", (3, 3, ACCEPT), (6, 6, ACCEPT))
    acks("one", (7, 12, ACCEPT))  # partly below the start
    acks("one", (11, 14, RELEASE))
    two.fetch()
    acks("two", (10, 14, ACCEPT))
    acks("two", (11, 14, ACCEPT))
    cluster.share_offsets(queue, part)


@alike_in_shares
def test_partitions(cluster: ShareCluster, queue: str) -> None:
    """One that is refused leaves the others; who has no session for it may acknowledge."""
    one = sharing(cluster, queue, partitions=2)
    first, second = (queue, 0), (queue, 1)
    cluster.write(queue, 3)
    one.fetch(first)
    cluster.write(queue, 3, partition=1)
    one.fetch(second)
    never, outside = (NEVER, 0), (queue, 9)
    good: list[tuple[int, ...]] = [(0, 0, ACCEPT)]
    one.ack({first: good, second: [(9, 9, ACCEPT)]})
    one.ack({first: [(1, 1, ACCEPT)], outside: good})
    one.ack({second: good, first: [(1, 0, ACCEPT)]})
    one.ack({second: [(1, 1, ACCEPT)], first: []})
    one.ack({second: []})
    one.ack({second: [(2, 2, RENEW)], never: good})
    wire = cluster.leader(queue)
    for part in (never, outside):
        for listed in (good, []):
            one.ack({part: listed}, at=wire)
    one.nothing(acks={outside: good})
    two = another(one, "two")
    two.nothing(second)
    two.ack({first: [(2, 2, ACCEPT)]})
    one.ack({first: [(2, 2, ACCEPT)]})


@alike_in_shares
def test_renew(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    part = (queue, 0)
    cluster.write(queue, 5, 5)
    one.fetch(part)
    one.ack({part: [(0, 1, RENEW)]}, renew=True)
    one.ack({part: [(0, 1, RENEW)]})
    one.ack({part: [(0, 1, RENEW)]}, version=1)
    one.ack({part: [(0, 0, ACCEPT), (1, 1, RENEW)]}, renew=True)
    one.ack({part: [(0, 0, RENEW)]}, renew=True)
    one.ack({part: [(1, 1, ACCEPT)]}, renew=True)
    one.fetch(acks={part: [(2, 2, RENEW)]}, **RENEWING)
    one.fetch(acks={part: [(2, 2, ACCEPT)]}, **RENEWING)
    renew: Acks = {part: [(3, 3, RENEW)]}
    one.fetch(acks=renew, **RENEWING | {"batch_size": 1})
    for asked in ("records", "min_bytes", "max_bytes", "wait_ms"):
        one.fetch(acks=renew, **RENEWING | {asked: 1})
    one.fetch(acks=renew, **RENEWING | {"renew": False})
    one.fetch(acks=renew, version=1, records=0, wait_ms=NOT_LONG_MS)
    one.fetch(**RENEWING)
    one.ack({part: [(3, 9, ACCEPT)]})
    two = another(one, "two")
    two.fetch(part, **RENEWING)
    cluster.configure(queue, share_renew_acknowledge_enable="false")
    cluster.write(queue, 3)
    one.fetch()
    one.ack({part: [(10, 10, RENEW)]}, renew=True)
    one.ack({part: [(10, 10, ACCEPT)]}, renew=True)
    one.fetch(acks={part: [(11, 11, RENEW)]}, **RENEWING)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@alike_in_shares
def test_archived_records_are_acknowledged(
    cluster: ShareCluster, queue: str, isolation: str
) -> None:
    """Acknowledging ranges with records that were given up, at the limit or as aborted."""
    one = sharing(cluster, queue, share_delivery_count_limit="2", share_isolation_level=isolation)
    part = (queue, 0)
    cluster.write(queue, 4, 4)
    one.fetch(part)
    one.ack({part: [(0, 7, RELEASE)]})
    one.fetch()
    one.ack({part: [(1, 2, RELEASE)]})
    one.nothing()
    one.ack({part: [(1, 1, ACCEPT)]})
    one.ack({part: [(0, 3, ACCEPT)]})
    one.ack({part: [(0, 0, ACCEPT), (3, 7, RELEASE)]})
    one.nothing()
    cluster.share_offsets(queue, part)
    one.ack({part: [(0, 7, ACCEPT)]})
