"""kafka-consumer-groups and kafka-configs, in the forms that Kafka documents; and rewinds."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.clients.calls import consumer, create, producer
from tests.clients.groups.members import KINDS
from tests.clients.groups.test_groups import GROUPS
from tests.harness import eventually, java, run_java
from tests.workers import Site

CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


def groups(site: Site, *arguments: str) -> str:
    return java(GROUPS, "--bootstrap-server", site.address, *arguments)


def fill(site: Site, queue: str, count: int, partitions: int = 1, **settings: str) -> None:
    """Write records one second apart, the last one now."""
    create(site.address, queue, partitions=partitions, **settings)
    client = producer(site.address)
    now = int(time.time() * 1000)
    for i in range(count):
        for index in range(partitions):
            stamp = now - (count - 1 - i) * 1000
            client.produce(queue, b"x", partition=index, timestamp=stamp)
            client.flush(10)  # a batch each, so that look-ups by time are exact to the record


def commit(site: Site, group: str, queue: str, offset: int, metadata: str | None = None) -> None:
    reader = consumer(site.address, group)
    part = TopicPartition(queue, 0, offset, *([] if metadata is None else [metadata]))
    try:
        for done in reader.commit(offsets=[part], asynchronous=False):
            if done.error:
                raise KafkaException(done.error)
    finally:
        reader.close()


def committed(site: Site, group: str, queue: str, partition: int = 0) -> int:
    reader = consumer(site.address, group)
    try:
        return int(reader.committed([TopicPartition(queue, partition)], 10)[0].offset)
    finally:
        reader.close()


def new_offsets(out: str, queue: str) -> dict[int, int]:
    """Return the new offset by partition of each line of a reset."""
    found = {}
    for line in out.splitlines():
        words = line.split()
        if len(words) == 4 and words[1] == queue:
            found[int(words[2])] = int(words[3])
    return found


def test_reset_offsets_in_all_forms(site: Site, queue: str, tmp_path: Path) -> None:
    fill(site, queue, 10, partitions=2)
    group = queue
    commit(site, group, queue, 4)
    reset = ("--reset-offsets", "--group", group, "--topic", queue)
    third = time.strftime("%Y-%m-%dT%H:%M:%S.000", time.gmtime(time.time() - 3600))
    plans: list[tuple[tuple[str, ...], dict[int, int]]] = [
        (("--to-earliest",), {0: 0, 1: 0}),
        (("--to-latest",), {0: 10, 1: 10}),
        (("--to-offset", "7"), {0: 7, 1: 7}),
        (("--to-offset", "99"), {0: 10, 1: 10}),
        (("--to-datetime", third), {0: 0, 1: 0}),
        (("--by-duration", "PT1H"), {0: 0, 1: 0}),
    ]
    for how, wanted in plans:
        out = groups(site, *reset, *how, "--dry-run")
        assert new_offsets(out, queue) == wanted, how
    assert committed(site, group, queue) == 4  # only looked
    plan = groups(site, *reset, "--to-offset", "6", "--dry-run", "--export")
    file = tmp_path / "plan.csv"
    file.write_text("".join(line + "\n" for line in plan.splitlines() if queue in line))
    out = groups(site, "--reset-offsets", "--group", group, "--from-file", str(file), "--execute")
    assert new_offsets(out, queue) == {0: 6, 1: 6}
    assert committed(site, group, queue, 1) == 6
    for how, value in ((("--shift-by", "-2"), 4), (("--shift-by", "3"), 7), (("--to-current",), 7)):
        out = groups(site, "--reset-offsets", "--group", group, "--topic", f"{queue}:0", *how,
                     "--execute")  # fmt: skip
        assert new_offsets(out, queue) == {0: value}
        assert committed(site, group, queue) == value
    groups(site, "--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute")
    assert [committed(site, group, queue, i) for i in (0, 1)] == [0, 0]


def test_list_describe_and_delete(site: Site, queue: str) -> None:
    fill(site, queue, 3)
    member = KINDS["java"](site.address, queue, [queue]).start()
    modern = KINDS["java-consumer"](site.address, queue + "-modern", [queue]).start()
    try:
        eventually(lambda: len(member.seen) == 3 and len(modern.seen) == 3, 40)
        listed = groups(site, "--list", "--state", "--type")
        kinds = {w[0]: w[1:] for w in map(str.split, listed.splitlines()) if w}
        assert kinds[queue] == ["Classic", "Stable"]
        assert kinds[queue + "-modern"] == ["Consumer", "Stable"]
        for name in (queue, queue + "-modern"):
            members = groups(site, "--describe", "--group", name, "--members", "--verbose")
            assert f"{queue}:0" in members
            state = groups(site, "--describe", "--group", name, "--state")
            assert "Stable" in state
            refused = run_java(GROUPS, "--bootstrap-server", site.address, "--delete", "--group",
                               name)  # fmt: skip
            assert "NON_EMPTY" in refused.stdout.upper() or "not empty" in refused.stdout
            busy = run_java(
                GROUPS, "--bootstrap-server", site.address, "--reset-offsets", "--group", name,
                "--topic", queue, "--to-earliest", "--execute",
            )  # fmt: skip
            assert "inactive" in busy.stdout + busy.stderr
            used = groups(site, "--delete-offsets", "--group", name, "--topic", queue)
            assert "subscribed" in used
    finally:
        member.stop()
        modern.stop()
    for name in (queue, queue + "-modern"):
        assert committed(site, name, queue) == 3
        gone = groups(site, "--delete-offsets", "--group", name, "--topic", queue)
        assert "Successful" in gone
        assert committed(site, name, queue) == -1001
        assert "successful" in groups(site, "--delete", "--group", name)
        assert name not in groups(site, "--list").split()


def test_settings_of_a_group(site: Site, queue: str) -> None:
    group = f"{queue}-workers"
    at = ("--bootstrap-server", site.address, "--entity-type", "groups", "--entity-name", group)
    limit, lock = "share.delivery.count.limit", "share.record.lock.duration.ms"
    said = java(CONFIGS, *at, "--alter", "--add-config", f"{limit}=3,{lock}=20000")
    assert f"Completed updating config for group {group}" in said
    eventually(lambda: f"{limit}=3 " in java(CONFIGS, *at, "--describe"), 30)
    told = java(CONFIGS, *at, "--describe", "--all")
    assert f"{lock}=20000 " in told
    assert "DYNAMIC_GROUP_CONFIG" in told
    assert "share.auto.offset.reset=latest " in told
    refused = run_java(CONFIGS, *at, "--alter", "--add-config", f"{limit}=100")
    assert refused.returncode
    assert "group.share.max.delivery.count.limit" in refused.stdout + refused.stderr
    java(CONFIGS, *at, "--alter", "--delete-config", limit)

    def left() -> bool:
        told = java(CONFIGS, *at, "--describe")
        return limit not in told and f"{lock}=20000 " in told

    eventually(left, 30)
    every = java(CONFIGS, *at[:4], "--describe")
    assert f"Dynamic configs for group {group} are:" in every


def refusal(site: Site, group: str, queue: str, offset: int, metadata: str | None = None) -> Any:
    with pytest.raises(KafkaException) as caught:
        commit(site, group, queue, offset, metadata)
    return caught.value.args[0]


def test_rewinds_are_refused_and_allowed_as_configured(site: Site, queue: str) -> None:
    fill(site, queue, 5, kproxy_commit_rewind="deny")
    group = queue
    commit(site, group, queue, 4)
    error = refusal(site, group, queue, 2)
    assert error.name() == "POLICY_VIOLATION"
    assert not error.retriable()
    assert committed(site, group, queue) == 4
    commit(site, group, queue, 4)
    commit(site, group, queue, 5)
    commit(site, group, queue, 1, "allow-rewind: asked for by hand")
    assert committed(site, group, queue) == 1
    at = ("--bootstrap-server", site.address, "--alter", "--topic", queue)
    java(CONFIGS, *at, "--add-config", "kproxy.commit.rewind=allow")
    commit(site, group, queue, 3)
    eventually(lambda: commit(site, group, queue, 2) is None)
    java(CONFIGS, *at, "--delete-config", "kproxy.commit.rewind")
    commit(site, group, queue, 1)
    java(CONFIGS, *at, "--add-config", "kproxy.commit.rewind=deny")
    eventually(lambda: refusal(site, group, queue, 0).name() == "POLICY_VIOLATION")


def test_an_administrator_may_rewind_a_group_that_members_use(site: Site, queue: str) -> None:
    fill(site, queue, 5, kproxy_commit_rewind="deny")
    member = KINDS["librdkafka"](site.address, queue, [queue]).start()
    eventually(lambda: len(member.seen) == 5, 30)
    member.stop()
    reset = ("--reset-offsets", "--group", queue, "--topic", queue, "--to-offset", "2")
    assert new_offsets(groups(site, *reset, "--execute"), queue) == {0: 2}
    again = KINDS["librdkafka"](site.address, queue, [queue]).start()
    eventually(lambda: len(again.seen) == 3, 30)
    again.stop()
    assert [offset for _, _, offset in again.seen] == [2, 3, 4]


def test_settings_by_kafka_configs(site: Site, queue: str) -> None:
    create(site.address, queue)
    at = ("--bootstrap-server", site.address)
    java(CONFIGS, *at, "--alter", "--topic", queue, "--add-config",
         "retention.ms=123456,max.message.bytes=2000")  # fmt: skip
    described = java(CONFIGS, *at, "--describe", "--topic", queue)
    assert "retention.ms=123456" in described
    assert "max.message.bytes=2000" in described
    java(CONFIGS, *at, "--alter", "--topic", queue, "--delete-config", "retention.ms")
    eventually(lambda: "retention.ms" not in java(CONFIGS, *at, "--describe", "--topic", queue), 5)
    for wrong in ("no.such.setting=1", "cleanup.policy=shred", "retention.ms=soon"):
        refused = run_java(CONFIGS, *at, "--alter", "--topic", queue, "--add-config", wrong)
        assert refused.returncode
        assert wrong.split("=")[0] in refused.stdout + refused.stderr
    assert "retention.ms=1209600000" in java(CONFIGS, *at, "--describe", "--all", "--topic", queue)
    assert "num.partitions" in java(CONFIGS, *at, "--describe", "--all", "--broker", "1")


def test_log_dirs_leaders_and_producers(site: Site, queue: str, tmp_path: Path) -> None:
    fill(site, queue, 2)
    at = ("--bootstrap-server", site.address)
    out = java(LOG_DIRS, *at, "--describe", "--topic-list", queue)
    answer = json.loads(out.splitlines()[-1])
    sizes = [
        part["size"]
        for broker in answer["brokers"]
        for directory in broker["logDirs"]
        for part in directory["partitions"]
        if part["partition"] == f"{queue}-0"
    ]
    assert len(sizes) == 1
    assert 100 < sizes[0] < 300
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": queue, "partition": 0}]}))
    elected = java(ELECTION, *at, "--election-type", "preferred", "--path-to-json-file", str(plan))
    assert "Valid replica already elected" in elected
    found = java(TRANSACTIONS, *at, "describe-producers", "--topic", queue, "--partition", "0")
    assert "ProducerId" in found
    assert java(TRANSACTIONS, *at, "list").startswith("TransactionalId")
