"""The archive back into queues: each queue in its order, all together in the order of their times.

Bounded by event time or by offset, and to a rate. Slices are written one after the other; one that
is interrupted is written again by --from-slice, with the same arguments and archive.
"""

import time
from datetime import datetime
from typing import Any

import click
import pipeline
import table
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

_WHEN = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"])
_SLICE_SECONDS = 5
_IN_PARTITION = (1 << 33) - 1


def chosen(
    rows: DataFrame,
    match: str,
    times: tuple[datetime | None, datetime | None],
    offsets: tuple[int | None, int | None],
) -> DataFrame:
    """Return rows of queues whose whole name matches, from the first bound on and below the
    second.
    """
    rows = rows.where(F.col("queue").rlike(pipeline.whole(match)))
    for column, (start, end) in (("event_time", times), ("offset", offsets)):
        if start is not None:
            rows = rows.where(F.col(column) >= F.lit(start))
        if end is not None:
            rows = rows.where(F.col(column) < F.lit(end))
    return rows


def numbered(rows: DataFrame) -> tuple[DataFrame, int]:
    """Return rows and how many, with `turn` 0, 1, …: by time, but in each queue by offset."""
    so_far = Window.partitionBy("queue", "partition").orderBy("offset")
    timed = rows.withColumn("due", F.max("event_time").over(so_far))
    placed = timed.orderBy("due", "queue", "partition", "offset").select(
        "*",
        F.spark_partition_id().alias("part"),
        F.monotonically_increasing_id().bitwiseAND(_IN_PARTITION).alias("place"),
    )
    placed = placed.persist()  # numbered once: the counts below must be of these very rows
    first, total = {}, 0
    for part, count in sorted(placed.groupBy("part").count().collect()):
        first[part] = total
        total += count
    starts = F.create_map(*(F.lit(x) for pair in first.items() for x in pair))
    turn = F.col("place") + starts[F.col("part")] if first else F.lit(0)
    return placed.withColumn("turn", turn), total


@pipeline.job
@click.argument("directory")
@click.option("--match", default=".*", help="queues to replay, a regex for their whole names.")
@click.option("--start", type=_WHEN, metavar="TIME", help="from this event time on (UTC).")
@click.option("--end", type=_WHEN, metavar="TIME", help="before this event time.")
@click.option("--start-offset", type=int, help="from this offset on.")
@click.option("--end-offset", type=int, help="before this offset.")
@click.option(
    "--to",
    "rule",
    default="queue",
    metavar="SQL",
    help="name of the queue to write to, as \"concat('again-', queue)\".",
)
@click.option("--batch", type=int, help="the archive as it was with this micro-batch.")
@click.option("--rate", type=click.IntRange(1), metavar="ROWS", help="at most so many a second.")
@click.option("--from-slice", type=click.IntRange(0), default=0, help="go on where it stopped.")
def replay(
    directory: str, match: str, rule: str, rate: int | None, from_slice: int, **given: Any
) -> None:
    """Write what archive.py keeps in DIRECTORY to queues again."""
    options: dict[str, str] = given["options"]
    spark = pipeline.session("replay", given, table.SETTINGS)
    rows = chosen(
        table.Table(spark, directory).read(given["batch"]),
        match,
        (given["start"], given["end"]),
        (given["start_offset"], given["end_offset"]),
    )
    headers = pipeline.with_header(pipeline.TIMESTAMP, F.unix_millis("event_time"))
    named = rows.withColumns({"topic": F.expr(rule).cast("string"), "headers": headers})
    records, total = numbered(named)
    size = rate * _SLICE_SECONDS if rate else max(1, total)
    slices = -(-total // size)
    for number in range(from_slice, slices):
        started = time.monotonic()
        part = records.where(F.col("turn").between(number * size, (number + 1) * size - 1))
        ordered = part.repartition("topic").sortWithinPartitions("turn")
        queues = pipeline.write(ordered, given["server"], options)
        written = min(size, total - number * size)
        left = total - number * size - written
        rows_of = pipeline.counted(written, "row")
        print(
            f"slice {number}: {rows_of}, {pipeline.counted(queues, 'queue')}, {left:,} to go",
            flush=True,
        )
        if rate and left:
            time.sleep(max(0.0, written / rate - (time.monotonic() - started)))


if __name__ == "__main__":
    replay()
