"""Spark's Kafka source reads what is committed, where it is told to."""

from pathlib import Path
from typing import Any

from tests.clients.calls import WAIT_S, create
from tests.clients.transactions.calls import abort, commit, settle, transactional, write
from tests.spark import jobs
from tests.workers import Site

COMMITTED = {"kafka.isolation.level": "read_committed"}


def into(queue: str, first: int, end: int) -> list[tuple[str, bytes]]:
    return [(queue, b"%d" % number) for number in range(first, end)]


def numbers(rows: list[Any]) -> list[int]:
    return [int(bytes(row.value)) for row in sorted(rows, key=lambda row: row.offset)]


def test_batch(spark: Any, site: Site, queue: str) -> None:
    create(site.address, queue)
    producer = transactional(site.address, queue)
    commit(producer, into(queue, 0, 100))
    abort(producer, into(queue, 100, 200))
    commit(producer, into(queue, 200, 300))
    producer.begin_transaction()
    write(producer, into(queue, 300, 400))
    settled = [*range(100), *range(200, 300)]

    def read(**options: str) -> list[int]:
        rows = jobs.load(spark.read, site.address, subscribe=queue, **options).collect()
        return numbers(rows)

    assert read(**COMMITTED) == settled
    assert read() == list(range(400))
    producer.commit_transaction(WAIT_S)
    settle(site.address, [queue])
    assert read(**COMMITTED) == [*settled, *range(300, 400)]
    # The parts that end within aborted records, or begin there.
    offsets = {"startingOffsets": f'{{"{queue}":{{"0":150}}}}', "minPartitions": "5"}
    assert read(**COMMITTED, **offsets) == list(range(200, 400))


def test_streaming(spark: Any, site: Site, queue: str, tmp_path: Path) -> None:
    """A run ends before what is open; the next one begins there."""
    create(site.address, queue)
    producer = transactional(site.address, queue)

    def run() -> list[int]:
        query = (
            jobs.load(
                spark.readStream, site.address, subscribe=queue, startingOffsets="earliest",
                maxOffsetsPerTrigger="70", **COMMITTED,
            )
            .selectExpr("CAST(CAST(value AS STRING) AS INT) AS value")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        assert query.awaitTermination(120)
        return sorted(row.value for row in spark.read.parquet(str(tmp_path / "out")).collect())

    commit(producer, into(queue, 0, 100))
    abort(producer, into(queue, 100, 200))
    producer.begin_transaction()
    write(producer, into(queue, 200, 300))
    assert run() == list(range(100))
    producer.commit_transaction(WAIT_S)
    settle(site.address, [queue])
    producer.begin_transaction()
    write(producer, into(queue, 300, 400))
    assert run() == [*range(100), *range(200, 300)]
    producer.abort_transaction(WAIT_S)
    commit(producer, into(queue, 400, 500))
    settle(site.address, [queue])
    assert run() == [*range(100), *range(200, 300), *range(400, 500)]
