"""confluent-kafka (a current librdkafka) against a served kproxy."""

import time
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

from tests.harness import eventually, served
from tests.wire import Wire
from tests.workers import Site


def producer(site: Site, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": site.address, **config})


def consumer(site: Site, **config: Any) -> Consumer:
    base = {"bootstrap.servers": site.address, "group.id": "g", "enable.auto.commit": False}
    return Consumer({**base, **config})


def read(site: Site, queue: str, count: int, partition: int = 0, offset: int = 0) -> list[Message]:
    client = consumer(site)
    client.assign([TopicPartition(queue, partition, offset)])
    messages: list[Message] = []
    end = time.monotonic() + 20
    while len(messages) < count and time.monotonic() < end:
        messages += [m for m in client.consume(count, 0.2) if not m.error()]
    client.close()
    return messages


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_key_header_and_timestamp_comes_back(site: Site, codec: str) -> None:
    queue = f"codec-{codec}"
    client = producer(site, **{"compression.type": codec})
    for i in range(500):
        client.produce(
            queue, b"value" * 20 + b"%d" % i, key=b"%d" % i, timestamp=1_700_000_000_000 + i,
            headers=[("h", b"x"), ("empty", None)],
        )  # fmt: skip
    assert client.flush(20) == 0
    messages = read(site, queue, 500)
    assert [m.offset() for m in messages] == list(range(500))
    assert [m.key() for m in messages] == [b"%d" % i for i in range(500)]
    assert messages[7].timestamp() == (1, 1_700_000_000_007)
    assert messages[7].headers() == [("h", b"x"), ("empty", None)]


def test_idempotent_producer(site: Site, queue: str) -> None:
    delivered: list[int] = []
    client = producer(site, **{"enable.idempotence": True, "linger.ms": 1})
    for i in range(2000):
        client.produce(queue, b"%d" % i, on_delivery=lambda e, m: delivered.append(m.offset()))
        client.poll(0)
    assert client.flush(20) == 0
    assert sorted(delivered) == list(range(2000))
    assert [int(m.value() or b"") for m in read(site, queue, 2000)] == list(range(2000))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(site: Site, acks: str) -> None:
    queue = f"acks-{acks}"
    client = producer(site, acks=acks)
    for i in range(100):
        client.produce(queue, b"%d" % i)
    assert client.flush(20) == 0
    assert len(read(site, queue, 100)) == 100


def test_a_thousand_queues_from_one_producer(site: Site) -> None:
    client = producer(site)
    for i in range(1000):
        client.produce(f"many-{i}", b"%d" % i)
    assert client.flush(60) == 0
    for i in (0, 500, 999):
        assert [m.value() for m in read(site, f"many-{i}", 1)] == [b"%d" % i]


def test_commits_of_an_assigned_consumer_survive_it(site: Site, queue: str) -> None:
    client = producer(site)
    for i in range(10):
        client.produce(queue, b"%d" % i)
    client.flush(20)
    first = consumer(site, **{"group.id": queue})
    first.assign([TopicPartition(queue, 0, OFFSET_BEGINNING)])
    first.commit(offsets=[TopicPartition(queue, 0, 4, "note")], asynchronous=False)
    first.close()
    second = consumer(site, **{"group.id": queue})
    committed = second.committed([TopicPartition(queue, 0)], timeout=10)
    assert (committed[0].offset, committed[0].metadata) == (4, "note")
    second.assign([TopicPartition(queue, 0, OFFSET_STORED)])
    message = eventually(lambda: second.poll(0.2))
    assert message.offset() == 4
    second.close()


def test_offsets_by_time(site: Site, queue: str) -> None:
    client = producer(site, **{"compression.type": "gzip"})
    for i in range(100):
        client.produce(queue, b"v", timestamp=1_000_000 + i * 1000)
    client.flush(20)
    reader = consumer(site)
    found = reader.offsets_for_times([TopicPartition(queue, 0, 1_042_500)], timeout=10)
    assert found[0].offset == 43
    assert reader.get_watermark_offsets(TopicPartition(queue, 0), timeout=10) == (0, 100)
    reader.close()
    admin = AdminClient({"bootstrap.servers": site.address})
    part = TopicPartition(queue, 0)
    for spec, offset in (
        (OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 100), (OffsetSpec.max_timestamp(), 99),
        (OffsetSpec.for_timestamp(1_000_000), 0), (OffsetSpec.for_timestamp(9_999_999), -1),
    ):  # fmt: skip
        assert admin.list_offsets({part: spec})[part].result(10).offset == offset


def partitions_at(address: str, queue: str) -> int:
    """Return the number of partitions of a queue as one worker knows it."""
    host, port = address.split(":")
    with Wire(host, int(port)) as wire:
        return len(wire.metadata(queue, create=False).topics[0].partitions)


def test_admin_creates_grows_describes_trims_and_deletes(site: Site, queue: str) -> None:
    admin = AdminClient({"bootstrap.servers": site.address})
    admin.create_topics([NewTopic(queue, 3, 1, config={"retention.ms": "60000"})])[queue].result(10)
    with pytest.raises(KafkaException) as exists:
        admin.create_topics([NewTopic(queue, 3, 1)])[queue].result(10)
    assert exists.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    described = admin.describe_topics(TopicCollection([queue]))[queue].result(10)
    assert len(described.partitions) == 3
    admin.create_partitions([NewPartitions(queue, 5)])[queue].result(10)
    for address in site.address.split(","):  # each worker hears of it in its time
        eventually(lambda address=address: partitions_at(address, queue) == 5, 10)
    assert len(admin.list_topics(queue, timeout=10).topics[queue].partitions) == 5
    resource = ConfigResource(ConfigResource.Type.TOPIC, queue)
    configs = admin.describe_configs([resource])[resource].result(10)
    assert configs["retention.ms"].value == "60000"
    assert not configs["retention.ms"].is_default
    assert configs["max.message.bytes"].is_default
    client, failed = producer(site), list[Any]()

    def told(error: Any, _: object) -> None:
        failed.extend([error] if error else [])

    for i in range(10):
        client.produce(queue, b"%d" % i, partition=4, on_delivery=told)
    assert not client.flush(20)
    assert not failed
    trim = TopicPartition(queue, 4, 6)
    assert admin.delete_records([trim])[trim].result(10).low_watermark == 6
    assert [m.offset() for m in read(site, queue, 4, partition=4, offset=6)] == [6, 7, 8, 9]
    admin.delete_topics([queue])[queue].result(10)
    # As with several brokers: the other one may know it a moment later.
    eventually(lambda: queue not in admin.list_topics(timeout=10).topics, 2)


def test_a_recreated_queue_starts_afresh_with_a_new_id(site: Site, queue: str) -> None:
    admin = AdminClient({"bootstrap.servers": site.address})
    ids = []
    for round_ in range(2):
        admin.create_topics([NewTopic(queue, 1, 1)])[queue].result(10)
        described = admin.describe_topics(TopicCollection([queue]))[queue].result(10)
        ids.append(str(described.topic_id))
        client = producer(site)
        client.produce(queue, b"%d" % round_)
        client.flush(20)
        assert [(m.offset(), m.value()) for m in read(site, queue, 1)] == [(0, b"%d" % round_)]
        admin.delete_topics([queue])[queue].result(10)
    assert ids[0] != ids[1]


def test_out_of_range_resets_by_the_clients_policy(site: Site, queue: str) -> None:
    client = producer(site)
    for i in range(5):
        client.produce(queue, b"%d" % i)
    client.flush(20)
    reader = consumer(site, **{"auto.offset.reset": "earliest"})
    reader.assign([TopicPartition(queue, 0, 1000)])
    message = eventually(lambda: reader.poll(0.2))
    assert (message.error(), message.offset()) == (None, 0)
    reader.close()


def test_no_auto_creation_where_a_setting_turns_it_off(tmp_path: Any) -> None:
    with served(tmp_path / "d", "--no-auto-create") as strict:
        errors: list[Any] = []
        client = producer(strict, **{"topic.metadata.propagation.max.ms": 500})
        client.produce("absent", b"v", on_delivery=lambda e, m: errors.append(e))
        client.flush(10)
        assert errors[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
