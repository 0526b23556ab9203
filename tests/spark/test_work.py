"""The jobs of spark_examples/ over what entrances and share groups bring, record by record."""

import contextlib
import time
from pathlib import Path
from typing import Any

import click
import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
)
from PIL import Image

from tests.clients.calls import create
from tests.clients.routes.calls import end_of
from tests.clients.shares import members
from tests.harness import Served, eventually, served
from tests.spark import jobs

BEGAN_MS = 1_700_000_000_000


def entrance(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    config = {"kproxy.route.to": f"{name}-{{key}}", "kproxy.route.unroutable": f"{name}.none"}
    admin.create_topics([NewTopic(name, 1, config=config)])[name].result(30)


def kept(spark: Any, directory: Path) -> Any:
    return spark.read.format("delta").load(str(directory))


def test_records_have_what_is_known_of_their_keys(
    spark: Any, server: Served, tmp_path: Path
) -> None:
    entrance(server.address, "buy")
    admin = AdminClient({"bootstrap.servers": server.address})
    topic = NewTopic("known", 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])["known"].result(30)
    plan = b'{"name": "%s", "plan": "%s"}'

    def know(key: bytes, value: bytes) -> tuple[str, bytes, bytes, None]:
        return "known", key, value, None

    def buy(first: int) -> None:
        numbers = range(first, first + 9)
        jobs.write(server.address, [("buy", b"%d" % (n % 3), b"%d" % n, None) for n in numbers])

    jobs.write(
        server.address,
        [know(b"0", plan % (b"A", b"old")), know(b"0", plan % (b"A", b"free")),
         know(b"1", plan % (b"B", b"paid"))],
    )  # fmt: skip
    buy(0)
    asked = (tmp_path / "table", "--entrance", "buy", "--dimension", "known")
    jobs.run("customers", *asked, server=server.address)
    jobs.write(server.address, [know(b"0", plan % (b"A", b"paid"))])
    buy(9)
    said = jobs.run("customers", *asked, server=server.address)
    rows = kept(spark, tmp_path / "table").collect()
    plans = {0: "free", 1: "paid", 2: None}
    assert sorted((r.queue, int(bytes(r.value)), r.plan) for r in rows) == sorted(
        (f"buy-{n % 3}", n, "paid" if n >= 9 and n % 3 == 0 else plans[n % 3]) for n in range(18)
    )
    assert "|   A|paid|    3|" in said


def test_dead_letters_by_cause(spark: Any, server: Served, tmp_path: Path) -> None:
    create(server.address, "dlq.work", errors_deadletterqueue_group_enable="true")
    how = {"share_delivery_count_limit": 2, "errors_deadletterqueue_topic_name": "dlq.work"}
    members.configure(server.address, "crew", **how)
    jobs.write(server.address, [("work", b"", b"%d" % n, None) for n in range(10)])
    worker = members.member(server.address, "crew", "work")
    done = 0
    until = time.monotonic() + 120
    with contextlib.closing(worker):
        while done < 13:  # three come twice
            assert time.monotonic() < until
            for job in members.poll(worker):
                done += 1
                number = int(job.value())
                acts = {0: members.RELEASE, 1: members.REJECT}
                worker.acknowledge(job, acts.get(number % 4, members.ACCEPT))
    eventually(lambda: end_of(server.address, "dlq.work") == 6, 120)
    said = jobs.run("dead_letters", tmp_path / "out", "--queue", "dlq.work", server=server.address)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said if "crew" in line]
    assert sorted(cells) == [
        ["crew", "work", "delivery limit", "3", "2"], ["crew", "work", "rejected", "3", "1"],
    ]  # fmt: skip
    with Image.open(tmp_path / "out" / "dead_letters.png") as chart:
        assert chart.width > 1000


def test_late_records_are_told_by_queue(spark: Any, server: Served, tmp_path: Path) -> None:
    entrance(server.address, "sens")
    asked = (tmp_path / "table", "--entrance", "sens", "--watermark", "10 minutes")
    minutes = [0, 20, 5]  # the first two in one batch, where nothing is late yet
    for batch in ([0, 20, 5], [21, 10, 9, 3], [30, 12]):
        minutes += batch
        jobs.write(
            server.address,
            [("sens", b"%d" % (m % 2), b"%d" % m, BEGAN_MS + m * 60_000) for m in batch],
        )
        said = jobs.run("late", *asked, server=server.address)
    rows = kept(spark, tmp_path / "table").orderBy("offset").collect()
    assert [(int(bytes(r.value)), r.late_s) for r in rows] == [
        (0, None), (20, None), (5, None), (21, None), (10, None), (9, 60.0), (3, 420.0),
        (30, None), (12, None),
    ]  # fmt: skip
    assert "|sens-1|2   |420    |" in said


def test_a_checkpoint_of_another_cluster_is_refused(
    spark: Any, server: Served, tmp_path: Path
) -> None:
    records = [("where", b"", b"%d" % n, None) for n in range(10)]
    jobs.write(server.address, records)
    for name, asked in {
        "archive": (tmp_path / "a", "--subscribe-pattern", "where"),
        "route": ("--from", server.address, "--subscribe", "where", "--to", "'there'",
                  "--checkpoint", tmp_path / "r"),
    }.items():  # fmt: skip
        said = jobs.run(name, *asked, server=server.address)
        assert said == ["batch 0: 10 rows, 1 queue, lag 0"]
        with served(tmp_path / name) as other:
            jobs.write(other.address, records * 2)
            again = [other.address if word == server.address else word for word in asked]
            with pytest.raises(click.ClickException, match="is of the cluster ") as refused:
                jobs.run(name, *again, server=other.address)
            assert "\n" not in refused.value.message
        assert jobs.run(name, *asked, server=server.address) == []
