"""Late records of an entrance: those behind the watermark, which windows would leave out.

The watermark is the newest event time of the micro-batches before, less `--watermark`. Each record
goes into one table, and how late it is with it (null: in time), so that a report by queue, and a
window that counts late records too, can be made of it.
"""

from typing import Any

import checkpoints
import click
import entrance
import pipeline
import table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def with_lateness(batch: DataFrame, watermark: Any) -> DataFrame:
    """Return rows with the seconds that each is behind a time, or null where it is not behind."""
    behind = F.lit(watermark).cast("timestamp").cast("double") - F.col("event_time").cast("double")
    return batch.withColumn("late_s", F.when(behind > 0, behind))


@pipeline.job
@click.argument("directory")
@click.option("--entrance", "name", metavar="QUEUE", required=True, help="the entrance to read.")
@click.option("--watermark", default="10 minutes", help="how late a record may come.")
@pipeline.every
def late(directory: str, name: str, watermark: str, **given: Any) -> None:
    """Write an entrance's records, and how late they are, into a table in DIRECTORY."""
    spark = pipeline.session("late", given, table.SETTINGS)
    kept = table.Table(spark, directory)
    asked = {"subscribe": name, "startingOffsets": "earliest"} | given["options"]
    frame = pipeline.source(spark.readStream, given["server"], asked)
    rows = entrance.passed_on(frame, given, name).select(
        F.col("topic").alias("queue"), "partition", "offset", "value",
        pipeline.event_time().alias("event_time"),
    ).withColumn("date", F.to_date("event_time"))  # fmt: skip
    kept.open("late", with_lateness(rows, None), ("date",))

    def each(batch: DataFrame, batch_id: int) -> None:
        newest = F.max("event_time") - F.expr(f"INTERVAL {watermark}")
        before: Any = kept.read().agg(newest.alias("at")).collect()[0].at
        marked = with_lateness(batch, before).coalesce(1)
        kept.add(marked.sortWithinPartitions("date", "queue", "offset"), batch_id)

    checkpoints.check(spark, kept.checkpoint, given["server"], given["options"])
    pipeline.run(rows, each, checkpoint=kept.checkpoint, every=given["every"])
    by_queue = kept.read().where("late_s IS NOT NULL").groupBy("queue")
    said = by_queue.agg(F.count("*").alias("late"), F.max("late_s").cast("long").alias("seconds"))
    said.orderBy(F.desc("late"), "queue").show(truncate=False)


if __name__ == "__main__":
    late()
