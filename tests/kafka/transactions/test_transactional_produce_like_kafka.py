"""Producing within transactions: answers as a real Kafka 4.3.1 gives them."""

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served
from tests.kafka.cluster import Cluster, name
from tests.kafka.transactions.producer import Producer, alike_in_transactions, ready
from tests.wire import Wire, batch

CONTROL = 0x20


@pytest.mark.parametrize("version", [3, 8, 9, 10, 11])
@alike_in_transactions
def test_written_after_it_was_added(cluster: Cluster, queue: str, version: int) -> None:
    """A record to a partition that was not added is refused, with a code by version."""
    cluster.make(queue, 2)
    one = Producer(cluster, queue, tv=1).init()

    def write(partition: int = 0, sequence: int | None = None, **changes: int) -> None:
        one.but(**changes).write(queue, partition=partition, sequence=sequence, version=version)

    write()
    one.add((queue, 0))
    one.write(queue, b"a", b"b", version=version)
    write(partition=1)
    write(sequence=0)  # as if again, but one record less
    one.write(queue, b"a", b"b", sequence=0, version=version)  # again
    one.write(queue, version=version)
    write(sequence=7)
    write(sequence=7, by=1)
    write(sequence=0, by=1)
    write(sequence=0, by=-1)
    cluster.fetch(queue)
    one.commit()
    write(sequence=3)  # between two
    one.add((queue, 0)).write(queue, sequence=3, version=version).abort()
    one.add((queue, 0)).write(queue, sequence=4, version=version)
    one.init()
    one.add((queue, 0)).write(queue, sequence=5, version=version)
    one.write(queue, version=version).commit()
    # Again what was committed. A real Kafka then remembers the 0, until it forgets it:
    # of what comes next, nothing above may be first.
    write(sequence=0)
    cluster.fetch(queue)


@pytest.mark.parametrize("version", [9, 10, 11, 12])
@alike_in_transactions
def test_writes_with_the_id_of_another(cluster: Cluster, queue: str, version: int) -> None:
    """Not compared: another's id once a transaction is open in a partition. A real Kafka then asks
    nobody, and takes the batch."""
    cluster.make(queue, 4)
    one = Producer(cluster, queue + "-1", tv=1).init()
    two = Producer(cluster, queue + "-2", tv=1).init()
    one.add((queue, 0))
    one.write(queue, version=version, transactional_id=None)
    one.write(queue, version=version, transactional_id="")
    one.write(queue, version=version, transactional_id=two.id)
    one.write(queue, version=version, transactional_id=queue + "-absent")
    one.write(queue, version=version)
    one.write(queue, version=version, transactional_id=None)
    two.write(queue, partition=1, version=version, transactional_id=one.id)
    two.write(queue, partition=1, version=version, transactional_id=None)
    one.write(queue, partition=2, version=version, transactional=False)  # with a pid, outside
    one.write(queue, version=version, transactional=False)
    one.write(queue, version=version, transactional=False, transactional_id=None)
    one.commit()
    one.write(queue, version=version, transactional=False, transactional_id=None)
    # Transactional and nobody's: taken, and holds nothing back.
    two.but(pid=-1, epoch=-1).write(queue, version=version, sequence=-1)
    two.but(pid=-1, epoch=-1).write(queue, version=version, sequence=-1, transactional=False)
    cluster.fetch(queue)
    cluster.fetch(queue, partition=1)
    cluster.fetch(queue, partition=2)


@alike_in_transactions
def test_written_without_being_added(cluster: Cluster, queue: str) -> None:
    """Produce 12 adds the partition itself (KIP-890)."""
    cluster.make(queue, 4)
    one = Producer(cluster, queue)
    one.but(pid=7, epoch=0).write(queue)  # nobody has that id
    one.init()
    one.write(queue, sequence=1)  # an unknown producer starts at 0; the partition is added
    cluster.describe(queue)
    one.write(queue, b"a", b"b").write(queue).write(queue, partition=1)
    cluster.describe(queue)
    one.write(queue, sequence=2)  # again
    one.write(queue, sequence=5)
    one.write(queue, sequence=0)
    one.but(by=1).write(queue, sequence=0)
    one.but(by=-1).write(queue, sequence=0)
    one.but(by=1).write(queue, partition=2, sequence=0)
    one.but(by=-1).write(queue, partition=2, sequence=0)
    one.but(pid=one.pid + 1_000_000).write(queue, partition=2, sequence=0)
    one.write(queue, partition=9)
    cluster.describe(queue)
    cluster.fetch(queue)
    before = one.but()
    one.commit()
    before.write(queue, sequence=3)  # late: its transaction has ended
    before.write(queue, sequence=2)  # again
    before.write(queue, partition=3, sequence=0)
    one.but().write(queue, sequence=3)  # a new epoch starts at 0
    one.write(queue).write(queue).abort()
    one.write(queue, partition=1).write(queue, partition=3).commit()
    for partition in range(4):
        cluster.fetch(queue, partition=partition)


