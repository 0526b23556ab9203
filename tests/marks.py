"""Marks that follow from where a test is: `long` and `outside`.

`outside`: it needs more than Python, a real Kafka, a Java program, kcat, a compiler. `make check`
leaves it out, and a test there that asks for such a thing fails.
"""

import os

import pytest

LONG_SITES = {
    "clients/test_documented_tools.py": "kafka",
    "clients/test_group_tools.py": "kafka",
    "frameworks/test_streams.py": "embedded",
    "kafka/test_admin_table_like_kafka.py": "kafka",
    "spark/test_delays.py": "embedded",
    "spark/test_jobs.py": "embedded",
}
"""A Java program for each step: the site that adds least to the other one is for `-m long`."""
OUTSIDE = (
    "clients/test_acl_tools.py", "clients/test_client_versions.py", "clients/test_delayed_end.py",
    "clients/test_documented_tools.py", "clients/test_group_tools.py",
    "clients/test_java_shares.py", "clients/test_java_transactions.py",
    "clients/test_kafka_tools.py", "clients/test_kcat.py", "clients/test_more_clients.py",
    "clients/test_more_logins.py", "clients/test_quota_tools.py", "clients/test_route_tools.py",
    "clients/test_security.py", "clients/test_share_tools.py", "deploy/", "docker/", "examples/",
    "faults/test_backup.py", "faults/test_exactly_once.py", "faults/test_full_disk.py",
    "faults/test_power_cut.py", "faults/test_share_groups.py", "frameworks/",
    "observe/test_http_thread.py", "observe/test_prometheus.py", "on_kafka/", "releases/",
    "security/test_certificates.py", "spark/", "test_readme.py", "tools/test_security_page.py",
)  # fmt: skip
"""Folders and files whose tests all count as `outside`; so does each test that has a Kafka."""
ONLY_PYTHON = os.environ.get("KPROXY_ONLY_PYTHON") == "true"
"""Whether this is `make check`."""


def mark(items: list[pytest.Item]) -> None:
    """Add the marks to what was collected."""
    for item in items:
        assert isinstance(item, pytest.Function)
        path = item.nodeid.partition("::")[0].removeprefix("tests/")
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if path in LONG_SITES and LONG_SITES[path] in params:
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
