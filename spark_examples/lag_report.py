"""The lag of groups: by queue the end, the committed offset, the lag, the oldest unread record.

As a table, as Parquet (DIR/lag.parquet) and as a chart (DIR/lag.png). Offsets come from the admin
API that every Kafka client has; the time of the oldest unread record is read from the queue itself.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import pipeline
import secured
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

_AT_ONCE = 5000
_SHOWN = 20
_SCHEMA = (
    "`group` string, queue string, partition int, end_offset long, committed long, lag long,"
    " oldest_unread timestamp"
)
Key = tuple[str, int]


class Behind(NamedTuple):
    """A group's place in a partition; `unread` is the first offset it has not read, if there is."""

    group: str
    queue: str
    partition: int
    end: int
    committed: int
    unread: int

    @property
    def lag(self) -> int:
        return self.end - self.unread


def committed(admin: AdminClient, group: str) -> dict[Key, int]:
    """Return the offsets that a group has committed."""
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    parts = asked[group].result(60).topic_partitions
    return {(part.topic, part.partition): part.offset for part in parts if part.offset >= 0}


def offsets(admin: AdminClient, keys: set[Key], spec: OffsetSpec) -> dict[Key, int]:
    """Return one end of each partition, without queues that are gone."""
    found: dict[Key, int] = {}
    left = iter(sorted(keys))
    while some := list(islice(left, _AT_ONCE)):
        asked = {TopicPartition(*key): spec for key in some}
        for part, answer in admin.list_offsets(asked, request_timeout=60).items():
            try:
                found[part.topic, part.partition] = answer.result(60).offset
            except KafkaException:
                continue
    return found


def places(admin: AdminClient, groups: list[str]) -> list[Behind]:
    """Return every partition that one of the groups has committed on."""
    told = {group: committed(admin, group) for group in groups}
    keys = {key for offsets in told.values() for key in offsets}
    ends = offsets(admin, keys, OffsetSpec.latest())
    starts = offsets(admin, keys, OffsetSpec.earliest())
    return [
        Behind(group, *key, ends[key], offset, min(max(offset, starts[key]), ends[key]))
        for group, parts in told.items()
        for key, offset in sorted(parts.items())
        if key in ends and key in starts
    ]


def _slices(wanted: dict[Key, set[int]]) -> Iterator[dict[str, dict[str, int]]]:
    """Yield partitions and one offset of each, as Spark's startingOffsets names them."""
    for turn in range(max(map(len, wanted.values()), default=0)):
        left = ((key, sorted(at)[turn]) for key, at in sorted(wanted.items()) if len(at) > turn)
        while some := list(islice(left, _AT_ONCE)):
            taken: dict[str, dict[str, int]] = {}
            for (queue, partition), offset in some:
                taken.setdefault(queue, {})[str(partition)] = offset
            yield taken


def unread_times(
    spark: SparkSession, server: str, options: dict[str, str], behind: list[Behind]
) -> dict[tuple[str, int, int], datetime]:
    """Return when the record at each first unread offset happened: read with Spark, one record
    each.
    """
    wanted: dict[Key, set[int]] = {}
    for place in behind:
        if place.lag:
            wanted.setdefault((place.queue, place.partition), set()).add(place.unread)
    times = {}
    for start in _slices(wanted):
        end = {
            queue: {part: at + 1 for part, at in parts.items()} for queue, parts in start.items()
        }
        asked = {
            "assign": json.dumps({queue: [int(part) for part in start[queue]] for queue in start}),
            "startingOffsets": json.dumps(start),
            "endingOffsets": json.dumps(end),
        }
        rows = pipeline.source(spark.read, server, options | asked)
        for row in rows.select(
            "topic", "partition", "offset", F.unix_millis(pipeline.event_time()).alias("at")
        ).collect():
            times[row.topic, row.partition, row.offset] = datetime.fromtimestamp(row.at / 1000, UTC)
    return times


