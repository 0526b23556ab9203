"""kafka-acls in the forms that Kafka documents: it prints of kproxy what it prints of a Kafka."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import run_java, served
from tests.real_kafka import Kafka

TOOL = "org.apache.kafka.tools.AclCommand"
AUTHORIZER = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
FORMS = (
    "--list",
    "--add --allow-principal User:Bob --allow-principal User:Alice --allow-host 198.51.100.0"
    " --allow-host 198.51.100.1 --operation Read --operation Write --topic Test-topic",
    "--add --allow-principal User:* --allow-host * --deny-principal User:BadBob --deny-host"
    " 198.51.100.3 --operation Read --topic Test-topic",
    "--add --allow-principal User:Peter --allow-host 198.51.200.1 --producer --topic *",
    "--add --allow-principal User:Jane --producer --topic Test- --resource-pattern-type prefixed",
    "--list --topic Test-topic",
    "--list --topic *",
    "--list --topic Test-topic --resource-pattern-type match",
    "--add --allow-principal User:Bob --consumer --topic Test-topic --group Group-1",
    "--add --allow-principal User:Tom --producer --transactional-id x --idempotent --topic t",
    "--add --allow-principal User:Tom --operation All --cluster",
    "--add --allow-principal User:Tom --operation CreateTokens --user-principal User:other",
    "--list --principal User:Tom",
    "--remove --allow-principal User:Bob --allow-principal User:Alice --allow-host 198.51.100.0"
    " --allow-host 198.51.100.1 --operation Read --operation Write --topic Test-topic --force",
    "--remove --allow-principal User:Jane --producer --topic Test- --resource-pattern-type"
    " Prefixed --force",
    "--list --group Group-1",
    "--remove --topic Test-topic --resource-pattern-type any --force",
    "--list",
)


def told(address: str) -> Iterator[list[str]]:
    """Return the sorted lines that the tool prints of each form: rules come in no order."""
    for form in FORMS:
        done = run_java(TOOL, "--bootstrap-server", address, *form.split())
        assert done.returncode == 0, (form, done.stdout, done.stderr)
        yield sorted(re.sub(r"\s+", " ", line).strip() for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[str]]]:
    kafka = Kafka(tmp_path_factory.mktemp("kafka"), more=AUTHORIZER)
    try:
        yield list(told(kafka.wait_ready().address))
    finally:
        kafka.stop()


def test_kafka_acls(theirs: list[list[str]], tmp_path: Path) -> None:
    with served(tmp_path, "--authorizer", "acl", "--super-users", "User:ANONYMOUS") as server:
        for form, ours, wanted in zip(FORMS, told(server.address), theirs, strict=True):
            assert ours == wanted, form
        server.kill()
    with served(tmp_path, "--authorizer", "acl", "--super-users", "User:ANONYMOUS") as server:
        done = run_java(TOOL, "--bootstrap-server", server.address, "--list")
        lines = sorted(re.sub(r"\s+", " ", line).strip() for line in done.stdout.splitlines())
        assert lines == theirs[-1]  # they are there after a crash


def test_without_an_authorizer_the_tool_says_so(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        done = run_java(TOOL, "--bootstrap-server", server.address, "--list")
    assert "No Authorizer is configured" in done.stdout + done.stderr
