"""The jobs of spark_examples/, end to end, checked record by record."""

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from PIL import Image

from tests.harness import Served, served
from tests.real_kafka import Kafka
from tests.spark import jobs
from tests.workers import Site

BEGAN_MS = 1_700_000_000_000


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)


def test_ingest_json(spark: Any, site: Site, tmp_path: Path) -> None:
    ingest(spark, site.address, tmp_path, "json")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_ingest_other_files(spark: Any, server: Served, tmp_path: Path, form: str) -> None:
    ingest(spark, server.address, tmp_path, form)


def ingest(spark: Any, server: str, tmp_path: Path, form: str) -> None:
    """Ingest half of the files, then the other: each is taken once."""
    rows = [(i % 20, f"2026-11-0{1 + i % 9}T10:00:00.{i:03d}Z", f"k{i}", i) for i in range(200)]
    frame = spark.createDataFrame(rows, "id long, at string, kind string, n long")
    source = tmp_path / "in"
    options = {"header": "true"} if form == "csv" else {}
    prefix = f"{form}-"
    arguments = [
        source, "--format", form, "--timestamp", "at", "--header", "kind",
        "--queue-prefix", prefix, "--checkpoint", tmp_path / "checkpoint",
    ]  # fmt: skip
    frame.where("n < 100").coalesce(1).write.format(form).options(**options).save(str(source))
    said = jobs.run("ingest", *arguments, server=server)
    assert said == ["batch 0: 100 rows, 20 queues"]
    more = frame.where("n >= 100").coalesce(1).write.format(form).options(**options)
    more.mode("append").save(str(source))
    said = jobs.run("ingest", *arguments, server=server)
    assert said == ["batch 1: 100 rows, 20 queues"]
    queues = jobs.read(server, [f"{prefix}{key}" for key in range(20)])
    for key in range(20):
        found = queues[f"{prefix}{key}"]
        mine = [row for row in rows if row[0] == key]
        assert [message.key() for message in found] == [b"%d" % key] * 10
        for message, (_, moment, kind, n) in zip(found, mine, strict=True):
            value = json.loads(message.value())
            assert (value["id"], value["n"], value["kind"]) == (key, n, kind)
            ms = round(datetime.fromisoformat(moment).timestamp() * 1000)
            assert jobs.headers(message) == {"kind": kind.encode(), "timestamp": b"%d" % ms}


def test_ingest_a_rate(spark: Any, server: Served, tmp_path: Path) -> None:
    said = jobs.run(
        "ingest", "--rate", 500, "--queues", 7, "--seconds", 8, "--queue-prefix", "rate-",
        "--checkpoint", tmp_path / "checkpoint", server=server.address,
    )  # fmt: skip
    assert said
    assert said[-1].endswith(", 7 queues")
    queues = jobs.read(server.address, [f"rate-{key}" for key in range(7)])
    found = [json.loads(message.value()) for queue in queues.values() for message in queue]
    assert sorted(row["n"] for row in found) == list(range(len(found)))


