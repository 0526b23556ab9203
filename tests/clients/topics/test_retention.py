"""Records that run out, on both kinds of storage; and what consumers see of it."""

import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.clients.groups.test_groups import create
from tests.harness import eventually, served
from tests.workers import Site

FLAGS = ("--retention-check-ms", "300", "--keeper-period-ms", "200")


def write(site: Site, queue: str, ages_s: list[float], partition: int = 0, size: int = 10) -> None:
    """Write each record as a batch of its own, so old."""
    producer = Producer({"bootstrap.servers": site.address, "log_level": 0})
    for age in ages_s:
        stamp = int((time.time() - age) * 1000)
        producer.produce(queue, b"x" * size, partition=partition, timestamp=stamp)
        assert producer.flush(20) == 0


def bounds(site: Site, queue: str, partition: int = 0) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": site.address, "group.id": "bounds", "log_level": 0})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(queue, partition), 10)
        return int(low), int(high)
    finally:
        consumer.close()


def alter(site: Site, queue: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": site.address, "log_level": 0})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, queue, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def test_old_records_run_out(site: Site, queue: str) -> None:
    create(site, queue, retention_ms="60000")
    write(site, queue, [300, 200, 100, 0, 0])
    eventually(lambda: bounds(site, queue) == (3, 5))
    write(site, queue, [0])
    assert bounds(site, queue) == (3, 6)


def test_they_run_out_while_time_passes_and_offsets_go_on(site: Site, queue: str) -> None:
    create(site, queue, retention_ms="1500")
    write(site, queue, [0, 0])
    assert bounds(site, queue) == (0, 2)
    eventually(lambda: bounds(site, queue) == (2, 2), 10)
    write(site, queue, [0])
    assert bounds(site, queue) == (2, 3)
    eventually(lambda: bounds(site, queue) == (3, 3), 10)


def test_a_large_queue_keeps_its_newest(site: Site, queue: str) -> None:
    create(site, queue, retention_bytes="5000", partitions=2)
    write(site, queue, [0] * 10, size=1000)
    write(site, queue, [0] * 3, partition=1, size=1000)
    # As Kafka: what is kept is the setting's size at least.
    eventually(lambda: bounds(site, queue) == (5, 10))
    assert bounds(site, queue, 1) == (0, 3)
    write(site, queue, [0] * 2, size=1000)
    eventually(lambda: bounds(site, queue) == (7, 12))


def test_a_changed_setting_counts_at_once(site: Site, queue: str) -> None:
    create(site, queue, partitions=3)
    for index in range(3):
        write(site, queue, [500, 400, 0], partition=index)
    time.sleep(1)
    assert [bounds(site, queue, i) for i in range(3)] == [(0, 3)] * 3
    alter(site, queue, "retention.ms", "450000")
    eventually(lambda: [bounds(site, queue, i) for i in range(3)] == [(1, 3)] * 3)
    alter(site, queue, "retention.ms", "-1")
    alter(site, queue, "retention.bytes", "1")
    eventually(lambda: [bounds(site, queue, i) for i in range(3)] == [(2, 3)] * 3)


def test_consumers_below_the_start_follow_their_own_policy(site: Site, queue: str) -> None:
    create(site, queue, retention_ms="60000")
    write(site, queue, [300, 300, 0])
    eventually(lambda: bounds(site, queue) == (2, 3))
    for policy in ("earliest", "error"):
        consumer = Consumer(
            {"bootstrap.servers": site.address, "group.id": f"{queue}-{policy}", "log_level": 0,
             "auto.offset.reset": policy}
        )  # fmt: skip
        consumer.assign([TopicPartition(queue, 0, 0)])
        record = eventually(lambda c=consumer: c.poll(1), 20)
        if policy == "earliest":
            assert (record.error(), record.offset()) == (None, 2)
        else:
            assert record.error().code() == KafkaError._AUTO_OFFSET_RESET
        consumer.close()
    consumer = Consumer({"bootstrap.servers": site.address, "group.id": queue, "log_level": 0})
    consumer.assign([TopicPartition(queue, 0, OFFSET_BEGINNING)])
    assert eventually(lambda: consumer.poll(1), 20).offset() == 2
    consumer.close()


def test_log_append_time_and_largest_record_are_settings(site: Site, queue: str) -> None:
    create(site, queue, message_timestamp_type="LogAppendTime", max_message_bytes="500")
    write(site, queue, [10_000_000])
    consumer = Consumer({"bootstrap.servers": site.address, "group.id": queue, "log_level": 0})
    consumer.assign([TopicPartition(queue, 0, 0)])
    kind, stamp = eventually(lambda: consumer.poll(1), 20).timestamp()
    consumer.close()
    assert (kind, abs(stamp / 1000 - time.time()) < 60) == (2, True)
    errors = []
    producer = Producer({"bootstrap.servers": site.address, "log_level": 0})
    producer.produce(queue, b"x" * 900, on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert [error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]
    alter(site, queue, "max.message.bytes", "2000")
    eventually(lambda: accepted(site, queue))


def accepted(site: Site, queue: str) -> bool:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": site.address, "log_level": 0})
    producer.produce(queue, b"x" * 900, on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    return errors == [None]


def test_disk_comes_back(tmp_path: Path) -> None:
    """Embedded; that a real Kafka's log is given back too is looked at in tests/cluster."""
    with served(tmp_path / "data", *FLAGS, "--segment-bytes", "1MiB") as server:
        create(server, "big", retention_ms="2000")
        write(server, "big", [0] * 40, size=200_000)
        log = server.data_dir / "shard-0" / "log"
        assert len(list(log.glob("*.log"))) > 6
        eventually(lambda: len(list(log.glob("*.log"))) == 1, 20)
