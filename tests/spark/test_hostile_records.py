"""The jobs over records that are not as their writers should make them."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from kproxy.metadata.routing import read_template
from tests.spark import jobs

_ROW = "key binary, headers array<struct<key: string, value: binary>>, timestamp timestamp"


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_time_that_is_none_counts_as_absent(spark: Any) -> None:
    said = [b"%d" % ms for ms in (-(1 << 63), -62_135_596_800_001, 253_402_300_800_000, 1 << 62)]
    said += [b"never", b"", b"9" * 30]
    rows = [(None, [("timestamp", ms)], None) for ms in (*said, b"253402300799999", b"-1")]
    found = spark.createDataFrame(rows, _ROW).select(
        jobs.module("pipeline").event_time().cast("string").alias("at")
    )
    assert [row.at for row in found.collect()] == [
        *[None] * len(said), "9999-12-31 23:59:59.999", "1969-12-31 23:59:59.999",
    ]  # fmt: skip


def test_names_behind_an_entrance_are_those_that_kproxy_makes(spark: Any) -> None:
    keys = [b"a", b"a\n", b"a\r\n", "a\u2028".encode(), b"\na", b"a b", b"\xff", b"", b"x" * 247]
    named = spark.createDataFrame([(key, None, None) for key in keys], _ROW).select(
        jobs.module("entrance").name_of("of-{key}").alias("name")
    )
    template = read_template("of-{key}")
    expected = [template.fill(key, {})[0] or None for key in keys]
    assert [row.name for row in named.collect()] == expected


def test_times_of_a_replay_are_utc_wherever_it_runs(spark: Any, tokyo: None) -> None:
    rows = spark.sql(
        "SELECT 'q' AS queue, id AS offset, timestamp_seconds(id * 3600) AS event_time"
        " FROM range(24)"
    )
    times = datetime(1970, 1, 1, 5), datetime(1970, 1, 1, 8)
    found = jobs.module("replay").chosen(rows, ".*", times, (None, None))
    assert [row.offset for row in found.select("offset").collect()] == [5, 6, 7]
