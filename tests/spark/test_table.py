"""The table of archive and aggregate: each batch once, merged, expired, gone back to, refused."""

from pathlib import Path
from typing import Any

import click
import pytest

from tests.harness import Served
from tests.spark import jobs

BY = ("date",)


def rows(spark: Any, start: int) -> Any:
    numbers = spark.range(start, start + 10, numPartitions=1)
    return numbers.selectExpr("id AS number", "DATE'2026-11-01' AS date")


def table_in(spark: Any, directory: Path) -> Any:
    return jobs.module("table").Table(spark, str(directory))


def numbers(frame: Any) -> list[int]:
    return sorted(row.number for row in frame.collect())


def refusal(spark: Any, directory: Path, frame: Any, job: str = "archive") -> str:
    with pytest.raises(click.ClickException) as refused:
        table_in(spark, directory).open(job, frame, BY)
    return refused.value.message


def test_a_batch_is_there_once_also_when_its_files_are_merged_and_expired(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.module("table"), "_EXPIRE_EACH", 4)
    directory = tmp_path / "table"
    kept = table_in(spark, directory)
    kept.open("archive", rows(spark, 0), BY, merge=3, keep="0 hours")
    for batch in (0, 1, 1, 2, 0):  # a job that is killed gives a batch again
        kept.add(rows(spark, batch * 10), batch)
    assert numbers(kept.read()) == list(range(30))
    assert len(kept.read().inputFiles()) == 1
    assert len(list(directory.glob("date=*/*.parquet"))) == 4
    assert numbers(kept.read(1)) == list(range(20))
    (directory / "_checkpoint").mkdir()
    again = table_in(spark, directory)
    again.open("archive", rows(spark, 0), BY, merge=3, keep="0 hours")
    again.add(rows(spark, 20), 2)
    again.add(rows(spark, 30), 3)
    assert numbers(again.read()) == list(range(40))
    assert len(list(directory.glob("date=*/*.parquet"))) == 2
    again.add(rows(spark, 10), 1)
    assert numbers(again.read()) == list(range(40))
    from deltalake import DeltaTable  # a reader that is not Spark

    read = DeltaTable(str(directory)).to_pyarrow_table()
    assert sorted(read["number"].to_pylist()) == list(range(40))


def test_a_directory_that_is_not_the_jobs_is_refused(spark: Any, tmp_path: Path) -> None:
    directory = tmp_path / "table"
    kept = table_in(spark, directory)
    with pytest.raises(click.ClickException, match="no table in"):
        kept.read()
    kept.open("archive", rows(spark, 0), BY)
    kept.add(rows(spark, 0), 0)
    assert refusal(spark, directory, rows(spark, 0)).endswith(
        "has rows but no _checkpoint: what they hold is not known. Choose another directory"
    )
    (directory / "_checkpoint").mkdir()
    said = refusal(spark, directory, rows(spark, 0), "aggregate")
    assert said.endswith("/table is a table of archive, not of aggregate")
    with pytest.raises(click.ClickException, match="no version of batch 7: it may be expired"):
        table_in(spark, directory).read(7)
    with pytest.raises(click.ClickException, match="has a table: choose another"):
        table_in(spark, directory).refuse()
    (tmp_path / "plain" / "_spark_metadata").mkdir(parents=True)
    assert "has plain Parquet files" in refusal(spark, tmp_path / "plain", rows(spark, 0))
    rows(spark, 0).write.format("delta").save(str(tmp_path / "theirs"))
    said = refusal(spark, tmp_path / "theirs", rows(spark, 0))
    assert said.endswith("is a table of another writer, not of archive")


def test_a_column_may_come_but_not_change_its_type(spark: Any, tmp_path: Path) -> None:
    kept = table_in(spark, tmp_path / "table")
    kept.open("archive", rows(spark, 0), BY)
    kept.add(rows(spark, 0), 0)
    kept.add(rows(spark, 10).selectExpr("*", "'new' AS more"), 1)
    assert kept.read().where("more IS NULL").count() == 10
    with pytest.raises(Exception, match="Failed to merge fields 'number' and 'number'"):
        kept.add(rows(spark, 20).selectExpr("current_date() AS number", "date"), 2)
    assert kept.read().count() == 20


def test_plain_parquet_goes_back_as_well(spark: Any, server: Served, tmp_path: Path) -> None:
    records = [(f"plain-{i % 3}", b"k", b"%d" % i, None) for i in range(30)]
    jobs.write(server.address, records)
    directory = tmp_path / "files"
    asked = (directory, "--subscribe-pattern", "plain-.", "--parquet")
    said = jobs.run("archive", *asked, server=server.address)
    assert said == ["batch 0: 30 rows, 3 queues, lag 0"]
    assert jobs.run("archive", *asked, server=server.address) == []
    said = jobs.run("replay", directory, "--to", "concat('back-', queue)", server=server.address)
    assert said == ["slice 0: 30 rows, 3 queues, 0 to go"]
    queues = jobs.read(server.address, [f"back-plain-{i}" for i in range(3)])
    values = [int(message.value()) for found in queues.values() for message in found]
    assert sorted(values) == list(range(30))
