"""Dead letters by cause: what share groups gave up, by group, queue and cause, and when.

As a table and as a chart (DIR/dead_letters.png). A dead letter says in its headers where it comes
from and why; its key and value are the record's where the group copies them.
"""

from pathlib import Path
from typing import Any

import click
import pipeline
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_SHOWN = 20
_CAUSE = "kproxy.dlq.cause"


def said(name: str) -> Column:
    """Return the value of a header, or null."""
    named = F.filter("headers", lambda one: one["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"].cast("string")


def letters(frame: DataFrame) -> DataFrame:
    """Return dead letters with what their headers say."""
    return frame.select(
        said("__dlq.errors.group").alias("group"),
        said("__dlq.errors.topic").alias("queue"),
        said("__dlq.errors.offset").cast("long").alias("offset"),
        said("__dlq.errors.delivery.count").cast("int").alias("deliveries"),
        F.coalesce(said(_CAUSE), said("__dlq.errors.message")).alias("cause"),
        "timestamp", "key", "value",
    )  # fmt: skip


def draw(path: Path, rows: list[Any]) -> None:
    """Draw the queues with most dead letters, as bars by cause."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    sums: dict[str, dict[str, int]] = {}
    for row in rows:
        of = sums.setdefault(f"{row.queue} · {row.group}", {})
        of[row.cause] = of.get(row.cause, 0) + row.letters
    worst = sorted(sums, key=lambda name: (-sum(sums[name].values()), name))[:_SHOWN]
    size = (9, 1.7 + 0.4 * max(2, len(worst)))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    left = [0] * len(worst)
    for number, cause in enumerate(sorted({row.cause for row in rows})):
        counts = [sums[name].get(cause, 0) for name in worst]
        colour = plt.colormaps["tab10"](number % 10)
        bars = axes.barh(worst, counts, left=left, color=colour, label=cause, height=0.7)
        axes.bar_label(
            bars, [f"{n:,}" if n else "" for n in counts], label_type="center", color="w"
        )
        left = [a + b for a, b in zip(left, counts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("dead letters")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    total = sum(sum(of.values()) for of in sums.values())
    title = f"{total:,} dead letters of {pipeline.counted(len(sums), 'queue')}, by cause"
    axes.set_title(title, loc="left", fontsize=13)
    figure.savefig(path, dpi=120)
    plt.close(figure)


@pipeline.job
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--queue", "queues", required=True, help="dead-letter queues, commas between.")
def dead_letters(directory: Path, queues: str, **given: Any) -> None:
    """Report the dead letters in queues by cause, into DIRECTORY."""
    spark = pipeline.session("dead_letters", given)
    frame = pipeline.source(spark.read, given["server"], {"subscribe": queues} | given["options"])
    by = letters(frame).groupBy("group", "queue", "cause")
    rows = by.agg(
        F.count("*").alias("letters"), F.max("deliveries").alias("deliveries"),
    ).orderBy(F.desc("letters"), "group", "queue", "cause")  # fmt: skip
    rows.show(_SHOWN, truncate=False)
    found = rows.collect()
    if not found:
        pipeline.fail(f"{queues} has no dead letters")
    directory.mkdir(parents=True, exist_ok=True)
    draw(directory / "dead_letters.png", found)
    print(f"drawn in {directory / 'dead_letters.png'}")


if __name__ == "__main__":
    dead_letters()