def test_archive_replay_and_lag(spark: Any, site: Site, tmp_path: Path) -> None:
    server = site.address
    day = 86_400_000
    records = [
        (f"arc-{i % 10}", b"%d" % (i % 3), b"v%d" % i, BEGAN_MS + i * day // 200)
        for i in range(400)
    ]
    jobs.write(server, records[:300])
    directory = tmp_path / "archive"
    arguments = (
        directory, "--subscribe-pattern", "arc-.*", "--batch-records", 100, "--buckets", 2,
    )  # fmt: skip
    said = jobs.run("archive", *arguments, "--files-max", 2, server=server)
    assert said[-1].endswith("lag 0")
    jobs.write(server, records[300:])
    said = jobs.run("archive", *arguments, "--files-max", 2, server=server)
    assert said[-1].endswith("lag 0")
    check_archive(spark, directory, records)
    files = Counter(path.rpartition("/")[0] for path in archived(spark, directory).inputFiles())
    assert max(files.values()) < 3

    began = time.time()
    jobs.run(
        "replay", directory, "--match", "arc-[0-4]", "--to", "concat('again-', queue)",
        "--start-offset", 5, "--end", "2023-11-15T22:13:20", "--rate", 10, server=server,
    )  # fmt: skip
    before = datetime(2023, 11, 15, 22, 13, 20)
    queues = jobs.read(server, [f"again-arc-{key}" for key in range(5)])
    for key in range(5):
        mine = [record for record in records if record[0] == f"arc-{key}"]
        kept = [r for offset, r in enumerate(mine) if offset >= 5 and at(r[3]) < before]
        found = queues[f"again-arc-{key}"]
        assert [(m.key(), m.value()) for m in found] == [(r[1], r[2]) for r in kept]
        assert [jobs.headers(m)["timestamp"] for m in found] == [b"%d" % r[3] for r in kept]
    written = sorted(m.timestamp()[1] / 1000 for found in queues.values() for m in found)
    assert len(written) > 50
    assert all(written[i] - began > i // 50 * 5 for i in range(len(written)))  # 50 every 5 s

    check_lag(spark, server, tmp_path / "lag", records)


def archived(spark: Any, directory: Path) -> Any:
    return spark.read.format("delta").load(str(directory))


def check_archive(spark: Any, directory: Path, records: list[Any]) -> None:
    rows = archived(spark, directory).orderBy("queue", "offset").collect()
    expected = []
    for key in sorted({record[0] for record in records}):
        mine = [record for record in records if record[0] == key]
        expected += [(key, i, *record[1:]) for i, record in enumerate(mine)]
    assert [
        (r.queue, r.offset, bytes(r.key), bytes(r.value), int(bytes(r.headers[0].value)))
        for r in rows
    ] == expected
    assert {str(row.date) for row in rows} == {str(at(r[3]).date()) for r in records}


def check_lag(spark: Any, server: str, directory: Path, records: list[Any]) -> None:
    consumer = Consumer({
        "bootstrap.servers": server, "group.id": "behind", "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe(["arc-3", "arc-4"])
    while (message := consumer.poll(30)) and not (
        message.topic() == "arc-3" and message.offset() == 11
    ):
        pass
    assert message is not None
    ends = [TopicPartition("arc-3", 0, 12), TopicPartition("arc-4", 0, 40)]
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()
    said = jobs.run("lag_report", directory, "--group", "behind", server=server)
    assert said[-1].startswith("lag 28, drawn in ")
    rows = spark.read.parquet(str(directory / "lag.parquet")).orderBy("queue").collect()
    assert [(r.group, r.queue, r.partition, r.end_offset, r.committed, r.lag) for r in rows] == [
        ("behind", "arc-3", 0, 40, 12, 28),
        ("behind", "arc-4", 0, 40, 40, 0),
    ]
    mine = [record for record in records if record[0] == "arc-3"]
    assert rows[0].oldest_unread.astimezone(UTC).replace(tzinfo=None) == at(mine[12][3])
    assert rows[1].oldest_unread is None
    with Image.open(directory / "lag.png") as chart:
        assert chart.width > 1000
        assert len(chart.convert("RGB").getcolors(1 << 20) or ()) > 10


def test_an_archive_that_is_killed_has_every_record_once(spark: Any, tmp_path: Path) -> None:
    records = [
        (f"arc-{i % 10}", b"%d" % (i % 3), b"v%d" % i, BEGAN_MS + i * 100_000) for i in range(3000)
    ]
    directory = tmp_path / "archive"
    arguments = (
        directory,
        "--subscribe-pattern",
        "arc-.*",
        "--batch-records",
        100,
        "--files-max",
        2,
    )
    with served(tmp_path / "data") as server:
        jobs.write(server.address, records)
        for seconds in (10, 14):
            assert jobs.kill_after(seconds, "archive", *arguments, server=server.address)
        jobs.run("archive", *arguments, server=server.address)
    check_archive(spark, directory, records)


def test_an_archive_as_a_service(spark: Any, site: Site, tmp_path: Path) -> None:
    """It takes what comes, queues that are new as well, until it is asked to stop."""
    records = [
        (f"on-{i // 100}-{i % 5}", b"k", b"v%d" % i, BEGAN_MS + i * 1000) for i in range(300)
    ]
    directory = tmp_path / "archive"
    arguments = (directory, "--subscribe-pattern", "on-.*")
    jobs.write(site.address, records[:100])
    job = jobs.start("archive", *arguments, "--every", "1 second", server=site.address)
    assert job.stdout
    try:
        for start in (0, 100, 200):
            if start:
                jobs.write(site.address, records[start : start + 100])
            rows = 0
            while rows < 100:
                line = job.stdout.readline()
                assert line.startswith("batch "), line
                rows += int(line.split()[2])
            assert rows == 100
    finally:
        job.terminate()
        out, err = job.communicate(timeout=60)
    assert out == ""
    assert err.endswith("stopped; the same command goes on from here\n")
    assert job.returncode == 0
    check_archive(spark, directory, records)
    assert jobs.run("archive", *arguments, server=site.address) == []


def test_an_aggregation_that_is_killed_counts_right(spark: Any, tmp_path: Path) -> None:
    records = [(f"agg-{i % 5}", b"k", b"x" * (i % 7), BEGAN_MS + i * 1000) for i in range(1200)]
    expected: Counter[tuple[str, int]] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    for queue, _, value, ms in records:
        expected[queue, ms - ms % 60_000] += 1
        sizes[queue, ms - ms % 60_000] += len(value)
    over = max(ms - ms % 60_000 for _, _, _, ms in records)  # no watermark has passed the last one
    wanted = sorted((*key, count, sizes[key]) for key, count in expected.items() if key[1] < over)
    with served(tmp_path / "data") as server:
        jobs.write(server.address, records)

        arguments = (
            tmp_path / "table", "--subscribe-pattern", "agg-.*", "--summary", "sums",
            "--watermark", "0 seconds", "--option", "maxOffsetsPerTrigger=150",
        )  # fmt: skip
        for seconds in (11, 14):
            jobs.kill_after(seconds, "aggregate", *arguments, server=server.address)
        jobs.run("aggregate", *arguments, server=server.address)
        table = archived(spark, tmp_path / "table").collect()
        rows = [(r.queue, round(r.start.timestamp() * 1000), r.records, r.bytes) for r in table]
        assert sorted(rows) == wanted
        told = []
        for message in jobs.read(server.address, ["sums"])["sums"]:
            row = json.loads(message.value())
            start = round(datetime.fromisoformat(row["start"]).timestamp() * 1000)
            told.append((row["queue"], start, row["records"], row["bytes"]))
        assert sorted(told) == wanted


def test_route_out_and_back(spark: Any, kafka: Kafka, site: Site, tmp_path: Path) -> None:
    busy, back = f"busy-{site.__class__.__name__}", f"back-{site.__class__.__name__}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for future in admin.create_topics([NewTopic(busy, 3, 1), NewTopic(back, 3, 1)]).values():
        future.result(30)
    records = [(busy, b"c%d" % (i % 40), b"%d" % i, None) for i in range(2000)]
    jobs.write(kafka.address, records)
    jobs.run(
        "route", "--from", kafka.address, "--subscribe", busy, "--to", "concat('cust-', key)",
        "--where", "value % 10 != 0", "--checkpoint", tmp_path / "out", server=site.address,
    )  # fmt: skip
    kept = [(key, value) for _, key, value, _ in records if int(value) % 10]
    queues = jobs.read(site.address, [f"cust-c{n}" for n in range(40) if n % 10])
    for number in range(40):
        found = queues.get(f"cust-c{number}", [])
        mine = [(key, value) for key, value in kept if key == b"c%d" % number]
        assert [(m.key(), m.value()) for m in found] == mine
        assert all(jobs.headers(m)["origin"].startswith(busy.encode() + b"/") for m in found)
    jobs.run(
        "route", "--from", site.address, "--subscribe-pattern", "cust-.*", "--to", f"'{back}'",
        "--checkpoint", tmp_path / "back", server=kafka.address,
    )  # fmt: skip
    returned = jobs.read(kafka.address, [back], partitions=3)[back]
    assert sorted((m.key(), m.value()) for m in returned) == sorted(kept)
    for number in range(40):
        values = [int(m.value()) for m in returned if m.key() == b"c%d" % number]
        assert values == sorted(values)


@pytest.mark.long
def test_fifty_thousand_queues_in_one_run(spark: Any, server: Served, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "rows.json").open("w") as file:
        for i in range(50_000):
            file.write(f'{{"id": {i}, "n": {i}}}\n')
    said = jobs.run(
        "ingest", tmp_path / "in", "--queue-prefix", "many-",
        "--checkpoint", tmp_path / "checkpoint", server=server.address,
    )  # fmt: skip
    assert said == ["batch 0: 50,000 rows, 50,000 queues"]
    topics = AdminClient({"bootstrap.servers": server.address}).list_topics(timeout=60).topics
    assert {f"many-{i}" for i in range(50_000)} <= set(topics)
    queues = jobs.read(server.address, [f"many-{i}" for i in range(0, 50_000, 100)])
    for i in range(0, 50_000, 100):
        (message,) = queues[f"many-{i}"]
        assert json.loads(message.value()) == {"id": i, "n": i}


def test_mistakes_are_one_line(server: Served, tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"
    assert jobs.fail("archive", tmp_path / "a", server=nobody) == (
        f"Error: no server at {nobody} (Connection refused): is kproxy running there?"
        " `make run` starts one"
    )
    assert "is not HOST:PORT" in jobs.fail("archive", tmp_path / "a", server="here")
    said = jobs.fail("archive", tmp_path / "a", "--jars", tmp_path, server=server.address)
    assert said.startswith(f"Error: no spark-sql-kafka-0-10 for Spark in {tmp_path}: `make")
    said = jobs.fail("route", "--from", nobody, "--to", "key", "--checkpoint", "c", code=2)
    assert said.endswith("Error: give --subscribe or --subscribe-pattern")
    said = jobs.fail("lag_report", tmp_path / "lag", "--group", "none", server=server.address)
    assert said.startswith("Error: no group 'none': there are ")
    said = jobs.fail("replay", tmp_path / "nothing", server=server.address)
    assert said.startswith("Error: no table in ")
    (tmp_path / "in").mkdir()
    rows = tmp_path / "in" / "rows.json"
    rows.write_text('{"id": 1}\n{"n": 2}\n')
    known = ("--checkpoint", tmp_path / "c", "--queue-prefix", "mistake-")
    said = jobs.fail("ingest", tmp_path / "in", *known, server=server.address)
    assert said.endswith('Error: [USER_RAISED_EXCEPTION] a row has no id: {"n":2}')
    assert "Traceback" not in said
    said = jobs.fail("ingest", tmp_path / "in", "--key", "idd", *known, server=server.address)
    assert said == "Error: no column 'idd': there are id, n"
    said = jobs.fail("ingest", rows, *known, server=server.address)
    assert said == f"Error: {rows} is a file: give its directory"
