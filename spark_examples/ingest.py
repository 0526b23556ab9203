"""Files, or Spark's rate source, into one queue per key.

A row becomes a record of queue PREFIX<key>, with its key, its columns as JSON, its time and its
headers. Each file is taken once: run it again (from cron, or with --every) and new files go in.
With --entrance all are written to one queue, and kproxy passes them on to those of their keys.
"""

from pathlib import Path
from typing import Any

import click
import entrance
import pipeline
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, TimestampType


def files(spark: SparkSession, directory: str, form: str) -> DataFrame:
    """Return a stream of a directory's files, as the ones that are there now look."""
    header = {"header": "true"} if form == "csv" else {}
    sample = spark.read.format(form).options(**header, inferSchema="true").load(directory)
    return spark.readStream.format(form).options(**header).schema(sample.schema).load(directory)


def rates(spark: SparkSession, rate: int, queues: int) -> DataFrame:
    """Return so many rows a second: n counts up, id is n modulo `queues`."""
    frame = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    return frame.select(
        (F.col("value") % queues).alias("id"), F.col("value").alias("n"), F.col("timestamp")
    )


def millis(frame: DataFrame, name: str) -> Column:
    """Return a column's time in ms since 1970: a timestamp, a number of ms, or text."""
    kind = frame.schema[name].dataType
    if isinstance(kind, IntegralType):
        return F.col(name)
    column = F.col(name)
    return F.unix_millis(column if isinstance(kind, TimestampType) else F.to_timestamp(column))


def records(
    frame: DataFrame,
    prefix: str,
    through: str | None,
    key: str,
    value: str | None,
    time: str | None,
    headers: tuple[str, ...],
) -> DataFrame:
    """Return rows for Spark's Kafka sink: topic, key, value, headers."""
    for name in (key, value, time, *headers):
        if name is not None and name not in frame.columns:
            pipeline.fail(f"no column {name!r}: there are {', '.join(frame.columns)}")
    carried = [pipeline.header(name, F.col(name)) for name in headers]
    if time is not None:
        carried.append(pipeline.header(pipeline.TIMESTAMP, millis(frame, time)))
    whole = F.to_json(F.struct(*frame.columns))
    topic = F.concat(F.lit(prefix), F.col(key))
    if through is not None:
        topic = F.when(F.col(key).isNotNull(), F.lit(through))
    keyless = F.raise_error(F.concat(F.lit(f"a row has no {key}: "), whole))
    return frame.select(
        F.coalesce(topic, keyless).alias("topic"),
        F.col(key).cast("string").alias("key"),
        (whole if value is None else F.col(value)).alias("value"),
        F.array(*carried).cast("array<struct<key:string,value:binary>>").alias("headers"),
    )


@pipeline.job
@click.argument("directory", required=False)
@click.option("--format", "form", default="json", type=click.Choice(["json", "csv", "parquet"]))
@click.option("--rate", type=click.IntRange(1), metavar="ROWS", help="no files: so many a second.")
@click.option("--queues", type=click.IntRange(1), default=1000, help="the number with --rate.")
@click.option("--seconds", type=click.IntRange(1), help="the end of --rate.")
@click.option("--queue-prefix", "prefix", default="user-", help="the start of queue names.")
@click.option("--entrance", "through", metavar="QUEUE", help="write there; made if it is not.")
@click.option("--key", default="id", metavar="COLUMN", help="key, and end of the queue's name.")
@click.option("--value", metavar="COLUMN", help="the value; without it all columns as JSON.")
@click.option("--timestamp", "time", metavar="COLUMN", help="time; text, ms or a timestamp.")
@click.option("--header", "headers", multiple=True, metavar="COLUMN", help="a header of that name.")
@pipeline.checkpoint
@pipeline.every
def ingest(directory: str | None, form: str, rate: int | None, **given: Any) -> None:
    """Write the files of DIRECTORY, or a stream of numbers, to one queue per key."""
    if (directory is None) == (rate is None):
        raise click.UsageError("give a directory, or --rate")
    if directory is not None and Path(directory).is_file():
        pipeline.fail(f"{directory} is a file: give its directory")
    options: dict[str, str] = given["options"]
    spark = pipeline.session("ingest", given)
    if directory is not None:
        frame = files(spark, directory, form)
    else:
        frame = rates(spark, rate or 0, given["queues"])
        given["time"] = given["time"] or "timestamp"
        given["every"] = given["every"] or "1 second"
    if given["through"]:
        entrance.make(given, given["through"], given["prefix"] + "{key}")
    rows = records(
        frame, given["prefix"], given["through"], given["key"], given["value"], given["time"],
        given["headers"],
    )  # fmt: skip

    def each(batch: DataFrame, batch_id: int) -> int:
        numbered = batch.withColumn("order", F.monotonically_increasing_id())
        ordered = numbered.repartition("topic", "key").sortWithinPartitions("topic", "order")
        return pipeline.write(ordered, given["server"], options)

    pipeline.run(
        rows, each, checkpoint=given["checkpoint"], every=given["every"], seconds=given["seconds"]
    )


if __name__ == "__main__":
    ingest()
