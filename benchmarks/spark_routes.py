"""Spark over the records of many queues: read from their entrance, and by subscribePattern.

    python -m benchmarks.spark_routes [QUEUES ...]

One record a queue, embedded. Prints seconds of one batch query over all of them, what the whole
process of Spark and what kproxy takes of the CPU, and how many times faster the entrance is.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.routes import librdkafka
from benchmarks.servers import Server, embedded
from tests.clients.routes.calls import end_of
from tests.harness import SPARK_JARS, eventually

_QUEUES = (5_000, 10_000, 20_000)
_LANDED_S = 1200.0


def _spark() -> Any:
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    jars = ",".join(str(jar) for jar in sorted(SPARK_JARS.glob("*.jar")))
    builder = SparkSession.builder.master("local[8]").config("spark.jars", jars)
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "2g")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")  # it warns of each queue that it has no consumer for
    return spark


def _cpu(*processes: psutil.Process) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _passed(server: Server, queues: int) -> str:
    """Make an entrance through which a record went to each of so many queues."""
    name = f"in-{queues}"
    admin = AdminClient({"bootstrap.servers": server.address})
    config = {"kproxy.route.to": f"to-{queues}-{{key}}", "kproxy.route.unroutable": f"{name}.lost"}
    admin.create_topics([NewTopic(name, config=config)])[name].result(30)
    librdkafka(server.address, name, queues)
    last = f"to-{queues}-{queues - 1}"
    eventually(lambda: end_of(server.address, last) == 1, _LANDED_S, 0.5)
    return name


def main() -> None:
    """Measure each number of queues that is given."""
    table = Table(
        "queues", "read from", "seconds", "CPU of Spark, s", "CPU of kproxy, s", "times faster"
    )
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(embedded(directory / "own", "never"))
        spark = _spark()
        java = [one for one in psutil.Process().children(True) if one.name() == "java"]

        def read(**what: str) -> tuple[float, float, float]:
            before, began = (_cpu(*java), server.cpu()), time.monotonic()
            reader = spark.read.format("kafka").option("kafka.bootstrap.servers", server.address)
            rows = reader.options(**what).load().selectExpr("sum(length(value))", "count(*)")
            rows = rows.collect()[0][1]
            seconds = time.monotonic() - began
            assert rows == queues, (rows, queues)
            return seconds, _cpu(*java) - before[0], server.cpu() - before[1]

        queues = 100
        _measure(read, _passed(server, queues), queues)  # Java compiles what it runs often
        for queues in map(int, sys.argv[1:]) if sys.argv[1:] else _QUEUES:
            entrance = _passed(server, queues)
            figures = _measure(read, entrance, queues)
            times = figures["the queues"][0] / figures["the entrance"][0]
            for what, (seconds, ours, kproxys) in figures.items():
                shown = f"{times:.0f}" if what == "the entrance" else ""
                table.add_row(
                    f"{queues:,}", what, f"{seconds:.2f}", f"{ours:.1f}", f"{kproxys:.2f}", shown
                )
        spark.stop()
    Console().print(table)


def _measure(
    read: Callable[..., tuple[float, float, float]], entrance: str, queues: int
) -> dict[str, tuple[float, float, float]]:
    pattern = f"^to-{queues}-.*$"
    return {
        "the entrance": min(read(subscribe=entrance) for _ in range(3)),
        "the queues": read(subscribePattern=pattern),
    }


if __name__ == "__main__":
    main()
