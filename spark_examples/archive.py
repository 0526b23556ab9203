"""Queues into Parquet files, each record exactly once: DIR/date=YYYY-MM-DD/bucket=N/…parquet.

With many queues behind an entrance read that one: Spark makes a task for each queue that has news.
Stop it, kill it, run it again: the checkpoint lies with the files, and a micro-batch that is done
again finds its own. Any tool reads the files; those that a compaction has merged are deleted.
"""

from typing import Any

import click
import entrance
import files
import pipeline
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
    type=click.IntRange(1),
    default=8,
    help="small files in a directory; more are merged.",
)
@pipeline.every
def archive(directory: str, pattern: str, buckets: int, batch_records: int, **given: Any) -> None:
    """Keep queues whose names match, or those of an entrance, in Parquet files below DIRECTORY."""
    options: dict[str, str] = given["options"]
    spark = pipeline.session("archive", given)
    archive = files.Files(spark, directory)
    archive.check_checkpoint()
    asked = {"subscribePattern": pipeline.whole(pattern)}
    if given["entrance"]:
        asked = {"subscribe": given["entrance"]}
    asked |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(batch_records)}
    frame = pipeline.source(spark.readStream, given["server"], asked | options)
    if given["entrance"]:
        frame = entrance.passed_on(frame, given, given["entrance"])

    def each(batch: DataFrame, batch_id: int) -> None:
        archive.commit(batch, batch_id, by=("date", "bucket"), sort=SORTED)
        archive.compact(given["files_max"], sort=SORTED)

    pipeline.run(
        archived(frame, buckets), each, checkpoint=archive.checkpoint, every=given["every"]
    )


if __name__ == "__main__":
    archive()
