"""The jobs of spark_examples/ on other versions of Spark: all on the oldest and the newest.

`make spark-versions` makes a virtual environment of each.
"""

import json
from pathlib import Path

import pytest

from tests.clients.calls import create
from tests.harness import ROOT, Served, need, need_program
from tests.spark import jobs

OLDEST, NEWEST, WITHOUT_TABLES = "3.5.1", "4.1.1", "4.2.0"


def python_of(version: str) -> str:
    need_program("java")
    path = ROOT / f".venv-spark-{version}" / "bin" / "python"
    need(path.exists(), f"Spark {version}: make spark SPARK={version}")
    return str(path)


def run(version: str, name: str, *arguments: object, server: str | None = None) -> list[str]:
    """Return what a job prints, run to its end by another Spark."""
    process = jobs.start(name, *arguments, server=server, python=python_of(version))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    return out.splitlines()


def sample(directory: Path, start: int, rows: int) -> Path:
    directory.mkdir()
    with (directory / "rows.json").open("w") as file:
        for n in range(start, start + rows):
            row = {"id": f"{n % 5}", "n": n, "at": f"2026-11-0{1 + n % 2}T10:{n % 60:02}:00Z"}
            file.write(json.dumps(row) + "\n")
    return directory


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_each_job(server: Served, tmp_path: Path, version: str) -> None:
    at, prefix = server.address, f"of-{version}-"
    known = ("--timestamp", "at", "--queue-prefix", prefix, "--checkpoint")
    said = run(
        version, "ingest", sample(tmp_path / "in", 0, 100), *known, tmp_path / "c", server=at
    )
    assert said == ["batch 0: 100 rows, 5 queues"]
    more = sample(tmp_path / "more", 100, 50)
    entrance = ("--entrance", f"into-{version}")
    said = run(version, "ingest", more, *entrance, *known, tmp_path / "e", server=at)
    assert said == ["batch 0: 50 rows, 1 queue"]
    archive, pattern = tmp_path / "archive", ("--subscribe-pattern", f"{prefix}.*")
    said = run(version, "archive", archive, *pattern, server=at)
    assert said == ["batch 0: 150 rows, 5 queues, lag 0"]
    assert run(version, "archive", archive, *pattern, server=at) == []
    days = ["2026-11-01       5       75", "2026-11-02       5       75"]
    assert run(version, "without_spark", archive)[1:3] == days
    counts = ("--summary", f"sums-{version}", "--window", "1 day", "--watermark", "0 seconds")
    said = run(version, "aggregate", tmp_path / "counts", *pattern, *counts, server=at)
    assert said == ["batch 0: 150 rows, 5 queues, lag 0"]
    sums = [json.loads(m.value()) for m in jobs.read(at, [f"sums-{version}"])[f"sums-{version}"]]
    assert sum(row["records"] for row in sums) == 75  # the first day is over
    back = ("--to", "concat('again-', queue)", "--batch", 0)
    said = run(version, "replay", archive, *back, server=at)
    assert said == ["slice 0: 150 rows, 5 queues, 0 to go"]
    routed = ("--to", f"concat('routed-{version}-', get_json_object(value, '$.id'))")
    taken = ("--from", at, *pattern, *routed, "--checkpoint", tmp_path / "r")
    said = run(version, "route", *taken, server=at)
    assert said == ["batch 0: 150 rows, 5 queues, lag 0"]
    for name in (f"again-{prefix}3", f"routed-{version}-3"):
        found = [json.loads(message.value())["n"] for message in jobs.read(at, [name])[name]]
        assert found == list(range(3, 150, 5))
    create(at, f"idle-{version}")
    said = run(version, "first_read", f"{prefix}3", at)
    assert sum(f"|{prefix}3|" in line for line in said) == 20
    said = run(version, "lag_report", tmp_path / "lag", server=at)
    assert said[-1].startswith("lag ")


@pytest.mark.parametrize("version", ["4.0.1"])
def test_one_job_in_between(server: Served, tmp_path: Path, version: str) -> None:
    jobs.write(server.address, [(f"mid-{version}-{i % 3}", b"k", b"v", None) for i in range(60)])
    said = run(
        version, "archive", tmp_path / "a", "--subscribe-pattern", f"mid-{version}-.*",
        server=server.address,
    )  # fmt: skip
    assert said == ["batch 0: 60 rows, 3 queues, lag 0"]
    assert run(version, "many_queues", f"mid-{version}-", server.address)[-1] == "read in 2 tasks"


def test_a_spark_that_has_no_delta_lake_yet(server: Served, tmp_path: Path) -> None:
    version, at = WITHOUT_TABLES, server.address
    known = ("--timestamp", "at", "--queue-prefix", "plain-", "--checkpoint", tmp_path / "c")
    said = run(version, "ingest", sample(tmp_path / "in", 0, 100), *known, server=at)
    assert said == ["batch 0: 100 rows, 5 queues"]
    pattern = ("--subscribe-pattern", "plain-.*")
    said = run(version, "archive", tmp_path / "a", *pattern, "--parquet", server=at)
    assert said == ["batch 0: 100 rows, 5 queues, lag 0"]
    routed = ("--to", "concat('on-', topic)", "--checkpoint", tmp_path / "r")
    said = run(version, "route", "--from", at, *pattern, *routed, server=at)
    assert said == ["batch 0: 100 rows, 5 queues, lag 0"]
    assert len(jobs.read(at, ["on-plain-3"])["on-plain-3"]) == 20
    assert run(version, "many_queues", "plain-", at)[-1] == "read in 2 tasks"
    process = jobs.start("archive", tmp_path / "b", server=at, python=python_of(version))
    _, err = process.communicate(timeout=120)
    assert f"Error: no delta-spark for Spark {version} in " in err


def test_the_data_source_says_that_it_needs_spark_4(server: Served) -> None:
    process = jobs.start("many_queues", "user-", server.address, python=python_of(OLDEST))
    _, err = process.communicate(timeout=120)
    assert err.splitlines()[-1] == (
        f"ImportError: the data source kproxy needs Spark 4, and this is {OLDEST}:"
        " read with format('kafka') here"
    )
