"""Delayed records with real clients, embedded and on a Kafka: who sends them, who reads them."""

import json
import time
from typing import Any

from tests.clients.calls import consumer, create, producer
from tests.clients.libraries.test_kcat import kcat
from tests.forked import run_kproxy
from tests.harness import Served, eventually, java, run_java
from tests.workers import Site


def described(site: Site, queue: str) -> dict[str, Any]:
    done = run_kproxy("describe", queue, "--json", "--bootstrap-server", site.address)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read(site: Site, queue: str, count: int) -> list[dict[str, Any]]:
    said = kcat(site, "-C", "-t", queue, "-c", str(count), "-q", "-J")
    return [json.loads(line) for line in said.splitlines()]


def test_kcat_sends_what_is_for_later(site: Site, queue: str) -> None:
    create(site.address, queue, kproxy_delay="header")
    began_ms = int(time.time() * 1000)
    kcat(site, "-P", "-t", queue, "-H", "kproxy.delay-ms=1500", stdin="later\n")
    kcat(site, "-P", "-t", queue, stdin="now\n")
    found = {one["payload"]: one for one in read(site, queue, 2)}
    assert (found["now"]["tstype"], found["later"]["tstype"]) == ("create", "logappend")
    assert found["later"]["headers"] == ["kproxy.delay-ms", "1500"]
    assert found["later"]["ts"] >= began_ms + 1500
    assert sorted(one["offset"] for one in found.values()) == [0, 1]


def test_java_sends_and_reads(site: Site, queue: str) -> None:
    create(site.address, queue, kproxy_delay="header", partitions=2)
    lines = "".join(f"kproxy.delay-ms:{ms}\tk{ms}\tv{ms}\n" for ms in (1200, 0, 600))
    java(
        "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", site.address, "--topic",
        queue, "--reader-property", "parse.headers=true", "--reader-property", "parse.key=true",
        stdin=lines,
    )  # fmt: skip
    said = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", site.address,
        "--topic", queue, "--from-beginning", "--max-messages", "3", "--timeout-ms", "30000",
    )  # fmt: skip
    assert sorted(said.split()) == ["v0", "v1200", "v600"]


def test_librdkafka_and_a_group(site: Site, queue: str) -> None:
    create(site.address, queue, kproxy_delay_ms=1000, partitions=3)
    client = producer(site.address, enable_idempotence=True)
    failed: list[object] = []

    def delivered(error: object, message: object) -> None:
        if error:
            failed.append(error)

    for number in range(300):
        client.produce(queue, b"%d" % number, partition=number % 3, on_delivery=delivered)
    assert client.flush(30) == 0
    assert not failed
    sent_ms = int(time.time() * 1000)
    reader = consumer(site.address, queue, queue)
    found: list[list[int]] = [[], [], []]
    until = time.monotonic() + 30
    while sum(map(len, found)) < 300:
        assert time.monotonic() < until
        for one in reader.consume(100, 0.2):
            assert one.error() is None
            found[one.partition() or 0].append(int(one.value() or b""))
            assert one.timestamp()[1] > sent_ms - 30_000
    reader.close()
    assert found == [list(range(index, 300, 3)) for index in range(3)]


def test_describe_shows_what_waits(site: Site, queue: str) -> None:
    create(site.address, queue, kproxy_delay="header", partitions=3)
    at_ms = int(time.time() * 1000) + 3_600_000
    kcat(site, "-P", "-t", queue, "-p", "1", "-H", f"kproxy.deliver-at={at_ms}", stdin="a\nb\n")
    kcat(site, "-P", "-t", queue, "-p", "2", "-H", f"kproxy.deliver-at={at_ms + 5}", stdin="c\n")
    kcat(site, "-P", "-t", queue, "-p", "2", "-H", f"kproxy.deliver-at={at_ms + 9}", stdin="d\n")
    assert described(site, queue)["waiting"] == [
        {"partition": 1, "records": 2, "next_ms": at_ms},
        {"partition": 2, "records": 2, "next_ms": at_ms + 5},
    ]
    done = run_kproxy("describe", queue, "--bootstrap-server", site.address)
    assert "WAITING" in done.stdout
    kcat(site, "-P", "-t", queue, "-p", "0", "-H", "kproxy.delay-ms=200", stdin="e\n")
    eventually(lambda: kcat(site, "-C", "-t", queue, "-e", "-q") == "e\n")
    assert [one["partition"] for one in described(site, queue)["waiting"]] == [1, 2]


def test_kafkas_tool_sets_a_delay(server: Served, queue: str) -> None:
    site = server
    create(site.address, queue)
    tool = "kafka.admin.ConfigCommand"
    where = ("--bootstrap-server", site.address, "--entity-type", "topics", "--entity-name", queue)
    java(tool, *where, "--alter", "--add-config", "kproxy.delay.ms=500")
    assert "kproxy.delay.ms=500" in java(tool, *where, "--describe")
    kcat(site, "-P", "-t", queue, stdin="v\n")
    (one,) = read(site, queue, 1)
    assert (one["payload"], one["tstype"]) == ("v", "logappend")
    for config, said in (
        ("kproxy.delay.ms=-1", "whole number"), ("kproxy.delay=maybe", "none or header"),
        ("kproxy.delay.ms=99999999999", "kproxy.delay.ms.max"),
    ):  # fmt: skip
        done = run_java(tool, *where, "--alter", "--add-config", config)
        assert said in done.stdout + done.stderr
