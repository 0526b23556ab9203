"""The data of earlier releases is read, served and written on; and a level is put in force."""

import base64
import gzip
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kproxy.virtual.levels import NEWEST
from tests.forked import run_kproxy as kproxy
from tests.harness import Served, eventually, run_java, served
from tests.real_kafka import Kafka
from tests.releases import state
from tests.workers import Workers

HERE = Path(__file__).parent
FIRST = "df446bb"  # the last release without levels


def expected(name: str) -> Any:
    return json.loads((HERE / FIRST / name).read_text())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return an embedded data directory as the first release left it when it was killed."""
    with tarfile.open(HERE / FIRST / "embedded.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def with_more(found: Any) -> Any:
    """Return what there is once `state.more` was done again."""
    orders = found["queues"]["orders"]["partitions"][0]
    late = [[orders["end"] + i, f"late {i}"] for i in range(4)]
    orders["records"] += late
    orders["end"] += len(late)
    return found


def test_a_data_directory_of_the_first_release_is_served(directory: Path) -> None:
    wanted = expected("embedded.json")
    with served(directory) as server:
        assert state.read(server.address) == wanted
        state.more(server.address)
    with served(directory) as server:
        assert state.read(server.address) == with_more(wanted)


def test_a_data_directory_is_finalized_while_it_is_served(directory: Path) -> None:
    wanted = expected("embedded.json")
    with served(directory) as server:
        checked = kproxy("upgrade", "--check", "--bootstrap-server", server.address)
        assert checked.returncode == 0, checked.stderr
        assert "--finalize" in checked.stdout
        done = kproxy("upgrade", "--finalize", "--bootstrap-server", server.address)
        assert f"level {NEWEST} is in force" in done.stdout, done.stderr
        state.more(server.address)
    assert json.loads((directory / "meta.json").read_text())["format"] == NEWEST + 1
    with served(directory) as server:
        assert state.read(server.address) == with_more(wanted)
        again = kproxy("upgrade", "--bootstrap-server", server.address)
        assert "nothing is left to do" in again.stdout


def test_kafkas_own_tool_shows_and_upgrades_the_level(directory: Path) -> None:
    tool = "org.apache.kafka.tools.FeatureCommand"
    with served(directory) as server:
        command = (tool, "--bootstrap-server", server.address)
        shown = run_java(*command, "describe")
        line = next(line for line in shown.stdout.splitlines() if "kproxy.level" in line)
        assert f"SupportedMaxVersion: {NEWEST}" in line
        assert "FinalizedVersionLevel: 1" in line
        upgraded = run_java(*command, "upgrade", "--feature", "kproxy.level=2")
        assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
        assert "FinalizedVersionLevel: 2" in run_java(*command, "describe").stdout
        down = run_java(*command, "downgrade", "--feature", "kproxy.level=1")
        assert "one-way" in down.stdout + down.stderr


@pytest.fixture
def topics(kafka: Kafka) -> Iterator[str]:
    """Yield the four topics as the first release left them, with their owners gone."""
    prefix = "old"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    compacted = {"cleanup.policy": "compact"}
    wanted = [
        NewTopic(f"{prefix}-data", 4, 1, config={
            "retention.ms": "-1", "retention.bytes": "-1", "segment.bytes": str(128 << 20),
            "max.message.bytes": str(10 << 20),
        }),
        NewTopic(f"{prefix}-offset", 4, 1, config=compacted),
        NewTopic(f"{prefix}-partitions", 1, 1, config=compacted),
        NewTopic(f"{prefix}-queues", 1, 1, config=compacted),
    ]  # fmt: skip
    for topic in wanted:
        topic.config["min.insync.replicas"] = "1"
        topic.config["unclean.leader.election.enable"] = "false"
    for future in admin.create_topics(wanted).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True})
    with gzip.open(HERE / FIRST / "records.json.gz", "rt") as file:
        for line in file:
            topic_name, partition, key, value = json.loads(line)
            producer.produce(
                f"{prefix}-{topic_name}", _bytes(value), _bytes(key), partition=partition
            )
    assert producer.flush(30) == 0
    yield prefix
    for future in admin.delete_topics([topic.topic for topic in wanted]).values():
        future.result(30)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def test_topics_of_the_first_release_are_served_and_finalized(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    wanted = expected("topics.json")
    workers = Workers(kafka, tmp_path, "--publish-ms", "500", shards=4, prefix=topics)
    with workers.running():
        assert state.read(workers.address) == wanted
        state.more(workers.address)
        first = workers.address.split(",")[0]
        assert kproxy("upgrade", "--bootstrap-server", first).returncode == 0
        done = kproxy("upgrade", "--finalize", "--bootstrap-server", first)
        assert done.returncode == 0, done.stdout + done.stderr
        for address in workers.address.split(","):
            eventually(lambda a=address: "nothing is left" in  # type: ignore[misc]
                       kproxy("upgrade", "--bootstrap-server", a).stdout)  # fmt: skip
        state.more(workers.address)
    for index in range(2):
        shutil.rmtree(tmp_path / f"worker-{index}")
        workers.again(index)
    with workers.running():
        assert state.read(workers.address) == with_more(with_more(wanted))


def test_a_worker_that_does_not_know_the_level_refuses_to_start_with_one_line(
    kafka: Kafka, tmp_path: Path
) -> None:
    with Workers(kafka, tmp_path, shards=4, count=1).running() as workers:
        producer = Producer({"bootstrap.servers": kafka.address})
        cluster = json.dumps({"format": NEWEST + 1, "cluster_id": "x", "shards": 4})
        other = workers.prefix + "-later"
        flags = [*workers.flags, "--topic-prefix", other]
    Served(tmp_path / "made", *flags).wait_ready(60).stop()  # makes the topics
    producer.produce(f"{other}-partitions", cluster, b"cluster:")
    assert producer.flush(30) == 0
    refused = kproxy("serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "x"), *flags)
    assert refused.returncode == 1
    assert f"level {NEWEST + 1}" in refused.stderr.splitlines()[-1]
