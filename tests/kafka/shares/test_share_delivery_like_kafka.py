"""The records that a share group is given: answers as a real Kafka 4.3.1 gives them.

The window, deliveries counted and given up, locks, isolation, where it begins, deleted records. Not
compared: with record_limit a real Kafka goes past the window's bound, to the end of a batch that it
has begun; and ranges of released records often span holes and records of others.
"""

import time

import pytest

from tests.kafka.shares.cluster import ShareCluster, alike_in_shares
from tests.kafka.shares.sharer import ACCEPT, RELEASE, Sharer, another, sharing
from tests.kafka.transactions.producer import Producer
from tests.wire import TODAY_MS, Wire, batch


@alike_in_shares
def test_window(cluster: ShareCluster, queue: str) -> None:
    """At the bound whole batches are given, and beyond it none but those that come again."""
    one = sharing(cluster, queue, share_partition_max_record_locks="100")
    part = (queue, 0)

    def acked(*listed: tuple[int, ...]) -> None:
        one.ack({part: list(listed)})

    cluster.write(queue, *[30] * 10)
    one.fetch(part)
    one.nothing()
    acked((0, 0, ACCEPT))
    one.nothing()
    acked((1, 29, ACCEPT))
    one.fetch()
    acked((60, 89, ACCEPT))
    one.nothing()
    acked((30, 40, RELEASE))
    one.fetch()
    acked((30, 59, ACCEPT))
    one.fetch()
    one.nothing()
    cluster.configure(queue, share_partition_max_record_locks="200")
    one.fetch()
    cluster.configure(queue, share_partition_max_record_locks="100")
    cluster.write(queue, 5)
    one.nothing()
    acked((90, 99, RELEASE))
    one.fetch()


@alike_in_shares
def test_window_of_large_batches(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue, share_partition_max_record_locks="100")
    part = (queue, 0)
    cluster.write(queue, 250, 10)
    one.fetch(part)
    one.nothing()
    one.ack({part: [(0, 249, RELEASE)]})
    one.fetch()
    one.ack({part: [(0, 200, ACCEPT)]})
    one.fetch()


def given(one: Sharer, part: tuple[str, int], count: int) -> list[tuple[int, int, int]]:
    """Fetch until so many records came, and return the ranges."""
    found: list[tuple[int, int, int]] = []
    while sum(last - first + 1 for first, last, _ in found) < count:
        one.fetch(part)
        assert one.got.get(part), found
        found += one.got[part]
    one.nothing()
    return sorted(found)


@pytest.mark.parametrize(
    ("limit", "sizes"), [("5", (16, 3)), ("2", (16,)), ("10", (5, 1)), ("4", (7,)), ("3", (2, 2))]
)
@alike_in_shares
def test_poison(cluster: ShareCluster, queue: str, limit: str, sizes: tuple[int, ...]) -> None:
    """Records released again and again are given in ever smaller pieces, and then no more."""
    one = sharing(cluster, queue, share_delivery_count_limit=limit)
    part = (queue, 0)
    cluster.write(queue, *sizes)
    one.fetch(part)
    held = one.got[part]
    for _ in range(int(limit) - 1):
        one.ack({part: [(first, last, RELEASE) for first, last, _ in held]})
        held = given(one, part, sum(sizes))
    one.ack({part: [(first, last, RELEASE) for first, last, _ in held]})
    one.nothing()
    cluster.share_offsets(queue, part)


@pytest.mark.parametrize("case", ["first", "last"])
@alike_in_shares
def test_poison_among_others(cluster: ShareCluster, queue: str, case: str) -> None:
    """A piece of what was released often is all that a fetch gives, or is put off."""
    one = sharing(cluster, queue)
    part = (queue, 0)
    first, last = (3, 10) if case == "last" else (0, 7)
    if case == "last":
        cluster.write(queue, 3)
        one.fetch(part)
    cluster.write(queue, 4, 4)
    one.fetch(part)
    for _ in range(2):
        one.ack({part: [(first, last, RELEASE)]})
        one.fetch()
    one.ack({part: [(0, last, RELEASE)]})
    cluster.write(queue, 3)
    given(one, part, last + 4)