def report(spark: SparkSession, behind: list[Behind], times: dict[Any, datetime]) -> DataFrame:
    """group, queue, partition, end_offset, committed, lag, oldest_unread: largest lag first."""
    rows = [
        (
            b.group,
            b.queue,
            b.partition,
            b.end,
            b.committed,
            b.lag,
            times.get((b.queue, b.partition, b.unread)),
        )
        for b in sorted(behind, key=lambda b: (-b.lag, b.group, b.queue, b.partition))
    ]
    return spark.createDataFrame(rows, _SCHEMA)


def by_queue(
    behind: list[Behind], times: dict[Any, datetime]
) -> dict[tuple[str, str], tuple[int, datetime | None]]:
    """Return lag and oldest unread record by group and queue."""
    sums: dict[tuple[str, str], tuple[int, datetime | None]] = {}
    for b in behind:
        lag, oldest = sums.get((b.group, b.queue), (0, None))
        at = times.get((b.queue, b.partition, b.unread))
        oldest = min((t for t in (oldest, at) if t is not None), default=None)
        sums[b.group, b.queue] = (lag + b.lag, oldest)
    return sums


def draw(path: Path, behind: list[Behind], times: dict[Any, datetime], now: datetime) -> None:
    """Draw the queues with the largest lag, as bars by group, and how old their oldest unread
    is.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sums = by_queue(behind, times)
    worst = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:_SHOWN]
    total = sum(lag for lag, _ in sums.values())
    late = sum(lag > 0 for lag, _ in sums.values())
    groups = sorted({group for group, _ in sums})
    colours = plt.colormaps["tab10"]
    figure, axes = plt.subplots(figsize=(10, 1.6 + 0.32 * max(3, len(worst))), layout="constrained")
    bars = axes.barh(
        [q if len(groups) == 1 else f"{q} · {group}" for (group, q), _ in worst],
        [lag for _, (lag, _) in worst],
        color=[colours(groups.index(group) % 10) for (group, _), _ in worst],
        height=0.72,
    )
    ages = [f" {lag:,}" + (f"   oldest {age(now - at)}" if at else "") for _, (lag, at) in worst]
    axes.bar_label(bars, labels=ages, fontsize=9, color="#444444")
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlim(left=0)
    axes.set_xlabel("records not read yet")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.set_title(
        f"{total:,} records unread: {late:,} of {len(sums):,} queues are behind",
        loc="left",
        fontsize=13,
    )
    figure.text(
        0.995,
        0.005,
        f"{', '.join(groups)[:80]} · {now:%Y-%m-%d %H:%M} UTC",
        ha="right",
        fontsize=8,
        color="#888888",
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def age(span: Any) -> str:
    """Return a duration as people say it."""
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit}"
    return f"{seconds} s"


@pipeline.job
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--group", "groups", multiple=True, help="a group; without it, every group.")
def lag_report(directory: Path, groups: tuple[str, ...], **given: Any) -> None:
    """Report how far groups are behind, into DIRECTORY."""
    options: dict[str, str] = given["options"]
    spark = pipeline.session("lag_report", given)
    admin = secured.admin(given["server"], options)
    there = sorted(group.group_id for group in admin.list_consumer_groups().result(60).valid)
    for group in groups:
        if group not in there:
            pipeline.fail(f"no group {group!r}: there are {', '.join(there[:20]) or 'none'}")
    behind = places(admin, sorted(groups) or there)
    if not behind:
        pipeline.fail("no group has committed an offset")
    times = unread_times(spark, given["server"], options, behind)
    table = report(spark, behind, times)
    table.show(_SHOWN, truncate=False)
    directory.mkdir(parents=True, exist_ok=True)
    table.coalesce(1).write.mode("overwrite").parquet(str(directory / "lag.parquet"))
    draw(directory / "lag.png", behind, times, datetime.now(UTC))
    print(f"lag {sum(b.lag for b in behind):,}, drawn in {directory / 'lag.png'}")


if __name__ == "__main__":
    lag_report()
