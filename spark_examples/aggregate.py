"""Records and bytes of each queue by window of event time: a summary queue, and a Delta table.

A window is written once, when the watermark has passed its end; records later than that are left
out. Killed and run again, queue and table are what they would have been: the table knows its
batches, and a batch done again adds to the queue only what it does not hold yet.
"""

from typing import Any

import checkpoints
import click
import entrance
import pipeline
import secured
import table
from confluent_kafka import KafkaException, TopicCollection
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_BATCH = "batch"


def counted(frame: DataFrame, window: str, watermark: str) -> DataFrame:
    """(start, end, queue, records, bytes, date) of each window that is over."""
    rows = frame.select(
        F.col("topic").alias("queue"),
        pipeline.event_time().alias("event_time"),
        F.coalesce(F.length("value"), F.lit(0)).alias("bytes"),
    )
    groups = rows.withWatermark("event_time", watermark).groupBy(
        F.window("event_time", window).alias("window"), "queue"
    )
    sums = groups.agg(F.count("*").alias("records"), F.sum("bytes").alias("bytes"))
    date = F.to_date("window.start").alias("date")
    return sums.select("window.start", "window.end", "queue", "records", "bytes", date)


def summaries(counts: DataFrame, summary: str, batch_id: int) -> DataFrame:
    """Return a record for each window and queue.

    Its key is `queue|start`, its value JSON, its time the window's end.
    """
    said = F.struct("queue", "start", "end", "records", "bytes")
    return counts.select(
        F.lit(summary).alias("topic"),
        F.concat_ws("|", "queue", F.date_format("start", "yyyy-MM-dd'T'HH:mm:ss'Z'")).alias("key"),
        F.to_json(said).alias("value"),
        F.array(
            pipeline.header(pipeline.TIMESTAMP, F.unix_millis("end")),
            pipeline.header(_BATCH, F.lit(batch_id)),
        ).alias("headers"),
    )


def exists(server: str, options: dict[str, str], queue: str) -> bool:
    """Whether there is such a queue; asking does not make it."""
    admin = secured.admin(server, options)
    try:
        admin.describe_topics(TopicCollection([queue]))[queue].result(30)
    except KafkaException:
        return False
    return True


def missing(rows: DataFrame, summary: str, server: str, options: dict[str, str]) -> DataFrame:
    """Return the rows of a batch that an earlier attempt at it did not write."""
    if not exists(server, options, summary):
        return rows
    asked = pipeline.of_clients(options) | {"subscribe": summary}
    there = pipeline.source(rows.sparkSession.read, server, asked)
    written = there.select(F.col("key").cast("string").alias("key"), "headers")
    return rows.join(written, ["key", "headers"], "left_anti")


@pipeline.job
@click.argument("directory")
@pipeline.pattern
@pipeline.entrance
@click.option("--summary", default="summary", help="the queue that windows are written to.")
@click.option("--window", default="1 minute", help="length of a window.")
@click.option("--watermark", default="1 minute", help="how late a record may come.")
@pipeline.every
def aggregate(
    directory: str, pattern: str, summary: str, window: str, watermark: str, **given: Any
) -> None:
    """Count what the queues hold by window, into a table in DIRECTORY and a queue."""
    options: dict[str, str] = given["options"]
    spark = pipeline.session("aggregate", given, table.SETTINGS)
    kept = table.Table(spark, directory)
    pattern = pipeline.whole(f"(?!{summary}$){pattern}")
    asked = {"subscribe": given["entrance"]} if given["entrance"] else {"subscribePattern": pattern}
    asked["startingOffsets"] = "earliest"
    frame = pipeline.source(spark.readStream, given["server"], asked | options)
    if given["entrance"]:
        frame = entrance.passed_on(frame, given, given["entrance"])
    counts = counted(frame, window, watermark)
    kept.open("aggregate", counts, ("date",))
    first = True

    def each(batch: DataFrame, batch_id: int) -> None:
        nonlocal first
        over = batch.persist()
        if not over.isEmpty():
            kept.add(over.repartition("date").sortWithinPartitions("start", "queue"), batch_id)
            rows = summaries(over, summary, batch_id)
            if first:
                rows = missing(rows, summary, given["server"], options)
            ordered = rows.coalesce(1).sortWithinPartitions("key")
            pipeline.write(ordered, given["server"], options)
            first = False
        over.unpersist()

    checkpoints.check(spark, kept.checkpoint, given["server"], given["options"])
    pipeline.run(counts, each, checkpoint=kept.checkpoint, every=given["every"])


if __name__ == "__main__":
    aggregate()
