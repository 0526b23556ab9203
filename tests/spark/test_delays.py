"""Spark reads a queue with delays as any other: a record is there once it is due."""

import time
from typing import Any

from tests.clients.calls import create, producer
from tests.workers import Site


def test_spark_reads_what_is_due(spark: Any, site: Site) -> None:
    create(site.address, "later", partitions=2, kproxy_delay="header")
    client = producer(site.address)
    for number in range(100):
        wait_ms = (0, 1000, 3_600_000)[number % 3]
        client.produce(
            "later", b"%d" % number, partition=number % 2,
            headers={"kproxy.delay-ms": str(wait_ms)},
        )  # fmt: skip
    assert client.flush(30) == 0
    until = time.monotonic() + 60
    while True:
        rows = (
            spark.read.format("kafka").option("kafka.bootstrap.servers", site.address)
            .option("subscribe", "later").load()
            .selectExpr("cast(value as string) value", "timestampType kind").collect()
        )  # fmt: skip
        if len(rows) >= 67:
            break
        assert time.monotonic() < until, len(rows)
    assert sorted(int(row.value) for row in rows) == [n for n in range(100) if n % 3 != 2]
    assert {row.kind for row in rows if int(row.value) % 3 == 1} == {1}  # LogAppendTime
