"""Records of an entrance with what a compacted queue knows of their keys: a stream and a dimension.

The dimension is a queue that keeps the newest record of each key (`cleanup.policy=compact`), a JSON
object each; one without a value is gone. It is read anew for each micro-batch, therefore a change
counts from the next one on. Rows without a match are kept, with no columns of the dimension.
"""

from typing import Any

import checkpoints
import click
import entrance
import pipeline
import table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def newest(frame: DataFrame, columns: str) -> DataFrame:
    """Return (key, what the newest record of each key says)."""
    last = F.max_by("value", F.struct("partition", "offset")).alias("value")
    rows = frame.where("key IS NOT NULL").groupBy(F.col("key").cast("string").alias("key"))
    said = F.from_json(F.col("value").cast("string"), columns).alias("said")
    return rows.agg(last).where("value IS NOT NULL").select("key", said)


@pipeline.job
@click.argument("directory")
@click.option("--entrance", "name", metavar="QUEUE", required=True, help="the entrance to read.")
@click.option("--dimension", metavar="QUEUE", required=True, help="the queue of what is known.")
@click.option("--columns", default="name string, plan string", help="its fields, with types.")
@pipeline.every
def customers(directory: str, name: str, dimension: str, columns: str, **given: Any) -> None:
    """Write an entrance's records with their dimension into a table in DIRECTORY."""
    spark = pipeline.session("customers", given, table.SETTINGS)
    kept = table.Table(spark, directory)
    options: dict[str, str] = given["options"]
    asked = {"subscribe": name, "startingOffsets": "earliest"} | options
    frame = pipeline.source(spark.readStream, given["server"], asked)
    rows = entrance.passed_on(frame, given, name).select(
        F.col("topic").alias("queue"), "partition", "offset",
        F.col("key").cast("string").alias("key"), "value",
        F.to_date(pipeline.event_time()).alias("date"),
    )  # fmt: skip

    def joined(batch: DataFrame) -> DataFrame:
        there = {"subscribe": dimension} | pipeline.of_clients(options)
        known = newest(pipeline.source(spark.read, given["server"], there), columns)
        return batch.join(F.broadcast(known), "key", "left").select(*rows.columns, "said.*")

    like = rows.withColumn("said", F.from_json(F.lit(None).cast("string"), columns))
    kept.open("customers", like.select(*rows.columns, "said.*"), ("date",))

    def each(batch: DataFrame, batch_id: int) -> None:
        kept.add(joined(batch).coalesce(1).sortWithinPartitions("date", "queue"), batch_id)

    checkpoints.check(spark, kept.checkpoint, given["server"], given["options"])
    pipeline.run(rows, each, checkpoint=kept.checkpoint, every=given["every"])
    fields = kept.read().columns[len(rows.columns) :]
    kept.read().groupBy(*fields).count().orderBy(*fields).show()


if __name__ == "__main__":
    customers()
