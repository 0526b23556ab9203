"""Marks that follow from where a test is: `long`, `outside` and `dear`.

`outside`: it needs more than Python, a real Kafka, a Java program, kcat, a compiler. `make check`
leaves it out, and a test without the mark that asks for such a thing fails.
`dear`: `make check` has three minutes, therefore it leaves to `make test` what takes most CPU.
"""

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
    r"clients/security/test_security.py::test_librdkafka_logs_in_again.*\[on Kafka",
    r"clients/routes/test_routes.py::test_an_entrance_that_keeps_nothing\[kafka",
    r"clients/routes/test_redrives.py.*\[kafka",
    r"clients/routes/test_routes.py::test_so_many_queues_and_no_more\[kafka",
    r"on_kafka/test_groups.py::test_the_coordinator_is_killed.*\[(librdkafka-consumer|java)\]",
    r"examples/.*\[at-least-once",
    # A process of its own; others serve the same application from a thread. Codecs and mechanisms
    # have tests of their own.
    r"console/test_records.py::test_packed",
    r"console/test_pages.py::test_queue_of_many",
    r"console/test_groups.py::test_members.*\[classic",
    r"console/test_changes.py::test_a_record_is_copied",
    r"console/test_login.py::test_each_mechanism.*\[(?!SCRAM-SHA-512)",
    r"console/test_command.py::test_(the_command_serves|make_run)",
    # A real browser; tests/console has each page and form without one.
    r"browser/",
    r"scale/test_console.py",
    # A Kafka of three nodes: minutes for each fault.
    r"faults/brokers/",
    r"faults/test_exactly_once.py.*\[(embedded-.*java|kafka-.*librdkafka)",
    r"faults/test_interleaved.py.*\[kafka",
    r"faults/(test_share_groups|redrives/test_redrives).py.*\[embedded",
    r"observe/test_prometheus.py::test_(alerts|every_query).*\[kafka",
    # Frameworks: one application of each.
    r"frameworks/test_connect.py.*\[embedded",
    r"frameworks/test_connect_exactly_once.py.*\[kafka",
    r"frameworks/test_mirror_maker.py.*\[embedded",
    r"frameworks/test_streams.py.*(\[embedded|restored|classic)",
    r"frameworks/test_streams_tools.py",
    # Spark: its source and sink on Kafka; the README's tour runs each job once.
    r"spark/test_(cluster|delays|figures|kills|routes|security|versions|work).py",
    r"spark/test_jobs.py::(?!test_ingest_json\[kafka)",
    r"spark/test_options.py.*\[(kafka itself|embedded)",
    r"spark/test_options.py::test_(a_stream_begins|sizes|records|a_queue_deleted|a_worker)",
    r"spark/test_table.py::test_(a_column|plain)",
    r"spark/test_readme.py.*work",
    r"spark/test_source.py::test_(rows.*\[kafka|bounds|a_stream|a_plan)",
    r"spark/test_(spark|transactions).py.*\[embedded",
    # One way of slicing serves all requests that list topics.
    r"handlers/long/test_requests.py::test_very_many_topics.*\[(?!FETCH|PRODUCE|OFFSET_COMMIT|ELECT)",
    # A coordinator's rules, which do not depend on where its log is.
    r"kafka/groups/test_streams_groups_like_kafka.py::test_(?!internal).*\[kafka",
    r"kafka/at_versions/test_newest_versions_like_kafka.py.*\[kafka",
    # Mistakes that only some of the seeds show.
    r"simulation/redrives/.*mistake_is_seen\[(a|one|its) ",
    r"simulation/bulk/.*mistakes_are_found\[(a|the|any)_",
    # Twenty seconds of CPU; a test beside it has fewer queues.
    r"groups/test_big_share_groups.py::test_a_group_of_a_hundred",
    # kproxy's answers do not depend on where its log is; on_kafka/test_life.py runs there as well.
    r"clients/topics/test_life.py.*\[kafka",
    # A job is done by the same requests, embedded and on Kafka.
    r"faults/redrives/test_bulk_jobs.py",
    r"clients/topics/test_bulk.py.*\[kafka",
    # Frameworks of others, and a wheel: each fetches libraries of its own.
    r"(works_with|packaging)/",
    # Comparisons by a Java program.
    r"kafka/topics/test_admin_table_like_kafka.py.*\[kafka",
)
"""Tests that `make test` leaves to `make test-long`, for others of it show nearly the same."""
OUTSIDE = (
    "browser/",
    "clients/groups/test_group_tools.py", "clients/groups/test_groups.py::test_two_members",
    "clients/groups/test_groups.py::test_a_thousand",
    "clients/groups/test_groups.py::test_lag_is", "clients/libraries/test_client_versions.py",
    "clients/libraries/test_kcat.py", "clients/libraries/test_more_clients.py",
    "clients/routes/test_delays.py::test_kcat", "clients/routes/test_delays.py::test_describe",
    "clients/routes/test_delays.py::test_kafkas_tool", "clients/routes/test_routes.py::test_kcat",
    "clients/routes/test_route_tools.py", "clients/security/", "clients/shares/test_java_shares.py",
    "clients/shares/test_share_tools.py", "clients/topics/test_compaction.py::test_kafkas_own",
    "clients/topics/test_compaction.py::test_kcat", "clients/topics/test_documented_tools.py",
    "clients/topics/test_kafka_tools.py", "clients/topics/test_life.py",
    "clients/transactions/test_delayed_end.py",
    "clients/transactions/test_java_transactions.py", "deploy/", "docker/", "examples/",
    "faults/brokers/", "faults/test_backup.py", "faults/test_exactly_once.py",
    "faults/test_full_disk.py", "faults/power/", "faults/test_share_groups.py", "frameworks/",
    "hung_disk/", "network/test_faults.py", "network/test_part_of_kafka.py",
    "network/test_workloads.py",
    "observe/test_http_thread.py", "observe/test_prometheus.py", "on_kafka/", "releases/",
    "project/test_readme.py", "protocol/test_newer.py::test_fields",
    "security/test_certificates.py", "spark/", "tools/test_security_page.py", "works_with/",
    "packaging/",
)  # fmt: skip
"""Folders, files and tests that count as `outside`; so does each test that has a Kafka."""
DEAR = (
    # Requests as large as a client can send: a few seconds each.
    r"handlers/long/", r"groups/test_big_share_groups.py", r"scale/",
    # Seeds behind the first ten, requests by thousands, and kills under load.
    r"simulation/.*from [1-9]", r"faults/test_(generated|fuzz).py", r"loop/test_garbage.py",
    r"faults/test_(routes|delays|dead_letters|kill).py", r"faults/redrives/",
    r"shard/test_damage.py",
    # Planted mistakes prove what the simulations see, not that the code is right.
    r"(simulation|shard)/.*mistake",
)  # fmt: skip
"""Tests that `make check` leaves to `make test`."""
_long, _dear = re.compile("|".join(LONG)), re.compile("|".join(DEAR))
_running: list[pytest.Item] = []


def mark(items: list[pytest.Item]) -> None:
    """Add the marks to what was collected."""
    for item in items:
        assert isinstance(item, pytest.Function)
        name = item.nodeid.removeprefix("tests/")
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if _long.match(name):
            item.add_marker(pytest.mark.long)
        if _dear.match(name):
            item.add_marker(pytest.mark.dear)
        has_kafka = "kafka" in params or "kafka" in item.fixturenames
        if name.startswith(OUTSIDE) or has_kafka:
            item.add_marker(pytest.mark.outside)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Note the test that runs now."""
    _running[:] = [item]


def must_be_outside(what: str) -> None:
    """Fail a test that needs more than Python and has no mark that says so."""
    if any(item.get_closest_marker("outside") is None for item in _running):
        pytest.fail(
            f"this test needs {what}: mark it `outside`, or name its file in tests/marks.py"
        )
