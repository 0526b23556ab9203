"""Queues into a Delta Lake table, each record exactly once, by date and bucket of queues.

With many queues behind an entrance read that one: Spark makes a task for each queue that has news.
Stop it, kill it, run it again: the checkpoint lies with the table, which knows the micro-batches
that it has. All that read Delta Lake read it, and how it was with any batch (`--keep`).
"""

from typing import Any

import checkpoints
import click
import entrance
import pipeline
import table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

PLACED = ("date", "bucket")
SORTED = ("queue", "partition", "offset")


def archived(frame: DataFrame, buckets: int) -> DataFrame:
    """Return rows of Spark's Kafka source as the archive keeps them."""
    return frame.withColumn("event_time", pipeline.event_time()).select(
        F.col("topic").alias("queue"),
        "partition",
        "offset",
        "timestamp",
        "event_time",
        "key",
        "value",
        "headers",
        F.to_date("event_time").alias("date"),
        F.pmod(F.hash("topic"), buckets).alias("bucket"),
    )


@pipeline.job
@click.argument("directory")
@pipeline.pattern
@pipeline.entrance
@click.option("--buckets", type=click.IntRange(1), default=4, help="directories a date.")
@click.option(
    "--batch-records", type=click.IntRange(1), default=1_000_000, help="the size of a micro-batch."
)
@click.option(
    "--files-max",
    type=click.IntRange(2),
    default=8,
    help="small files in a directory; so many are merged.",
)
@click.option("--keep", metavar="TIME", default="7 days", help="how far back one can read it.")
@click.option("--parquet", is_flag=True, help="plain Parquet files, by Spark's own sink.")
@pipeline.every
def archive(directory: str, pattern: str, buckets: int, batch_records: int, **given: Any) -> None:
    """Keep queues whose names match, or those of an entrance, in a table in DIRECTORY."""
    options: dict[str, str] = given["options"]
    spark = pipeline.session("archive", given, {} if given["parquet"] else table.SETTINGS)
    kept = table.Table(spark, directory)
    asked = {"subscribePattern": pipeline.whole(pattern)}
    if given["entrance"]:
        asked = {"subscribe": given["entrance"]}
    asked |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(batch_records)}
    frame = pipeline.source(spark.readStream, given["server"], asked | options)
    if given["entrance"]:
        frame = entrance.passed_on(frame, given, given["entrance"])
    rows = archived(frame, buckets)

    def each(batch: DataFrame, batch_id: int) -> None:
        gathered = batch.repartition(8, *PLACED).sortWithinPartitions(*PLACED, *SORTED)
        kept.add(gathered, batch_id)

    to: Any = each
    if given["parquet"]:
        kept.refuse()
        to = rows.writeStream.format("parquet").partitionBy(*PLACED).option("path", directory)
    else:
        kept.open("archive", rows, PLACED, merge=given["files_max"], keep=given["keep"])
    checkpoints.check(spark, kept.checkpoint, given["server"], given["options"])
    pipeline.run(rows, to, checkpoint=kept.checkpoint, every=given["every"])


if __name__ == "__main__":
    archive()