@alike_in_transactions
def test_a_new_epoch_starts_anew(cluster: Cluster, queue: str) -> None:
    cluster.make(queue)
    for tv in (1, 2):
        one = Producer(cluster, f"{queue}-{tv}", tv).init()
        one.add((queue, 0)).write(queue, b"a", b"b", b"c").commit()
        one.init()
        one.add((queue, 0)).write(queue, sequence=3)
        one.write(queue, sequence=1)
        one.write(queue, sequence=0).write(queue, sequence=1)
        one.init()
        one.add((queue, 0)).write(queue, sequence=2)  # the abort's marker cleared it
        one.write(queue, sequence=0).abort()
    cluster.fetch(queue)
    cluster.producers(queue)


@pytest.mark.parametrize("version", [9, 11, 12])
@alike_in_transactions
def test_markers_of_clients(cluster: Cluster, queue: str, version: int) -> None:
    cluster.make(queue)
    one = Producer(cluster, queue).init()
    one.add((queue, 0))
    one.write(queue, version=version, attributes=CONTROL)
    one.write(queue, version=version, attributes=CONTROL, transactional=False)
    one.write(queue, version=version)
    one.write(queue, version=version, attributes=CONTROL)
    one.write(queue, version=version, attributes=CONTROL, sequence=-1)
    cluster.fetch(queue)
    one.commit()


@alike_in_transactions
def test_acks(cluster: Cluster, queue: str) -> None:
    """A transaction asks for all replicas, and does not insist."""
    cluster.make(queue)
    for version in (9, 11, 12):
        one = Producer(cluster, f"{queue}-{version}").init()
        one.add((queue, 0))
        one.write(queue, version=version, acks=1)
        one.write(queue, version=version)
        one.commit()
    cluster.fetch(queue)


@alike_in_transactions
def test_compacted_and_stamped(cluster: Cluster, queue: str) -> None:
    cluster.make(queue, cleanup_policy="compact")
    cluster.make(queue + "-stamped", message_timestamp_type="LogAppendTime")
    for tv in (1, 2):
        one = Producer(cluster, f"{queue}-{tv}", tv).init()
        one.add((queue, 0), (queue + "-stamped", 0))
        one.write(queue)  # without a key
        one.write(queue + "-stamped").commit()
    cluster.fetch(queue + "-stamped")


@alike_in_transactions
def test_topics_by_id(cluster: Cluster, queue: str) -> None:
    cluster.make(queue)
    one = Producer(cluster, queue).init()
    for commit in (True, False):
        one.write(queue, version=13).write(queue, version=13).end(commit)
    one.write(queue, version=13, sequence=1)
    cluster.fetch(queue, version=16)


@pytest.mark.parametrize("version", [9, 11, 12])
@alike_in_transactions
def test_several_partitions_in_a_request(cluster: Cluster, queue: str, version: int) -> None:
    """Each has its own answer: added, not added, out of order, absent."""
    cluster.make(queue, 4)
    one = Producer(cluster, queue).init()
    one.add((queue, 0), (queue, 2))

    def send(*parts: tuple[int, int]) -> None:
        data = [
            {"index": index, "records": batch(
                b"v", producer_id=one.pid, epoch=one.epoch, sequence=at, attributes=0x10
            )}
            for index, at in parts
        ]  # fmt: skip
        values = {
            "transactional_id": queue, "acks": -1, "timeout": 30_000,
            "topic_data": [{"name": queue, "partition_data": data}],
        }  # fmt: skip
        answer = cluster.leader(queue).call(ApiKey.PRODUCE, version, values)
        found = [
            (p.index, name(p.error_code), p.base_offset)
            for p in answer.responses[0].partition_responses
        ]
        cluster.say(f"write v{version} {parts}", sorted(found))

    send((0, 0), (1, 0), (2, 0))
    send((0, 1), (2, 7), (9, 0))
    send((0, 2), (3, 0))
    cluster.describe(queue)
    one.commit()
    for partition in range(4):
        cluster.fetch(queue, partition=partition)


def test_another_id_has_no_part_in_what_is_open(server: Served) -> None:
    """Here kproxy differs on purpose: who knows a producer's id and epoch is not the producer."""
    queue = f"others-{server.port}"
    with Wire(server.host, server.port) as wire:
        ready(wire)
        with Cluster(wire) as cluster:
            cluster.make(queue)
            one = Producer(cluster, queue + "-1", tv=1).init()
            two = Producer(cluster, queue + "-2", tv=1).init()
            one.add((queue, 0)).write(queue)
            for version in (10, 11, 12):
                one.write(queue, version=version, transactional_id=two.id)
                assert "INVALID_PRODUCER_ID_MAPPING" in cluster.said[-1], cluster.said[-1]
            one.commit()
            assert cluster.fetch(queue).last_stable_offset == 2


def test_markers_have_the_form_of_create_time(server: Served) -> None:
    """Here kproxy differs on purpose: one stored marker is that of many partitions."""
    queue = f"marked-{server.port}"
    with Wire(server.host, server.port) as wire:
        ready(wire)
        with Cluster(wire) as cluster:
            cluster.make(queue, message_timestamp_type="LogAppendTime")
            one = Producer(cluster, queue).init()
            one.write(queue).commit()
            records = cluster.fetch(queue).records
            marker = records[-78:]
            assert int.from_bytes(marker[21:23], "big") == 0x30
