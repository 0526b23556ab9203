"""Marks that follow from where a test is: `long` and `outside`.

`outside`: it needs more than Python, a real Kafka, a Java program, kcat, a compiler. `make check`
leaves it out, and a test there that asks for such a thing fails.
"""

import os
import re

import pytest

LONG = (
    # Kafka's tools, a Java program for each step: test_kafka_tools stands for them.
    r"clients/(security/test_acl|groups/test_group|security/test_quota)_tools.py",
    r"clients/topics/test_documented_tools.py",
    r"clients/(topics/test_kafka|routes/test_route)_tools.py.*\[kafka",
    r"clients/shares/test_share_tools.py.*\[embedded",
    r"clients/security/test_security.py::test_users_by_kafka_configs\[embedded",
    r"clients/transactions/test_transactions.py::test_the_tool\[embedded",
    r"clients/topics/test_compaction.py::test_kafkas_own_tool.*\[kafka",
    # A client runs embedded or on Kafka; kproxy's answers do not depend on which.
    r"clients/libraries/test_client_versions.py::test_java.*\[kafka-(?!3.4.1)",
    r"clients/groups/.*::test_two.*\[(embedded-java|kafka-(librdkafka|kafka-python|aiokafka)\])",
    r"clients/groups/test_groups.py::test_a_thousand.*JavaByRegex",
    r"clients/shares/test_java_shares.py.*\[embedded",
    r"clients/transactions/test_java_transactions.py.*\[(embedded-2|kafka-1)",
    r"clients/routes/test_(routes|delays).py::test_java.*\[embedded",
    r"clients/security/test_security.py::test_java\[embedded-(PLAIN|SCRAM-SHA-256|OAUTH)",
    r"clients/security/test_security.py::test_java\[on Kafka-(SCRAM|cert)",
    r"clients/security/test_security.py::test_(kafka_python|aiokafka)\[on Kafka",
    r"on_kafka/test_groups.py::test_the_coordinator_is_killed.*\[(librdkafka-consumer|java)\]",
    r"examples/.*\[at-least-once",
    # A Kafka of three nodes: minutes for each fault.
    r"faults/brokers/",
    r"faults/test_exactly_once.py.*\[(embedded-.*java|kafka-.*librdkafka)",
    r"faults/test_share_groups.py.*\[embedded",
    r"observe/test_prometheus.py::test_(alerts|every_query).*\[kafka",
    # Frameworks: one application of each.
    r"frameworks/test_connect.py.*\[embedded",
    r"frameworks/test_connect_exactly_once.py.*\[kafka",
    r"frameworks/test_mirror_maker.py.*\[embedded",
    r"frameworks/test_streams.py.*(\[embedded|restored)",
    # Spark: its source and sink on Kafka; the README's tour runs each job once.
    r"spark/test_(delays|routes|security).py",
    r"spark/test_jobs.py::(?!test_ingest_json\[kafka)",
    r"spark/test_options.py.*\[(kafka itself|embedded)",
    r"spark/test_(spark|transactions).py.*\[embedded",
    # Comparisons by a Java program.
    r"kafka/topics/test_admin_table_like_kafka.py.*\[kafka",
)
"""Tests that `make test` leaves to `make test-long`, for others of it show nearly the same."""
OUTSIDE = (
    "clients/groups/test_group_tools.py", "clients/libraries/test_client_versions.py",
    "clients/libraries/test_kcat.py", "clients/libraries/test_more_clients.py",
    "clients/routes/test_route_tools.py", "clients/security/", "clients/shares/test_java_shares.py",
    "clients/shares/test_share_tools.py", "clients/topics/test_documented_tools.py",
    "clients/topics/test_kafka_tools.py", "clients/transactions/test_delayed_end.py",
    "clients/transactions/test_java_transactions.py", "deploy/", "docker/", "examples/",
    "faults/brokers/", "faults/test_backup.py", "faults/test_exactly_once.py",
    "faults/test_full_disk.py", "faults/test_power_cut.py", "faults/test_share_groups.py",
    "frameworks/",
    "observe/test_http_thread.py", "observe/test_prometheus.py", "on_kafka/", "releases/",
    "project/test_readme.py", "security/test_certificates.py", "spark/",
    "tools/test_security_page.py",
)  # fmt: skip
"""Folders and files whose tests all count as `outside`; so does each test that has a Kafka."""
_long = re.compile("|".join(LONG))
ONLY_PYTHON = os.environ.get("ONLY_PYTHON") == "true"
"""Whether this is `make check`."""


def mark(items: list[pytest.Item]) -> None:
    """Add the marks to what was collected."""
    for item in items:
        assert isinstance(item, pytest.Function)
        path = item.nodeid.partition("::")[0].removeprefix("tests/")
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if _long.match(item.nodeid.removeprefix("tests/")):
            item.add_marker(pytest.mark.long)
        has_kafka = "kafka" in params or "kafka" in item.fixturenames
        if path.startswith(OUTSIDE) or has_kafka:
            item.add_marker(pytest.mark.outside)


def must_be_outside(what: str) -> None:
    """Fail a test of `make check` that needs more than Python."""
    if ONLY_PYTHON:
        pytest.fail(
            f"this test needs {what}: mark it `outside`, or name its file in tests/marks.py"
        )