@alike_in_shares
def test_a_lower_limit(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    part = (queue, 0)
    cluster.write(queue, 1)
    one.fetch(part)
    for _ in range(2):
        one.ack({part: [(0, 0, RELEASE)]})
        one.fetch()
    cluster.configure(queue, share_delivery_count_limit="2")
    one.ack({part: [(0, 0, RELEASE)]})
    one.nothing()
    cluster.share_offsets(queue, part)


@alike_in_shares
def test_locks_end(cluster: ShareCluster, queue: str) -> None:
    """Records neither acknowledged nor renewed within their time are given again."""
    one = sharing(cluster, queue, share_record_lock_duration_ms="1000")
    part = (queue, 0)
    cluster.write(queue, 5)
    one.fetch(part)
    two = another(one, "two")
    two.fetch(part)
    one.ack({part: [(0, 4, ACCEPT)]})
    cluster.configure(queue, share_record_lock_duration_ms="60000")
    one.fetch(part)
    two.ack({part: [(0, 4, ACCEPT)]})
    one.ack({part: [(0, 4, ACCEPT)]})


@alike_in_shares
def test_closed_connections(cluster: ShareCluster, queue: str) -> None:
    """They end their sessions, but not one that was opened anew elsewhere."""
    one, part = sharing(cluster, queue), (queue, 0)
    address = cluster.leader(*part).socket.getpeername()[:2]
    cluster.write(queue, 4)
    wires = [Wire(*address) for _ in range(3)]
    one.fetch(part, at=wires[0])
    wires[0].socket.close()
    another(one, "two").fetch(part, at=wires[1])  # once that is noticed
    two = another(one, "two")
    two.nothing(part, at=wires[2])
    wires[1].socket.close()
    time.sleep(0.1)
    another(one, "three").nothing(part)
    two.ack({part: [(0, 0, ACCEPT)]}, at=wires[2])
    wires[2].socket.close()
    another(one, "three").fetch(part)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@alike_in_shares
def test_transactions(cluster: ShareCluster, queue: str, isolation: str) -> None:
    one = sharing(cluster, queue, share_isolation_level=isolation)
    part = (queue, 0)
    first, second = (Producer(cluster, f"{queue}-{n}").init() for n in (1, 2))
    cluster.write(queue, 2)
    first.add(part)
    first.write(queue, b"1", b"2")
    cluster.write(queue, 1)
    one.fetch(part)
    one.nothing()
    first.end(True)
    cluster.settle(first.id)
    one.fetch()
    first.add(part)
    second.add(part)
    first.write(queue, b"1", b"2")
    second.write(queue, b"1")
    first.write(queue, b"3")
    first.end(False)
    cluster.settle(first.id)
    cluster.write(queue, 1)
    (one.nothing if isolation == "read_committed" else one.fetch)()
    second.end(True)
    cluster.settle(second.id)
    one.fetch()
    two = another(one, "two")
    one.close()
    two.fetch(part)
    for listed in ([(0, 20, 1)], [(0, 11, 1)], [(12, 12, 0)], [(10, 10, 0)], [(6, 7, 0)]):
        two.ack({part: listed})
    first.add(part)
    first.write(queue, b"1", b"2")
    first.end(False)
    cluster.settle(first.id)
    two.fetch()
    two.ack({part: [(15, 15, 0)]})


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@alike_in_shares
def test_transactions_by_pieces(cluster: ShareCluster, queue: str, isolation: str) -> None:
    cluster.make(queue)
    producer = Producer(cluster, queue).init()
    for committed in (True, False, True):
        producer.add((queue, 0))
        producer.write(queue, b"1", b"2", b"3")
        cluster.write(queue, 2)
        producer.write(queue, b"4")
        producer.end(committed)
        cluster.settle(producer.id)
    for size in (1, 500):
        group = f"{queue}-{size}"
        cluster.configure(
            group, share_auto_offset_reset="earliest", share_isolation_level=isolation
        )
        one = Sharer(cluster, group, "one", queue).silently(1)
        one.fetch((queue, 0), batch_size=size)
        one.close()
        one.fetch((queue, 0))


@alike_in_shares
def test_isolation_changes(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    part = (queue, 0)
    producer = Producer(cluster, queue).init()
    producer.add(part)
    producer.write(queue, b"1", b"2")
    producer.end(False)
    cluster.settle(producer.id)
    one.fetch(part)
    cluster.configure(queue, share_isolation_level="read_committed")
    one.ack({part: [(0, 2, RELEASE)]})
    one.fetch()


@alike_in_shares
def test_a_group_begins_where_it_is_told(cluster: ShareCluster, queue: str) -> None:
    cluster.make(queue)
    # Times are of when the tests began, some of an hour ago. If nothing is late enough, a Kafka
    # answers OFFSET_NOT_AVAILABLE, for which its own consumer has no use; kproxy begins at the end
    # then.
    before = TODAY_MS - 10 * 3_600_000
    old = batch(b"o", b"o", times=(before, before))
    assert cluster.leader(queue).produce(queue, old).error_code == 0
    cluster.write(queue, 2)
    part = (queue, 0)
    for reset in ("earliest", "by_duration:PT5H", "by_duration:PT20H", "by_duration:P1D"):
        group = f"{queue}-{reset.replace(':', '-')}"
        cluster.configure(group, share_auto_offset_reset=reset)
        Sharer(cluster, group, "one", queue).silently(1).fetch(part)
    latest = Sharer(cluster, f"{queue}-latest", "one", queue).silently(1)
    latest.nothing(part)
    cluster.write(queue, 2)
    latest.fetch()


@alike_in_shares
def test_trims(cluster: ShareCluster, queue: str) -> None:
    """Deleted records are done with. The rest is given, also of a batch cut in two."""
    one = sharing(cluster, queue)
    part = (queue, 0)

    def trim(offset: int) -> None:
        asked = {"partition_index": 0, "offset": offset}
        values = {"topics": [{"name": queue, "partitions": [asked]}], "timeout": 1000}
        cluster.leader(*part).call(21, 2, values)

    cluster.write(queue, 4, 4)
    one.fetch(part)
    one.ack({part: [(6, 6, RELEASE)]})
    trim(3)
    one.ack({part: [(1, 1, ACCEPT)]})
    one.ack({part: [(2, 3, ACCEPT)]})
    one.fetch()
    trim(8)
    one.nothing()
    one.ack({part: [(7, 7, ACCEPT)]})
    one.ack({part: [(4, 6, ACCEPT)]})
    cluster.write(queue, 1)
    one.fetch()
    cluster.configure(queue + "-late", share_auto_offset_reset="earliest")
    Sharer(cluster, queue + "-late", "one", queue).silently(1).fetch(part)


@alike_in_shares
def test_a_topic_made_anew(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    cluster.write(queue, 4)
    one.fetch((queue, 0))
    one.ack({(queue, 0): [(0, 1, ACCEPT)]})
    cluster.wire.delete(queue)
    cluster.forget_id(queue)
    one.silently(0)
    cluster.make(queue)
    one.silently(1)
    cluster.write(queue, 2)
    one.fetch((queue, 0), epoch=0)
