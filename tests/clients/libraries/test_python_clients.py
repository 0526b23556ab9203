"""kafka-python and aiokafka."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from tests.harness import eventually
from tests.workers import Site

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_in_and_out(site: Site, codec: str | None) -> None:
    queue = f"kafka-python-{codec}"
    producer = KafkaProducer(bootstrap_servers=site.address, compression_type=codec, linger_ms=5)
    for i in range(300):
        producer.send(queue, b"%d" % i, key=b"k", headers=[("h", b"1")], timestamp_ms=1000 + i)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=site.address, group_id="kp", enable_auto_commit=False,
        consumer_timeout_ms=5000,
    )  # fmt: skip
    part = TopicPartition(queue, 0)
    consumer.assign([part])
    consumer.seek_to_beginning(part)
    records: list[Any] = []
    while len(records) < 300:
        records.append(next(consumer))
    assert [(r.offset, r.value, r.timestamp) for r in records] == [
        (i, b"%d" % i, 1000 + i) for i in range(300)
    ]
    assert consumer.end_offsets([part]) == {part: 300}
    assert consumer.offsets_for_times({part: 1100})[part].offset == 100
    consumer.commit()
    assert consumer.committed(part) == 300
    consumer.close()


def test_kafka_python_admin(site: Site, queue: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=site.address)
    admin.create_topics([NewTopic(queue, num_partitions=2, replication_factor=1)])
    eventually(lambda: queue in admin.list_topics(), 2)
    admin.delete_topics([queue])
    eventually(lambda: queue not in admin.list_topics(), 2)
    admin.close()


async def test_aiokafka_in_and_out(site: Site, queue: str) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=site.address, enable_idempotence=True, compression_type="gzip"
        ) as producer:
            futures = [await producer.send(queue, b"%d" % i) for i in range(300)]
            offsets = [(await future).offset for future in futures]
        assert offsets == list(range(300))
        consumer = AIOKafkaConsumer(
            bootstrap_servers=site.address, group_id="aio", enable_auto_commit=False
        )
        await consumer.start()
        part = AioPartition(queue, 0)
        consumer.assign([part])
        await consumer.seek_to_beginning(part)
        records: list[Any] = []
        while len(records) < 300:
            got = await consumer.getmany(timeout_ms=1000)
            records += [record for batch in got.values() for record in batch]
        assert [(r.offset, r.value) for r in records] == [(i, b"%d" % i) for i in range(300)]
        await consumer.commit({part: 150})
        assert await consumer.committed(part) == 150
        await consumer.stop()

    await asyncio.wait_for(run(), 60)


async def test_aiokafka_admin(site: Site, queue: str) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=site.address)
        await admin.start()
        await admin.create_topics([AioNewTopic(queue, 2, 1)])
        while queue not in await admin.list_topics():
            await asyncio.sleep(0.05)
        await admin.delete_topics([queue])
        while queue in await admin.list_topics():
            await asyncio.sleep(0.05)
        await admin.close()

    await asyncio.wait_for(run(), 60)
