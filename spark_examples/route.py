"""One busy topic into many queues by rule; or many queues into one topic: both ends are Kafka's.

The rule is an SQL expression over key, value (as text), topic, partition, offset, timestamp and
headers. Rows of one source partition keep their order. Spark's sink may write a record twice where
it is killed: the header `origin` (topic/partition/offset) tells copies from news. With --entrance
one queue is written to, and kproxy passes the records on to those that the rule names.
"""

from typing import Any

import checkpoints
import click
import entrance
import pipeline
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

ORIGIN = "origin"
TO = "to"
"""The header that an entrance goes by."""


def routed(frame: DataFrame, rule: str, where: str | None) -> DataFrame:
    """Return rows for Spark's Kafka sink, and where each came from."""
    origin = F.concat_ws("/", "topic", "partition", "offset")
    timed = frame.withColumn(
        "headers", pipeline.with_header(pipeline.TIMESTAMP, F.unix_millis(pipeline.event_time()))
    )
    carried = timed.withColumn("headers", pipeline.with_header(ORIGIN, origin))
    carried = carried.withColumns({"key_bytes": F.col("key"), "value_bytes": F.col("value")})
    text = carried.withColumns({name: F.col(name).cast("string") for name in ("key", "value")})
    kept = text if where is None else text.where(where)
    return kept.select(
        F.expr(rule).cast("string").alias("topic"), F.col("key_bytes").alias("key"),
        F.col("value_bytes").alias("value"), "headers",
        F.col("topic").alias("from"), "partition", "offset",
    )  # fmt: skip


def through(rows: DataFrame, queue: str) -> DataFrame:
    """Return the same for an entrance: a header says where each goes."""
    carried = rows.withColumn("headers", pipeline.with_header(TO, F.col("topic")))
    return carried.withColumn("topic", F.lit(queue))


@pipeline.job
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="HOST:PORT",
    help="the server that records come from.",
)
@click.option("--subscribe", help="topics, with commas.")
@click.option("--subscribe-pattern", "pattern", help="or all whose names match a Java regex.")
@click.option(
    "--to",
    "rule",
    required=True,
    metavar="SQL",
    help="name of the queue or topic for a record, as \"concat('customer-', key)\".",
)
@click.option("--where", metavar="SQL", help="only records for which this holds.")
@click.option("--starting-offsets", default="earliest", help="the start of the first run.")
@click.option(
    "--batch-records", type=click.IntRange(1), default=100_000, help="the size of a micro-batch."
)
@click.option("--entrance", "through", metavar="QUEUE", help="write there; made if it is not.")
@click.option("--queue-prefix", "prefix", help="prefix of names with --entrance.")
@pipeline.checkpoint
@pipeline.every
def route(origin: str, subscribe: str | None, pattern: str | None, rule: str, **given: Any) -> None:
    """Write records of topics at --from to the queues (at --bootstrap-server) that --to names."""
    if (subscribe is None) == (pattern is None):
        raise click.UsageError("give --subscribe or --subscribe-pattern")
    if (given["through"] is None) != (given["prefix"] is None):
        raise click.UsageError("give --entrance and --queue-prefix, or none of them")
    options: dict[str, str] = given["options"]
    pipeline.check_server(origin)
    spark = pipeline.session("route", given)
    asked = (
        {"subscribe": subscribe}
        if subscribe
        else {"subscribePattern": pipeline.whole(pattern or "")}
    )
    asked["startingOffsets"] = given["starting_offsets"]
    asked["maxOffsetsPerTrigger"] = str(given["batch_records"])
    rows = routed(pipeline.source(spark.readStream, origin, asked | options), rule, given["where"])
    if given["through"]:
        entrance.make(given, given["through"], f"{given['prefix']}{{header:{TO}}}")
        rows = through(rows, given["through"])

    def each(batch: DataFrame, batch_id: int) -> int:
        # A task holds one partition or a slice of it; its rows are in order, and stay so by target.
        ordered = batch.sortWithinPartitions("topic", "from", "partition", "offset")
        return pipeline.write(ordered, given["server"], options)

    checkpoints.check(spark, given["checkpoint"], origin, options)
    pipeline.run(rows, each, checkpoint=given["checkpoint"], every=given["every"])


if __name__ == "__main__":
    route()
