"""The time of the data source `kproxy` over very many queues, in CPU: it shares the machine."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.routes.calls import end_of
from tests.harness import Served, eventually, served

QUEUES, RECORDS, PASSED_S = 100_000, 10, 1200


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve an entrance, `into`, and the queues that its records went to: 1,000,000 of them."""
    with served(tmp_path_factory.mktemp("figures")) as server:
        admin = AdminClient({"bootstrap.servers": server.address})
        config = {"kproxy.route.to": "of-{key}", "kproxy.route.unroutable": "of.none"}
        admin.create_topics([NewTopic("into", 4, config=config)])["into"].result(30)
        settings = {"bootstrap.servers": server.address, "linger.ms": 50}
        producer = Producer({**settings, "queue.buffering.max.messages": 2_000_000})
        for number in range(RECORDS):
            for queue in range(QUEUES):
                producer.produce("into", b"value-%d" % number * 5, b"%d" % queue, queue % 4)
                if queue % 10_000 == 0:
                    producer.poll(0)
        assert producer.flush(300) == 0
        ends = [f"of-{QUEUES - 1 - index}" for index in range(4)]
        eventually(lambda: all(end_of(server.address, n) == RECORDS for n in ends), PASSED_S, 1)
        yield server


def cpu() -> dict[psutil.Process, float]:
    """Return seconds of CPU of all processes that these tests started, and of this one."""
    here = psutil.Process()
    used = {}
    for process in (here, *here.children(recursive=True)):
        try:
            used[process] = sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return used


def took(work: Callable[[], object]) -> tuple[float, float]:
    """Return seconds of the clock and of CPU."""
    before, began = cpu(), time.monotonic()
    work()
    seconds = time.monotonic() - began
    return seconds, sum(after - before.get(process, 0) for process, after in cpu().items())


def ours(spark: Any, server: Served, **options: object) -> Any:
    from kproxy.spark import register

    register(spark)
    reader = spark.read.format("kproxy").option("kafka.bootstrap.servers", server.address)
    return reader.options(**options).load()


def test_a_hundred_thousand_queues_in_a_minute(spark: Any, filled: Served) -> None:
    def read() -> None:
        rows = ours(spark, filled, prefix="of-", partitions=2)
        said = rows.selectExpr("count(*)", "count(DISTINCT topic)", "sum(length(value))").collect()
        assert list(said[0]) == [QUEUES * RECORDS, QUEUES, QUEUES * RECORDS * 35]

    seconds, used = took(read)
    print(f"{QUEUES:,} queues: {seconds:.1f} s, {used:.1f} s of CPU")  # noqa: T201
    assert used < 60
