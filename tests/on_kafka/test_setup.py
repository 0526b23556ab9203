"""Topics made, checked, refused with the line that mends them; the supervisor; locate."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import (
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kproxy.upstream.settings import Connectivity, Upstream
from kproxy.upstream.topics import wanted
from kproxy.virtual.partitioner import shard_of
from tests.clients.calls import admin
from tests.clients.calls import alter as change
from tests.forked import run_kproxy
from tests.harness import ROOT, Served, eventually, free_port, java
from tests.real_kafka import Kafka
from tests.wire import Wire, batch
from tests.workers import Workers


def flags(kafka: Kafka, prefix: str, shards: int = 2) -> tuple[str, ...]:
    return (
        "--bootstrap-servers", kafka.address, "--topic-prefix", prefix, "--shards", str(shards),
        "--allow-single-replica",
    )  # fmt: skip


def refusal(data_dir: Path, *given: str) -> str:
    """Return the one line of a kproxy that does not start."""
    server = Served(data_dir, "--http-listen", "off", *given)
    try:
        assert server.process.wait(30) in (1, 2)
    finally:
        server.kill()
    assert len(server.raw) == 1, server.raw
    return server.raw[0]


def make(kafka: Kafka, prefix: str, shards: int = 2) -> None:
    """Make the four topics as kproxy makes them."""
    site = Upstream(
        servers=kafka.address, prefix=prefix, client={}, connectivity=Connectivity(kafka.address)
    )
    topics = wanted(site, shards, 10 << 20)
    client = admin(kafka.address)
    new = [NewTopic(t.name, t.partitions, 1, config=t.configs) for t in topics]
    for future in client.create_topics(new).values():
        future.result()


def alter(kafka: Kafka, topic: str, name: str, value: str) -> None:
    change(kafka.address, topic, **{name: value})
    client = admin(kafka.address)

    def told() -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        described = client.describe_configs([asked])[asked]
        if described.exception() is not None:  # it has not heard of the topic itself
            return False
        return bool(described.result()[name].value == value)

    eventually(told)  # a broker hears of it a little later than the controller


FAULTS = [
    ("data", "cleanup.policy", "compact", "cleanup.policy=delete"),
    ("data", "cleanup.policy", "compact,delete", "cleanup.policy=delete"),
    ("data", "retention.ms", "1000", "retention.ms=-1"),
    ("data", "retention.bytes", "100000", "retention.bytes=-1"),
    ("data", "segment.bytes", "1073741824", "segment.bytes=134217728"),
    ("data", "max.message.bytes", "1000000", "max.message.bytes=10485760"),
    ("data", "unclean.leader.election.enable", "true", "unclean.leader.election.enable=false"),
    ("offset", "cleanup.policy", "delete", "cleanup.policy=compact"),
    ("partitions", "cleanup.policy", "delete", "cleanup.policy=compact"),
    ("queues", "unclean.leader.election.enable", "true", "unclean.leader.election.enable=false"),
    ("offset", "min.insync.replicas", "2", "min.insync.replicas=1"),
]


@pytest.mark.parametrize(("topic", "name", "value", "mend"), FAULTS)
def test_settings_that_lose_data_are_refused_with_the_line_that_mends_them(
    kafka: Kafka, tmp_path: Path, topic: str, name: str, value: str, mend: str
) -> None:
    prefix = re.sub(r"[^a-z0-9]", "-", f"bad-{topic}-{name}-{value}")
    make(kafka, prefix)
    alter(kafka, f"{prefix}-{topic}", name, value)
    line = refusal(tmp_path, *flags(kafka, prefix))
    assert f"topic {prefix}-{topic}" in line
    command = re.search(r"kafka-configs\.sh (.*--add-config (\S+))", line)
    assert command
    assert command[2] == mend
    if (topic, value) == ("data", "compact"):
        java("kafka.admin.ConfigCommand", *command[1].split())
    else:  # the same without starting Java
        alter(kafka, f"{prefix}-{topic}", *mend.split("="))
    with Workers(kafka, tmp_path, count=1, shards=2, prefix=prefix).running():
        pass  # mended


def test_a_wrong_number_of_partitions_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    make(kafka, "counted", 3)
    line = refusal(tmp_path, *flags(kafka, "counted", 2))
    assert "topic counted-data has 3 partitions, not 2" in line
    assert "start with --shards 3" in line


def test_one_replica_needs_a_word(kafka: Kafka, tmp_path: Path) -> None:
    given = [flag for flag in flags(kafka, "single") if flag != "--allow-single-replica"]
    assert "--allow-single-replica" in refusal(tmp_path, *given)
    make(kafka, "single")
    assert "--allow-single-replica" in refusal(tmp_path, *given)


def test_no_create_says_which_commands_make_the_topics(kafka: Kafka, tmp_path: Path) -> None:
    line = refusal(tmp_path, *flags(kafka, "by-hand"), "--no-create")
    commands = re.findall(r"kafka-topics\.sh (.*?)(?: &&|$)", line.strip())
    assert len(commands) == 4
    for command in commands:
        java("org.apache.kafka.tools.TopicCommand", *command.split())
    client = admin(kafka.address)
    eventually(
        lambda: sum(name.startswith("by-hand-") for name in client.list_topics().topics) == 4
    )
    with Workers(kafka, tmp_path, "--no-create", count=1, shards=2, prefix="by-hand").running():
        pass


def test_client_settings_from_a_file(kafka: Kafka, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# towards the cluster\nclient.rack = here\nsocket.keepalive.enable=true\n")
    given = ("--kafka-config", str(file))
    with Workers(kafka, tmp_path / "d", *given, count=1, shards=2).running() as workers:
        with workers.wire("q") as wire:
            assert wire.produce("q", batch(b"v")).error_code == 0
    for text, said in (
        ("nonsense", "line 1: write it as name=value"),
        ("acks=1", "kproxy sets acks itself"),
        ("sasl.mechanism=NOPE\nno.such.name=1", "no.such.name"),
    ):
        file.write_text(text)
        line = refusal(tmp_path / "e", *flags(kafka, "settings"), *given)
        assert said in line
        assert "NOPE" not in line


def test_an_embedded_directory_is_not_taken_for_a_local_copy(kafka: Kafka, tmp_path: Path) -> None:
    server = Served(tmp_path).wait_ready()
    server.stop()
    line = refusal(tmp_path, *flags(kafka, "mixed"))
    assert "it holds queues of an embedded kproxy: choose another --data-dir" in line


# -- several workers under one command


def supervised(kafka: Kafka, data_dir: Path, port: int, *more: str) -> subprocess.Popen[Any]:
    command = [
        sys.executable, "-m", "kproxy", "serve", "--workers", "2", "--listen", f"127.0.0.1:{port}",
        "--data-dir", str(data_dir), *flags(kafka, "supervised", 4), *more,
    ]  # fmt: skip
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def answers(port: int) -> bool:
    try:
        with Wire("127.0.0.1", port, seconds=3) as wire:
            topic = wire.metadata("q").topics[0]
            return topic.error_code == 0 and topic.partitions[0].leader_id > 0
    except (OSError, IndexError):
        return False


def nodes(port: int) -> set[int] | None:
    """Return the ports of all nodes that this one tells of, or None where it does not answer."""
    try:
        with Wire("127.0.0.1", port, seconds=15) as wire:
            return {broker.port for broker in wire.metadata("q").brokers}
    except OSError:
        return None


def test_workers_under_a_supervisor(kafka: Kafka, tmp_path: Path) -> None:
    port = free_port(2)
    parent = supervised(kafka, tmp_path, port)
    try:
        assert eventually(lambda: nodes(port), 40) == {port, port + 1}  # the first answer
        eventually(lambda: answers(port) and answers(port + 1), 40)
        with Wire("127.0.0.1", port) as wire:
            brokers = {b.port: b.node_id for b in eventually(lambda: both(wire), 20)}
            assert set(brokers) == {port, port + 1}
            assert set(brokers.values()) == {1, 2}
        workers = psutil.Process(parent.pid).children()
        assert len(workers) == 2
        assert not any(kafka.address in worker.cmdline() for worker in workers)
        workers[1].kill()
        eventually(lambda: len(alive(parent)) == 2 and workers[1].pid not in alive(parent), 10)
        eventually(lambda: answers(port) and answers(port + 1), 30)
        located(kafka, port)
        children = psutil.Process(parent.pid).children()
        os.kill(parent.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(children, 20)
        assert not left  # without their supervisor they stop
        parent.wait()
        assert parent.stderr
        parent.stderr.close()
        parent = supervised(kafka, tmp_path, port)
        eventually(lambda: answers(port) and answers(port + 1), 30)
        parent.send_signal(signal.SIGUSR1)
        assert parent.stderr
        counted = (line for line in parent.stderr if "counters" in line)
        assert next(counted)
        assert next(counted)  # for each worker
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(30) == 0
    finally:
        ended(parent)


def ended(parent: subprocess.Popen[Any]) -> None:
    """Kill it with its workers, leaving nothing for a later test to stumble over."""
    if parent.poll() is None:
        for child in psutil.Process(parent.pid).children():
            with suppress(psutil.NoSuchProcess):
                child.kill()
    parent.kill()
    parent.wait()
    if parent.stderr:
        parent.stderr.close()


def both(wire: Wire) -> Any:
    brokers = wire.metadata("q").brokers
    return brokers if len(brokers) == 2 else None


def alive(parent: subprocess.Popen[Any]) -> set[int]:
    return {child.pid for child in psutil.Process(parent.pid).children() if lives(child)}


def lives(child: psutil.Process) -> bool:
    """Whether it is neither dead nor waiting to be reaped; the supervisor reaps while we look."""
    try:
        return bool(child.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def located(kafka: Kafka, port: int) -> None:
    done = run_kproxy(
        "locate", "user-42", "--partition", "3", "--bootstrap-servers", kafka.address,
        "--topic-prefix", "supervised",
    )  # fmt: skip
    shard = shard_of("user-42", 4, 3)
    found = re.fullmatch(
        r"user-42 partition 3: shard (\d) of 4, owner ([12]), address 127\.0\.0\.1:(\d+)\n",
        done.stdout,
    )
    assert found
    assert int(found[1]) == shard
    assert int(found[3]) in (port, port + 1)


def test_a_worker_that_refuses_ends_the_supervisor(kafka: Kafka, tmp_path: Path) -> None:
    make(kafka, "supervised-3", 3)
    parent = supervised(kafka, tmp_path, free_port(2), "--topic-prefix", "supervised-3")
    assert parent.wait(30) == 1
    assert parent.stderr
    lines = parent.stderr.read()
    parent.stderr.close()
    assert "start with --shards 3" in lines
    assert "kproxy: a worker ended with status 1" in lines


def test_several_workers_need_a_cluster(tmp_path: Path) -> None:
    assert "--bootstrap-servers" in refusal(tmp_path, "--workers", "2")
