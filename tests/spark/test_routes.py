"""The jobs of spark_examples/ that write through an entrance, and those that read one."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from tests.clients.routes.calls import arrived, check, entrance, taking
from tests.spark import jobs
from tests.workers import Site

BEGAN_MS = 1_700_000_000_000
ROWS, USERS = 600, 20


def test_ingest_archive_and_aggregate(spark: Any, site: Site, tmp_path: Path) -> None:
    """Through an entrance each row is in its user's queue, in order; read from there as well."""
    (tmp_path / "in").mkdir()
    lines = [
        json.dumps({"id": f"u{n % USERS}", "at": BEGAN_MS + n * 1000, "n": n}) for n in range(ROWS)
    ]
    (tmp_path / "in" / "rows.json").write_text("\n".join(lines) + "\n")
    given = ("--entrance", "all", "--queue-prefix", "of-", "--timestamp", "at")
    said = jobs.run(
        "ingest", tmp_path / "in", *given, "--checkpoint", tmp_path / "c", server=site.address
    )
    assert said == ["batch 0: 600 rows, 1 queue"]
    with pytest.raises(click.ClickException, match=r"to of-{key}: not to with-{key}"):
        jobs.run(
            "ingest", tmp_path / "in", "--entrance", "all", "--queue-prefix", "with-",
            "--checkpoint", tmp_path / "d", server=site.address,
        )  # fmt: skip
    names = [f"of-u{user}" for user in range(USERS)]
    arrived(site.address, dict.fromkeys(names, ROWS // USERS))
    queues = jobs.read(site.address, names)
    for user, name in enumerate(names):
        rows = [json.loads(message.value() or b"") for message in queues[name]]
        assert [row["n"] for row in rows] == list(range(user, ROWS, USERS))
        assert jobs.headers(queues[name][0])["timestamp"] == b"%d" % (BEGAN_MS + user * 1000)

    jobs.write(site.address, [("all", b"not a name", b"{}", BEGAN_MS)])
    said = jobs.run("archive", tmp_path / "archive", "--entrance", "all", server=site.address)
    assert said == ["batch 0: 601 rows, 1 queue, lag 0"]
    kept = spark.read.parquet(str(tmp_path / "archive")).orderBy("queue", "offset").collect()
    found: dict[str, list[Any]] = {}
    for row in kept:
        found.setdefault(row.queue, []).append(row)
    assert [bytes(row.key) for row in found.pop("all.unroutable")] == [b"not a name"]
    assert set(found) == set(names)
    for user, name in enumerate(names):
        values = [json.loads(row.value)["n"] for row in found[name]]
        assert values == list(range(user, ROWS, USERS))
    assert {row.offset for row in kept} == set(range(ROWS + 1))

    jobs.run(
        "aggregate", tmp_path / "table", "--entrance", "all", "--summary", "counted",
        "--watermark", "0 seconds", server=site.address,
    )  # fmt: skip
    counted: Counter[tuple[str, int]] = Counter()
    for n in range(ROWS):
        at = BEGAN_MS + n * 1000
        counted[f"of-u{n % USERS}", at - at % 60_000] += 1
    counted["all.unroutable", BEGAN_MS - BEGAN_MS % 60_000] += 1
    over = max(start for _, start in counted)  # no watermark has passed the last one
    table = spark.read.parquet(str(tmp_path / "table")).collect()
    told = {(r.queue, round(r.start.timestamp() * 1000)): r.records for r in table}
    assert told == {key: count for key, count in counted.items() if key[1] < over}


def test_route_by_a_rule(spark: Any, site: Site, tmp_path: Path) -> None:
    """Out of a queue through an entrance; a filter of the entrance is a queue as any other."""
    jobs.write(site.address, [("busy", b"k%d" % (n % 7), b"%d" % n, None) for n in range(700)])
    entrance(site.address, "rule-in", "rule-{header:to}")
    taking(site.address, "rule-3", "rule-in", "header:to:3")
    said = jobs.run(
        "route", "--from", site.address, "--subscribe", "busy", "--to", "value % 5",
        "--entrance", "rule-in", "--queue-prefix", "rule-", "--checkpoint", tmp_path / "c",
        server=site.address,
    )  # fmt: skip
    assert said == ["batch 0: 700 rows, 1 queue, lag 0"]
    by_rule = {f"rule-{rest}": [b"%d" % n for n in range(rest, 700, 5)] for rest in (0, 1, 2, 4)}
    check(site.address, by_rule)
    arrived(site.address, {"rule-3": 280})  # by the filter, and by the template
    third = [
        int(message.value() or b"") for message in jobs.read(site.address, ["rule-3"])["rule-3"]
    ]
    assert sorted(third) == sorted(2 * list(range(3, 700, 5)))
