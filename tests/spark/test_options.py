"""The Kafka source's options do on queues what they do on a real Kafka's topics.

Every test runs three times: on that Kafka itself, which tells whether the test is right, on an
embedded kproxy, and on workers.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import eventually, served
from tests.real_kafka import Kafka
from tests.spark.jobs import load
from tests.workers import Workers

BEGAN_MS = int(time.time() * 1000) - 3_600_000


@pytest.fixture(scope="module", params=["kafka itself", "embedded", "workers"])
def address(
    request: pytest.FixtureRequest, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("data")
    if request.param == "kafka itself":
        yield kafka.address
    elif request.param == "embedded":
        with served(directory) as server:
            yield server.address
    else:
        with Workers(kafka, directory).running() as workers:
            yield workers.address


def make(address: str, *names: str, partitions: int = 1) -> AdminClient:
    admin, left = AdminClient({"bootstrap.servers": address}), set(names)

    def made() -> bool:
        futures = admin.create_topics([NewTopic(name, partitions, 1) for name in left])
        for name, future in futures.items():
            try:
                future.result(30)
            except KafkaException as error:  # Java's client tries that again by itself
                if error.args[0].code() != KafkaError.NOT_CONTROLLER:
                    raise
            else:
                left.discard(name)
        return not left

    eventually(made)
    return admin


def write(address: str, queue: str, start: int, end: int, partition: int = 0) -> None:
    """Write values start, start + 1, …, a second of time apart."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    failed = []
    for i in range(start, end):
        producer.produce(
            queue, b"%d" % i, partition=partition, timestamp=BEGAN_MS + i % 1000 * 1000,
            headers=[("n", b"%d" % i)],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(30) == 0
    assert not failed, failed[0]


def found(spark: Any, address: str, **options: str) -> list[tuple[str, int, int]]:
    """Return (queue, partition, offset) of a batch query's rows."""
    rows = load(spark.read, address, **options).select("topic", "partition", "offset").collect()
    return sorted(tuple(row) for row in rows)


def drain(spark: Any, address: str, checkpoint: Path, **options: str) -> list[list[int]]:
    """Return what is there now, by micro-batch, each sorted."""
    batches = []

    def take(batch: Any, batch_id: int) -> None:
        batches.append(sorted(int(row.value) for row in batch.select("value").collect()))

    frame = load(spark.readStream, address, **{"startingOffsets": "earliest"} | options)
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return [batch for batch in batches if batch]


def test_subscribe_pattern_and_assign(spark: Any, address: str) -> None:
    make(address, "sub-a", "sub-b", "other-a", partitions=2)
    for queue in ("sub-a", "sub-b", "other-a"):
        for partition in (0, 1):
            write(address, queue, 0, 3 + partition, partition)
    sub_a = [("sub-a", p, i) for p in (0, 1) for i in range(3 + p)]
    sub_b = [("sub-b", p, i) for p in (0, 1) for i in range(3 + p)]
    other = [("other-a", p, i) for p in (0, 1) for i in range(3 + p)]
    assert found(spark, address, subscribe="sub-a") == sub_a
    assert found(spark, address, subscribe="sub-a,other-a") == sorted(sub_a + other)
    assert found(spark, address, subscribePattern="sub-.") == sub_a + sub_b
    assert found(spark, address, subscribePattern="sub-.|other-.*") == other + sub_a + sub_b
    assert found(spark, address, assign='{"sub-a":[1],"other-a":[0]}') == [
        ("other-a", 0, 0), ("other-a", 0, 1), ("other-a", 0, 2),
        ("sub-a", 1, 0), ("sub-a", 1, 1), ("sub-a", 1, 2), ("sub-a", 1, 3),
    ]  # fmt: skip


def offsets(spark: Any, address: str, queue: str, **options: str) -> list[int]:
    return [offset for _, _, offset in found(spark, address, subscribe=queue, **options)]


def test_bounds_of_starting_and_ending_offsets(spark: Any, address: str) -> None:
    make(address, "ends")
    write(address, "ends", 0, 100)

    def asked(**options: str) -> list[int]:
        return offsets(spark, address, "ends", **options)

    def ms(second: int) -> str:
        return str(BEGAN_MS + second * 1000)

    assert asked() == list(range(100))
    assert asked(startingOffsets="earliest", endingOffsets="latest") == list(range(100))
    assert asked(startingOffsets='{"ends":{"0":40}}') == list(range(40, 100))
    assert asked(startingOffsets='{"ends":{"0":-2}}', endingOffsets='{"ends":{"0":30}}') == list(
        range(30)
    )
    assert asked(startingOffsets='{"ends":{"0":95}}', endingOffsets='{"ends":{"0":-1}}') == list(
        range(95, 100)
    )
    assert asked(startingTimestamp=ms(60)) == list(range(60, 100))
    assert asked(startingTimestamp=str(int(ms(60)) - 500)) == list(range(60, 100))
    assert asked(endingTimestamp=ms(20)) == list(range(20))
    by_time = json.dumps({"ends": {"0": int(ms(70))}})
    assert asked(startingOffsetsByTimestamp=by_time) == list(range(70, 100))
    assert asked(endingOffsetsByTimestamp=by_time) == list(range(70))
    with pytest.raises(Exception, match="No offset matched from request"):
        asked(startingTimestamp=ms(1000))
    assert asked(startingTimestamp=ms(1000), startingOffsetsByTimestampStrategy="latest") == []
    assert asked(startingTimestamp=ms(10), startingOffsets='{"ends":{"0":90}}') == list(
        range(10, 100)
    )


def test_a_stream_begins_where_it_is_told(spark: Any, address: str, tmp_path: Path) -> None:
    make(address, "begins")
    write(address, "begins", 0, 20)
    assert drain(spark, address, tmp_path / "1", subscribe="begins") == [list(range(20))]
    by_time = {"startingTimestamp": str(BEGAN_MS + 15_000)}
    assert drain(spark, address, tmp_path / "2", subscribe="begins", **by_time) == [
        list(range(15, 20))
    ]
    by_offset = {"startingOffsets": '{"begins":{"0":18}}'}
    assert drain(spark, address, tmp_path / "3", subscribe="begins", **by_offset) == [[18, 19]]
    assert drain(spark, address, tmp_path / "4", subscribe="begins", startingOffsets="latest") == []
    write(address, "begins", 20, 22)
    assert drain(spark, address, tmp_path / "4", subscribe="begins", startingOffsets="latest") == [
        [20, 21]
    ]


def test_sizes_of_batches_and_tasks(spark: Any, address: str, tmp_path: Path) -> None:
    make(address, "sized")
    write(address, "sized", 0, 100)
    limited = drain(
        spark, address, tmp_path / "1", subscribe="sized", maxOffsetsPerTrigger="30",
    )  # fmt: skip
    assert sorted(value for batch in limited for value in batch) == list(range(100))
    assert [len(batch) for batch in limited] == [30, 30, 30, 10]
    frame = load(spark.read, address, subscribe="sized", minPartitions="7")
    assert frame.rdd.getNumPartitions() >= 7
    assert sorted(int(row.value) for row in frame.collect()) == list(range(100))

    batches: list[int] = []
    frame = load(
        spark.readStream, address, subscribe="sized", startingOffsets="earliest",
        minOffsetsPerTrigger="50", maxTriggerDelay="1h",
    )  # fmt: skip
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.count()))
        .option("checkpointLocation", str(tmp_path / "2"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        eventually(lambda: 100 in batches, 60)
        write(address, "sized", 100, 120)
        time.sleep(3)
        assert sum(batches) == 100
        write(address, "sized", 120, 160)
        eventually(lambda: sum(batches) == 160, 60)
        assert max(batches[1:]) >= 50
    finally:
        query.stop()


def test_headers_only_where_asked_for(spark: Any, address: str) -> None:
    make(address, "heads")
    write(address, "heads", 0, 3)
    assert "headers" not in load(spark.read, address, subscribe="heads").columns
    rows = load(spark.read, address, subscribe="heads", includeHeaders="true").collect()
    heads = sorted([(h.key, bytes(h.value)) for h in row.headers] for row in rows)
    assert heads == [[("n", b"%d" % i)] for i in range(3)]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_records_trimmed_between_batches(
    spark: Any, address: str, tmp_path: Path, strict: str
) -> None:
    queue = f"trimmed-{strict}"
    admin = make(address, queue)
    write(address, queue, 0, 10)

    def more() -> list[list[int]]:
        return drain(spark, address, tmp_path / "c", subscribe=queue, failOnDataLoss=strict)

    assert more() == [list(range(10))]
    write(address, queue, 10, 30)
    admin.delete_records([TopicPartition(queue, 0, 20)])[TopicPartition(queue, 0)].result(30)
    if strict == "true":
        with pytest.raises(Exception, match=r"may have been lost|out of range|failOnDataLoss"):
            more()
    else:
        assert [value for batch in more() for value in batch] == list(range(20, 30))
        write(address, queue, 30, 33)
        assert more() == [[30, 31, 32]]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_queue_deleted_between_batches(
    spark: Any, address: str, tmp_path: Path, strict: str
) -> None:
    gone, kept = f"del-{strict}-gone", f"del-{strict}-kept"
    admin = make(address, gone, kept)
    write(address, gone, 0, 5)
    write(address, kept, 100, 105)

    def more() -> list[list[int]]:
        return drain(
            spark, address, tmp_path / "c", subscribePattern=f"del-{strict}-.*",
            failOnDataLoss=strict,
        )  # fmt: skip

    assert more() == [[0, 1, 2, 3, 4, 100, 101, 102, 103, 104]]
    admin.delete_topics([gone])[gone].result(30)
    write(address, kept, 105, 107)
    eventually(lambda: gone not in admin.list_topics(timeout=10).topics, 30)
    if strict == "true":
        with pytest.raises(Exception, match=r"are gone|may have been (lost|missed)|DATA_LOSS"):
            more()
    else:
        assert more() == [[105, 106]]


def test_queues_that_appear_during_a_stream(spark: Any, address: str, tmp_path: Path) -> None:
    make(address, "new-0")
    write(address, "new-0", 0, 3)
    values: list[int] = []

    def take(batch: Any, batch_id: int) -> None:
        values.extend(int(row.value) for row in batch.collect())

    query = (
        load(spark.readStream, address, subscribePattern="new-.*", startingOffsets="earliest")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        eventually(lambda: len(values) == 3, 60)
        for number in (1, 2, 3):
            make(address, f"new-{number}")
            write(address, f"new-{number}", number * 10, number * 10 + 3)
        eventually(lambda: len(values) == 12, 60)
        assert sorted(values) == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]
    finally:
        query.stop()


def test_a_worker_killed_during_a_micro_batch(spark: Any, kafka: Kafka, tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    with Workers(kafka, tmp_path / "workers").running() as workers:
        names = [f"kill-{i}" for i in range(20)]
        make(workers.address, *names)
        for i, name in enumerate(names):
            write(workers.address, name, i * 1000, i * 1000 + 200)
        values: list[int] = []

        def take(batch: Any, batch_id: int) -> None:
            if batch_id == 0:
                workers.workers[0].kill()
            rows = batch.select("value").collect()
            values.extend(int(row.value) for row in rows)

        frame = load(
            spark.readStream, workers.address, subscribePattern="kill-.*",
            startingOffsets="earliest", maxOffsetsPerTrigger="2000",
        )  # fmt: skip
        writer = frame.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(180)
        assert sorted(values) == [i * 1000 + n for i in range(20) for n in range(200)]
        workers.again(0).wait_ready()
