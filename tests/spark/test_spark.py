"""Spark's Kafka source and sink, unmodified: batch and structured streaming."""

from pathlib import Path
from typing import Any

from tests.clients.calls import create, producer
from tests.harness import served
from tests.spark import jobs
from tests.workers import Site


def write(site: Site, queue: str, start: int, count: int) -> None:
    client = producer(site.address, linger_ms=5)
    for i in range(start, start + count):
        client.produce(queue, b"value-%d" % i, key=b"key-%d" % i, headers=[("n", b"%d" % i)])
    assert client.flush(30) == 0


def source(spark: Any, site: Site, streaming: bool = False, **options: str) -> Any:
    return jobs.load(spark.readStream if streaming else spark.read, site.address, **options)


def numbered(spark: Any, count: int, queues: int) -> Any:
    return spark.range(count).selectExpr(
        f"concat('spark-out-', id % {queues}) AS topic",
        "CAST(id AS STRING) AS key",
        "concat('v', id) AS value",
    )


def test_batch_write_with_a_topic_column(spark: Any, site: Site) -> None:
    frame = numbered(spark, 2000, 20)
    frame.write.format("kafka").option("kafka.bootstrap.servers", site.address).save()
    rows = source(spark, site, subscribePattern="spark-out-.*").collect()
    found = sorted((int(bytes(r.key)), r.topic, bytes(r.value)) for r in rows)
    assert found == [(i, f"spark-out-{i % 20}", b"v%d" % i) for i in range(2000)]
    for queue in range(20):
        offsets = sorted(r.offset for r in rows if r.topic == f"spark-out-{queue}")
        assert offsets == list(range(100))


def test_structured_streaming_stops_and_resumes(spark: Any, tmp_path: Path, site: Site) -> None:
    write(site, "spark-stream", 0, 500)

    def run() -> None:
        frame = source(
            spark, site, streaming=True, subscribe="spark-stream", startingOffsets="earliest",
            maxOffsetsPerTrigger="200",
        )  # fmt: skip
        query = (
            frame.selectExpr("'spark-copy' AS topic", "key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", site.address)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run()
    write(site, "spark-stream", 500, 300)
    run()
    with site.wire("spark-copy") as wire:
        assert wire.list_offset("spark-copy", -1).offset == 800
    copied = source(spark, site, subscribe="spark-copy").collect()
    assert [bytes(r.value) for r in sorted(copied, key=lambda r: r.offset)] == [
        b"value-%d" % i for i in range(800)
    ]


def test_a_stream_goes_on_over_a_restart_of_the_server(spark: Any, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with served(data_dir) as first:
        port = first.port
        create(first.address, "in", partitions=3)
        write(first, "in", 0, 300)
        query = (
            source(spark, first, streaming=True, subscribe="in", startingOffsets="earliest")
            .selectExpr("CAST(value AS STRING) AS value")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        query.processAllAvailable()
        first.kill()
    with served(data_dir, port=port) as again:
        write(again, "in", 300, 300)
        query.processAllAvailable()
        query.stop()
    values = [row.value for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(values) == sorted(f"value-{i}" for i in range(600))
