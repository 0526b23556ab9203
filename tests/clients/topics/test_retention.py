"""Records that run out, on both kinds of storage; and what consumers see of it."""

import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from tests.clients.calls import alter, bounds, consumer, create, producer
from tests.harness import eventually, served
from tests.workers import Site

FLAGS = ("--retention-check-ms", "300", "--keeper-period-ms", "200")


def write(site: Site, queue: str, ages_s: list[float], partition: int = 0, size: int = 10) -> None:
    """Write each record as a batch of its own, so old."""
    client = producer(site.address)
    for age in ages_s:
        stamp = int((time.time() - age) * 1000)
        client.produce(queue, b"x" * size, partition=partition, timestamp=stamp)
        assert client.flush(20) == 0


def test_old_records_run_out(site: Site, queue: str) -> None:
    create(site.address, queue, retention_ms="60000")
    write(site, queue, [300, 200, 100, 0, 0])
    eventually(lambda: bounds(site.address, queue) == (3, 5))
    write(site, queue, [0])
    assert bounds(site.address, queue) == (3, 6)


def test_they_run_out_while_time_passes_and_offsets_go_on(site: Site, queue: str) -> None:
    create(site.address, queue, retention_ms="1500")
    write(site, queue, [0, 0])
    eventually(lambda: bounds(site.address, queue) == (2, 2), 20)
    write(site, queue, [0])
    eventually(lambda: bounds(site.address, queue) == (3, 3), 20)


def test_a_large_queue_keeps_its_newest(site: Site, queue: str) -> None:
    create(site.address, queue, retention_bytes="5000", partitions=2)
    write(site, queue, [0] * 10, size=1000)
    write(site, queue, [0] * 3, partition=1, size=1000)
    # As Kafka: what is kept is the setting's size at least.
    eventually(lambda: bounds(site.address, queue) == (5, 10))
    assert bounds(site.address, queue, 1) == (0, 3)
    write(site, queue, [0] * 2, size=1000)
    eventually(lambda: bounds(site.address, queue) == (7, 12))


def test_a_changed_setting_counts_at_once(site: Site, queue: str) -> None:
    create(site.address, queue, partitions=3)
    for index in range(3):
        write(site, queue, [500, 400, 0], partition=index)
    time.sleep(1)
    assert [bounds(site.address, queue, i) for i in range(3)] == [(0, 3)] * 3
    alter(site.address, queue, retention_ms=450000)
    eventually(lambda: [bounds(site.address, queue, i) for i in range(3)] == [(1, 3)] * 3)
    alter(site.address, queue, retention_ms=-1)
    alter(site.address, queue, retention_bytes=1)
    eventually(lambda: [bounds(site.address, queue, i) for i in range(3)] == [(2, 3)] * 3)


def test_consumers_below_the_start_follow_their_own_policy(site: Site, queue: str) -> None:
    create(site.address, queue, retention_ms="60000")
    write(site, queue, [300, 300, 0])
    eventually(lambda: bounds(site.address, queue) == (2, 3))
    for policy in ("earliest", "error"):
        reader = consumer(site.address, f"{queue}-{policy}", auto_offset_reset=policy)
        reader.assign([TopicPartition(queue, 0, 0)])
        record = eventually(lambda reader=reader: reader.poll(1), 20)
        if policy == "earliest":
            assert (record.error(), record.offset()) == (None, 2)
        else:
            assert record.error().code() == KafkaError._AUTO_OFFSET_RESET
        reader.close()
    reader = consumer(site.address, queue)
    reader.assign([TopicPartition(queue, 0, OFFSET_BEGINNING)])
    assert eventually(lambda: reader.poll(1), 20).offset() == 2
    reader.close()


def test_log_append_time_and_largest_record_are_settings(site: Site, queue: str) -> None:
    create(site.address, queue, message_timestamp_type="LogAppendTime", max_message_bytes="500")
    write(site, queue, [10_000_000])
    reader = consumer(site.address, queue)
    reader.assign([TopicPartition(queue, 0, 0)])
    kind, stamp = eventually(lambda: reader.poll(1), 20).timestamp()
    reader.close()
    assert (kind, abs(stamp / 1000 - time.time()) < 60) == (2, True)
    errors = []
    client = producer(site.address)
    client.produce(queue, b"x" * 900, on_delivery=lambda error, _: errors.append(error))
    client.flush(20)
    assert [error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]
    alter(site.address, queue, max_message_bytes=2000)
    eventually(lambda: accepted(site, queue))


def accepted(site: Site, queue: str) -> bool:
    errors: list[object] = []
    client = producer(site.address)
    client.produce(queue, b"x" * 900, on_delivery=lambda error, _: errors.append(error))
    client.flush(20)
    return errors == [None]


def test_disk_comes_back(tmp_path: Path) -> None:
    """Embedded; that a real Kafka's log is given back too is looked at in tests/cluster."""
    with served(tmp_path / "data", *FLAGS, "--segment-bytes", "1MiB") as server:
        create(server.address, "big", retention_ms="2000")
        write(server, "big", [0] * 40, size=200_000)
        log = server.data_dir / "shard-0" / "log"
        assert len(list(log.glob("*.log"))) > 6
        eventually(lambda: len(list(log.glob("*.log"))) == 1, 20)
