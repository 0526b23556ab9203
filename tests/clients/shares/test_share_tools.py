"""Kafka's tools of share groups: kafka-share-groups, its consumers, kafka-configs of groups."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.clients.calls import create
from tests.clients.shares.members import (
    FLAGS,
    RELEASE,
    configure,
    drain,
    member,
    produce,
    rest,
    say,
    take,
)
from tests.harness import java, run_java
from tests.workers import Site

__all__ = ["FLAGS"]

TOOLS = "org.apache.kafka.tools."
GROUPS = f"{TOOLS}consumer.group.ShareGroupCommand"
CONSOLE = f"{TOOLS}consumer.ConsoleShareConsumer"
VERIFIABLE = f"{TOOLS}VerifiableShareConsumer"
CONFIGS = "kafka.admin.ConfigCommand"


def groups(site: Site, *arguments: str) -> str:
    return java(GROUPS, "--bootstrap-server", site.address, *arguments)


def words(printed: str) -> Iterator[list[str]]:
    """Return the lines of a table, but for its head."""
    for line in printed.splitlines():
        if line and not line.startswith("GROUP "):
            yield line.split()


def starts(site: Site, queue: str) -> dict[int, tuple[int, int]]:
    """Start and lag by partition, of the group with the queue's name."""
    described = words(groups(site, "--describe", "--group", queue))
    return {int(w[2]): (int(w[3]), int(w[4])) for w in described if w[:2] == [queue, queue]}


def fill(site: Site, queue: str) -> None:
    create(site.address, queue, partitions=2)
    configure(site.address, queue)
    produce(site.address, queue, [b"%d" % number for number in range(6)], partitions=2)


def test_a_group_is_listed_and_described(site: Site, queue: str) -> None:
    fill(site, queue)
    with closing(member(site.address, queue, queue, **{"client.id": "mine"})) as consumer:
        drain(consumer, lambda some: len(some) == 6)
        assert queue in groups(site, "--list").split()
        assert [queue, "Stable"] in list(words(groups(site, "--list", "--state", "stable")))
        (of_member,) = words(groups(site, "--describe", "--group", queue, "--members"))
        assert of_member[0] == queue
        assert of_member[2:] == ["/127.0.0.1", "mine", "2", f"{queue}:0,1"]
        (state,) = words(groups(site, "--describe", "--group", queue, "--state"))
        assert state[-2:] == ["Stable", "1"]
        assert starts(site, queue) == {0: (3, 0), 1: (3, 0)}
        everywhere = java(f"{TOOLS}GroupsCommand", "--bootstrap-server", site.address, "--list",
                          "--share")  # fmt: skip
        assert [queue, "Share", "share"] in list(words(everywhere))
    assert "Empty" in groups(site, "--describe", "--group", queue, "--state")


def test_offsets_are_reset_and_deleted_and_so_are_groups(site: Site, queue: str) -> None:
    fill(site, queue)
    reset = ("--reset-offsets", "--group", queue)
    with closing(member(site.address, queue, queue)) as consumer:
        drain(consumer, lambda some: len(some) == 6)
        busy = run_java(GROUPS, "--bootstrap-server", site.address, *reset, "--all-topics",
                        "--to-earliest", "--execute")  # fmt: skip
        assert "not empty" in busy.stdout + busy.stderr
        assert "is not EMPTY" in groups(site, "--delete", "--group", queue)
        refused = groups(site, "--delete-offsets", "--group", queue, "--topic", queue)
        assert "The group is not empty" in refused
    groups(site, *reset, "--topic", queue, "--to-earliest", "--dry-run")
    assert starts(site, queue) == {0: (3, 0), 1: (3, 0)}
    groups(site, *reset, "--topic", f"{queue}:1", "--to-earliest", "--execute")
    assert starts(site, queue) == {0: (3, 0), 1: (0, 3)}
    groups(site, *reset, "--topic", f"{queue}:0", "--to-datetime", "2001-01-01T00:00:00.000",
           "--execute")  # fmt: skip
    assert starts(site, queue) == {0: (0, 3), 1: (0, 3)}
    groups(site, *reset, "--topic", f"{queue}:1", "--to-latest", "--execute")
    assert starts(site, queue) == {0: (0, 3), 1: (3, 0)}
    assert rest(site.address, queue, queue) == [(0, b"0", 1), (1, b"2", 1), (2, b"4", 1)]
    deleted = groups(site, "--delete-offsets", "--group", queue, "--topic", queue)
    assert "Successful" in deleted
    assert starts(site, queue) == {}
    assert "was successful" in groups(site, "--delete", "--group", queue)
    assert queue not in groups(site, "--list").split()


def test_the_console_consumer_accepts_releases_and_rejects(site: Site, queue: str) -> None:
    create(site.address, queue)
    configure(site.address, queue)
    at = ("--bootstrap-server", site.address, "--topic", queue, "--group", queue, "--timeout-ms",
          "30000", "--formatter-property", "print.delivery=true")  # fmt: skip
    produce(site.address, queue, [b"a", b"b", b"c"])
    given = java(CONSOLE, *at, "--max-messages", "1", "--release")
    assert given.split() == ["Delivery:1", "a"]
    given = java(CONSOLE, *at, "--max-messages", "1", "--reject")
    assert given.split() == ["Delivery:2", "a"]
    given = java(CONSOLE, *at, "--max-messages", "2")
    assert [line.split()[-1] for line in given.splitlines()] == ["b", "c"]
    assert rest(site.address, queue, queue) == []


@pytest.mark.parametrize("mode", ["auto", "sync", "async"])
def test_the_verifiable_consumer(site: Site, queue: str, mode: str) -> None:
    create(site.address, queue)
    produce(site.address, queue, [b"%d" % number for number in range(30)])
    printed = java(
        VERIFIABLE, "--bootstrap-server", site.address, "--topic", queue, "--group-id", queue,
        "--max-messages", "30", "--offset-reset-strategy", "earliest", "--acknowledgement-mode",
        mode,
    )  # fmt: skip
    events = [json.loads(line) for line in printed.splitlines()]
    acknowledged: set[int] = set()
    for event in events:
        if event["name"] == "offsets_acknowledged":
            assert event["success"]
            for part in event["partitions"]:
                acknowledged.update(part["offsets"])
    assert acknowledged == set(range(30))
    assert rest(site.address, queue, queue) == []


def test_settings_of_a_group_by_kafka_configs(site: Site, queue: str) -> None:
    create(site.address, queue)
    at = ("--bootstrap-server", site.address, "--entity-type", "groups", "--entity-name", queue)
    wanted = "share.delivery.count.limit=2,share.auto.offset.reset=earliest"
    assert f"group {queue}" in java(CONFIGS, *at, "--alter", "--add-config", wanted)
    described = java(CONFIGS, *at, "--describe")
    for setting in wanted.split(","):
        assert setting in described
    produce(site.address, queue, [b"poison"])
    with closing(member(site.address, queue, queue)) as consumer:
        for count in (1, 2):
            (message,) = take(consumer, 1)
            assert message.delivery_count() == count
            say(consumer, [message], RELEASE)
    assert rest(site.address, queue, queue) == []
    java(CONFIGS, *at, "--alter", "--delete-config", "share.delivery.count.limit")
    assert "share.delivery.count.limit" not in java(CONFIGS, *at, "--describe")
    for wrong in ("share.delivery.count.limit=99", "share.no.such=1"):
        refused = run_java(CONFIGS, *at, "--alter", "--add-config", wrong)
        assert refused.returncode
        assert wrong.split("=")[0] in refused.stdout + refused.stderr
