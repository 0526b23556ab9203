"""Debezium's connector for PostgreSQL in a distributed worker of Kafka Connect."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.transactions.calls import COMMITTED, values
from tests.examples.postgres import USER, Postgres, postgres
from tests.frameworks.connect import ConnectWorker
from tests.harness import ROOT, eventually, free_port, need
from tests.workers import Site

FLAGS = ("--group-initial-rebalance-delay-ms", "200", "--compaction-check-ms", "500")
LIBRARIES = ROOT / ".tools" / "debezium-libs"
ROWS = 100


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def database(port: int) -> Iterator[Postgres]:
    """Yield a PostgreSQL that tells what changes, by TCP."""
    need(LIBRARIES.exists(), "Debezium's libraries: make works-with")
    with postgres(port, "wal_level=logical") as running:
        yield running


def test_changes_of_a_table_are_records(
    site: Site, queue: str, database: Postgres, port: int, tmp_path: Path
) -> None:
    """The worker is killed amid them: each row is there, in its order."""
    name = database.create("CREATE TABLE account (id int PRIMARY KEY, note text);")
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "debezium").symlink_to(LIBRARIES)
    topic = f"{queue}.public.account"

    def worker(number: int) -> ConnectWorker:
        directory = tmp_path / f"connect-{number}"
        return ConnectWorker(site.address, queue, directory, plugin_path=plugins)

    def insert(first: int) -> None:
        for row in range(first, first + ROWS):
            with database.connect(name, autocommit=True) as connection:
                connection.execute("INSERT INTO account VALUES (%s, 'n')", [row])

    first = worker(1)
    try:
        first.wait_ready().configure("source", {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput", "database.hostname": "127.0.0.1", "database.port": port,
            "database.user": USER, "database.password": "none", "database.dbname": name,
            "topic.prefix": queue, "slot.name": f"slot_{name}", "publication.name": f"p_{name}",
            "table.include.list": "public.account", "tasks.max": 1,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": False, "key.converter.schemas.enable": False,
        })  # fmt: skip
        eventually(lambda: first.state("source") == "RUNNING", 90)
        writer = threading.Thread(target=insert, args=(0,))
        writer.start()
        eventually(lambda: len(rows(site, topic)) > ROWS // 4, 90)
        first.kill()
        writer.join()
    finally:
        first.kill()
    second = worker(2)
    try:
        second.wait_ready()
        insert(ROWS)
        eventually(lambda: set(rows(site, topic)) == set(range(2 * ROWS)), 120)
    finally:
        second.kill()
    found = rows(site, topic)
    assert list(dict.fromkeys(found)) == list(range(2 * ROWS)), "in order, some told twice"


def rows(site: Site, topic: str) -> list[int]:
    """Return the ids of rows that records tell of."""
    return [json.loads(value)["after"]["id"] for value in values(site.address, topic, COMMITTED)]
