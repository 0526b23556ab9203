"""Spark's Kafka source and sink with a login over TLS, as docs/security.md says; and without."""

from pathlib import Path
from typing import Any

import click
import pytest
from confluent_kafka import Producer

from tests.securing import PASSWORD, Site
from tests.spark import jobs
from tests.spark.jobs import load


def secured(site: Site, password: str = PASSWORD) -> dict[str, str]:
    """Return options of Spark's source and sink."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(site.authority.ca),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="alice" password="{quoted}";'
        ),
    }


def properties(site: Site, path: Path, **more: str) -> Path:
    """Write properties as docs/security.md has them."""
    settings = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice", "sasl.password": PASSWORD,
        "ssl.ca.location": str(site.authority.ca), **more,
    }  # fmt: skip
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def allow(site: Site, *rules: tuple[int, str, int]) -> None:
    """Allow Alice to do so to topics (2) whose names begin so."""
    with site.wire("INSIDE") as wire:
        for kind, name, operation in rules:
            creation = {
                "resource_type": kind, "resource_name": name, "resource_pattern_type": 4,
                "principal": "User:alice", "host": "*", "operation": operation,
                "permission_type": 3,
            }  # fmt: skip
            told = wire.call(30, 3, {"creations": [creation]})
            assert not told.results[0].error_code


def test_a_job_logs_in_and_does_what_it_may(spark: Any, tmp_path: Path) -> None:
    site = Site(tmp_path)
    rules = 'authorizer = "acl"\nsuper_users = ["User:ANONYMOUS"]\n'
    site.config.write_text(rules + site.listeners())
    with site.running():
        site.add_user("alice")
        inside = Producer(site.librdkafka("INSIDE"))
        for number in range(500):
            inside.produce("mine-in", b"%d" % number)
            inside.produce("other", b"secret")
        assert inside.flush(30) == 0
        address = site.address("OUTSIDE")
        allow(site, (2, "mine-", 3), (2, "mine-", 4), (2, "mine-", 5))

        def rows(**options: str) -> list[bytes]:
            found = load(spark.read, address, **options).collect()
            return sorted(bytes(row.value) for row in found)

        expected = sorted(b"%d" % number for number in range(500))
        assert rows(subscribe="mine-in", **secured(site)) == expected
        assert rows(subscribePattern=".*", **secured(site)) == expected, "the others are hidden"
        query = (
            load(spark.readStream, address, subscribe="mine-in", startingOffsets="earliest",
                 **secured(site))
            .selectExpr("'mine-out' AS topic", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .options(**secured(site))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        assert query.awaitTermination(60)
        assert rows(subscribe="mine-out", **secured(site)) == expected
        with pytest.raises(Exception, match=r"(?i)authoriz"):
            rows(subscribe="other", **secured(site))
        with pytest.raises(Exception, match=r"(?i)authentication"):
            rows(subscribe="mine-in", **secured(site, "wrong"))


def test_the_jobs_log_in_by_a_file(spark: Any, tmp_path: Path) -> None:
    site = Site(tmp_path)
    rules = 'authorizer = "acl"\nsuper_users = ["User:ANONYMOUS"]\n'
    site.config.write_text(rules + site.listeners())
    (lines := tmp_path / "lines").mkdir()
    (lines / "some.json").write_text(
        "".join(f'{{"user": "u{n % 4}", "n": {n}}}\n' for n in range(40))
    )
    with site.running():
        site.add_user("alice")
        allow(site, *((2, name, 2) for name in ("user-", "users", "summary")))
        file = properties(site, tmp_path / "alice.properties")
        address = site.address("OUTSIDE")

        def run(name: str, *arguments: object) -> list[str]:
            return jobs.run(name, *arguments, "--command-config", file, server=address)

        written = run("ingest", lines, "--entrance", "users", "--key", "user", "--checkpoint",
                      tmp_path / "work")  # fmt: skip
        assert written == ["batch 0: 40 rows, 1 queue"]
        counted = run("aggregate", tmp_path / "counts", "--entrance", "users", "--window", "1 day")
        assert counted[0].startswith("batch 0: 40 rows")
        with pytest.raises(click.ClickException, match="no group has committed"):
            run("lag_report", tmp_path / "lag")
        properties(site, file, **{"ssl.keystore.location": "x"})
        with pytest.raises(click.ClickException, match=r"know no ssl\.keystore"):
            run("lag_report", tmp_path / "lag")


def test_the_data_source_logs_in_as_other_clients_do(tmp_path: Path) -> None:
    from kproxy.spark.options import SourceError
    from tests.spark.test_source import done, plan

    site = Site(tmp_path)
    rules = 'authorizer = "acl"\nsuper_users = ["User:ANONYMOUS"]\n'
    site.config.write_text(rules + site.listeners())
    with site.running():
        site.add_user("alice")
        inside = Producer(site.librdkafka("INSIDE"))
        for queue in ("mine-a", "mine-b", "other"):
            inside.produce(queue, b"x")
        assert inside.flush(30) == 0
        allow(site, (2, "mine-", 3))
        address = site.address("OUTSIDE")
        file = properties(site, tmp_path / "alice.properties")
        for login in ({"command-config": str(file)}, secured(site)):
            found = done(*plan(address, subscribePattern=".*", **login))
            assert sorted(queue for queue, _, _ in found) == ["mine-a", "mine-b"]
        with pytest.raises(SourceError, match="queue other cannot be read: TOPIC_AUTHORIZATION"):
            plan(address, subscribe="other", **secured(site))
        with pytest.raises(SourceError, match="not logged in as alice"):
            plan(address, subscribe="mine-a", **secured(site, "wrong"))
