"""kafka-configs of users, clients and ips: it prints of kproxy what it prints of a Kafka."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import run_java, served
from tests.real_kafka import Kafka

TOOL = "kafka.admin.ConfigCommand"
FORMS = (
    "--alter --add-config producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=200"
    " --entity-type users --entity-name user1 --entity-type clients --entity-name clientA",
    "--alter --add-config producer_byte_rate=1024 --entity-type users --entity-name user1",
    "--alter --add-config request_percentage=12.5 --entity-type clients --entity-name clientA",
    "--alter --add-config consumer_byte_rate=99 --entity-type users --entity-name user1"
    " --entity-type clients --entity-default",
    "--alter --add-config controller_mutation_rate=10 --entity-type users --entity-default",
    "--alter --add-config producer_byte_rate=77 --entity-type clients --entity-default",
    "--alter --add-config connection_creation_rate=100 --entity-type ips --entity-name 10.0.0.1",
    "--alter --add-config connection_creation_rate=300 --entity-type ips --entity-default",
    "--alter --add-config consumer_byte_rate=5 --user user2",
    "--describe --entity-type users --entity-name user1 --entity-type clients --entity-name"
    " clientA",
    "--describe --entity-type users --entity-name user1",
    "--describe --entity-type users",
    "--describe --entity-type clients",
    "--describe --entity-type users --entity-type clients",
    "--describe --entity-type ips",
    "--describe --ip 10.0.0.1",
    "--describe --client-defaults",
    "--alter --delete-config consumer_byte_rate --entity-type users --entity-name user1"
    " --entity-type clients --entity-default",
    "--alter --delete-config no_such --entity-type users --entity-name user1",
    "--alter --delete-config connection_creation_rate --entity-type ips --entity-default",
    "--alter --delete-config controller_mutation_rate --entity-type users --entity-default",
    "--alter --delete-config producer_byte_rate --entity-type clients --entity-default",
    "--describe --entity-type users --entity-type clients",
    "--describe --entity-type ips",
)


def told(address: str) -> Iterator[tuple[bool, list[str]]]:
    """Whether each form succeeds, and the lines that it prints."""
    for form in FORMS:
        done = run_java(TOOL, "--bootstrap-server", address, *form.split())
        lines = [re.sub(r"\s+", " ", line).strip() for line in done.stdout.splitlines()]
        yield done.returncode == 0, sorted(lines)


def test_kafka_configs(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    kafka = Kafka(tmp_path_factory.mktemp("kafka"))  # one without quotas of others
    try:
        theirs = list(told(kafka.wait_ready().address))
    finally:
        kafka.stop()
    with served(tmp_path) as server:
        ours = list(told(server.address))
    for form, one, other in zip(FORMS, theirs, ours, strict=True):
        assert other == one, f"{form}: a real Kafka prints {one}, kproxy {other}"
