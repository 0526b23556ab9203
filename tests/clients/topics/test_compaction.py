"""The latest state of each key: compacted queues, with real clients, embedded and on a Kafka."""

import json
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.clients.calls import admin, alter, consumer, create, producer
from tests.clients.libraries.test_kcat import kcat
from tests.harness import eventually, java
from tests.workers import Site

FLAGS = ("--compaction-check-ms", "300", "--retention-check-ms", "300", "--keeper-period-ms", "200")
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}


def put(site: Site, queue: str, *pairs: tuple[str, str | None], **settings: str) -> None:
    """Write each record as a batch of its own."""
    client = producer(site.address, **settings)
    for key, value in pairs:
        client.produce(queue, key=key, value=value, partition=0)
        assert client.flush(20) == 0


def there(site: Site, queue: str) -> list[tuple[int, str, str | None]]:
    """Return (offset, key, value) of each record a consumer finds up to the end."""
    reader = consumer(site.address, "looks", enable_partition_eof=True, enable_auto_commit=False)
    reader.assign([TopicPartition(queue, 0, 0)])
    found = []
    try:
        while True:
            message = reader.poll(20)
            assert message is not None, "no end was seen"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
            value = message.value()
            read = None if value is None else value.decode()
            found.append((message.offset(), message.key().decode(), read))
    finally:
        reader.close()


def test_the_latest_of_each_key_stays(site: Site, queue: str) -> None:
    create(site.address, queue, **COMPACTED)
    put(site, queue, *[(f"device-{i % 3}", f"state {i}") for i in range(60)])
    wanted = [(57, "device-0", "state 57"), (58, "device-1", "state 58"),
              (59, "device-2", "state 59")]  # fmt: skip
    eventually(lambda: there(site, queue) == wanted, 20)
    put(site, queue, ("device-1", "new"), **{"compression.type": "lz4"})
    wanted = [wanted[0], wanted[2], (60, "device-1", "new")]
    eventually(lambda: there(site, queue) == wanted, 20)


def test_tombstones_go_after_their_time(site: Site, queue: str) -> None:
    create(site.address, queue, **COMPACTED, delete_retention_ms="4000")
    put(site, queue, ("a", "1"), ("b", "1"), ("a", None), ("c", "1"))
    eventually(lambda: [o for o, *_ in there(site, queue)] == [1, 2, 3], 20)
    eventually(lambda: [o for o, *_ in there(site, queue)] == [1, 3], 20)


def test_a_queue_that_becomes_compacted_and_one_that_is_no_more(site: Site, queue: str) -> None:
    create(site.address, queue)
    put(site, queue, ("a", "1"), ("a", "2"), ("a", "3"))
    time.sleep(1)
    assert len(there(site, queue)) == 3
    alter(site.address, queue, min_cleanable_dirty_ratio="0.01")
    alter(site.address, queue, cleanup_policy="compact")
    eventually(lambda: there(site, queue) == [(2, "a", "3")], 20)
    alter(site.address, queue, cleanup_policy="delete")
    put(site, queue, ("a", "4"))
    time.sleep(1)
    assert len(there(site, queue)) == 2


def test_a_record_without_a_key_is_refused(site: Site, queue: str) -> None:
    create(site.address, queue, **COMPACTED)
    said: list[object] = []
    client = producer(site.address)
    client.produce(queue, b"v", partition=0, on_delivery=lambda error, _: said.append(error))
    client.flush(20)
    (error,) = said
    assert isinstance(error, KafkaError)
    assert error.code() == KafkaError.INVALID_RECORD


def test_kafkas_own_tool_makes_one_and_shows_it(site: Site, queue: str) -> None:
    tool = ("--bootstrap-server", site.address, "--topic", queue)
    java(
        "org.apache.kafka.tools.TopicCommand", *tool, "--create", "--config",
        "cleanup.policy=compact,delete", "--config", "segment.bytes=1048576",
    )  # fmt: skip
    told = java("org.apache.kafka.tools.TopicCommand", *tool, "--describe")
    assert "cleanup.policy=compact,delete" in told
    assert "segment.bytes=1048576" in told


def test_kcat_reads_what_is_left(site: Site, queue: str) -> None:
    create(site.address, queue, **COMPACTED)
    put(site, queue, *[(f"k{i % 2}", str(i)) for i in range(10)])

    def left() -> list[str]:
        said = kcat(site, "-t", queue, "-C", "-e", "-q", "-J")
        return [json.loads(line)["payload"] for line in said.splitlines()]

    eventually(lambda: left() == ["8", "9"], 20)


def test_batches_are_packed_as_the_queue_says(site: Site, queue: str) -> None:
    for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
        name = f"{queue}-{codec}"
        create(site.address, name, compression_type=codec)
        put(site, name, *[(f"k{i}", "value " * 100) for i in range(5)])
        put(site, name, ("last", "value"), **{"compression.type": "zstd"})
        assert [key for _, key, _ in there(site, name)] == ["k0", "k1", "k2", "k3", "k4", "last"]


def test_a_setting_that_is_none_is_refused(site: Site, queue: str) -> None:
    with pytest.raises(KafkaException) as refused:
        create(site.address, queue, no_such_setting="1")
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert queue not in admin(site.address).list_topics(timeout=10).topics
