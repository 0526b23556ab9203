"""Kafka 4.3's own command-line tools, which are its Java clients."""

import json
from pathlib import Path

import pytest

from tests.harness import eventually, java, run_java
from tests.workers import Site

TOPICS = "org.apache.kafka.tools.TopicCommand"
PERF = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERF = "org.apache.kafka.tools.ConsumerPerformance"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"


def test_console_producer_and_consumer(site: Site, queue: str) -> None:
    lines = "".join(f"line {i}\n" for i in range(50))
    java(PRODUCER, "--bootstrap-server", site.address, "--topic", queue, stdin=lines)
    out = java(
        CONSUMER, "--bootstrap-server", site.address, "--topic", queue, "--partition", "0",
        "--offset", "earliest", "--max-messages", "50", "--timeout-ms", "20000",
    )  # fmt: skip
    assert out == lines


def test_topics_create_describe_alter_list_delete(site: Site, queue: str) -> None:
    at = ("--bootstrap-server", site.address)
    java(TOPICS, *at, "--create", "--topic", queue, "--partitions", "2", "--replication-factor",
         "1", "--config", "retention.ms=1000")  # fmt: skip
    described = java(TOPICS, *at, "--describe", "--topic", queue)
    assert "PartitionCount: 2" in described
    assert "ReplicationFactor: 1" in described
    assert "Configs: retention.ms=1000" in described
    java(TOPICS, *at, "--alter", "--topic", queue, "--partitions", "4")
    assert "PartitionCount: 4" in java(TOPICS, *at, "--describe", "--topic", queue)
    again = run_java(TOPICS, *at, "--create", "--topic", queue)
    assert again.returncode
    assert "already exists" in again.stdout + again.stderr
    unknown = run_java(TOPICS, *at, "--create", "--topic", queue + "x", "--config", "foo.bar=1")
    assert unknown.returncode
    java(TOPICS, *at, "--delete", "--topic", queue)
    eventually(lambda: queue not in java(TOPICS, *at, "--list").split(), 5)


def test_perf_get_offsets_and_delete_records(site: Site, queue: str, tmp_path: Path) -> None:
    out = java(
        PERF, "--topic", queue, "--num-records", "200000", "--record-size", "100", "--throughput",
        "-1", "--bootstrap-server", site.address, "--command-property", "linger.ms=5",
    )  # fmt: skip
    assert "200000 records sent" in out
    at = ("--bootstrap-server", site.address, "--topic", queue)
    assert java(OFFSETS, *at).strip() == f"{queue}:0:200000"
    assert java(OFFSETS, *at, "--time", "earliest").strip() == f"{queue}:0:0"
    by_time = java(OFFSETS, *at, "--time", "max-timestamp").strip()
    assert int(by_time.rpartition(":")[2]) > 0
    trim = tmp_path / "trim.json"
    part = {"topic": queue, "partition": 0, "offset": 150_000}
    trim.write_text(json.dumps({"partitions": [part], "version": 1}))
    done = java(DELETE_RECORDS, "--bootstrap-server", site.address, "--offset-json-file", str(trim))
    assert "low_watermark: 150000" in done
    assert java(OFFSETS, *at, "--time", "earliest").strip() == f"{queue}:0:150000"


@pytest.mark.parametrize("version", ["idempotent", "plain"])
def test_a_backlog_is_consumed_whole_by_the_java_consumer(site: Site, version: str) -> None:
    queue = f"backlog-{version}"
    idempotence = str(version == "idempotent").lower()
    java(
        PERF, "--topic", queue, "--num-records", "100000", "--record-size", "500", "--throughput",
        "-1", "--bootstrap-server", site.address, "--command-property",
        f"enable.idempotence={idempotence}", "compression.type=lz4",
    )  # fmt: skip
    out = java(
        CONSUMER, "--bootstrap-server", site.address, "--topic", queue, "--partition", "0",
        "--offset", "0", "--max-messages", "100000", "--timeout-ms", "20000",
        "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false",
    )  # fmt: skip
    offsets = [int(line.rpartition(":")[2]) for line in out.split()]
    assert offsets == list(range(100_000))
