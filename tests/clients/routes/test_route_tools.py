"""Routes made, changed and shown with Kafka's tools and `kproxy describe`, on both storages."""

from typing import Any

import pytest
from confluent_kafka import KafkaException

from kproxy.tools.client import Client
from kproxy.tools.views import describe
from tests.clients.calls import alter, create, producer
from tests.clients.groups.test_group_tools import CONFIGS
from tests.clients.routes.calls import delete
from tests.clients.topics.test_commands import lines, run
from tests.clients.topics.test_kafka_tools import TOPICS
from tests.harness import eventually, java, run_java
from tests.workers import Site

TAGGED: list[tuple[str, str | bytes | None]] = [("tag", b"red")]


def told(site: Site, queue: str) -> dict[str, Any]:
    """Return the answer of `kproxy describe --json`, run in this process, as many wait for it."""
    host, _, port = site.address.split(",")[0].rpartition(":")
    with Client((host, int(port))) as client:
        return describe(client, queue).plain()


def described(site: Site, queue: str) -> dict[str, Any]:
    """Return its routes by their target."""
    routes: list[dict[str, Any]] = told(site, queue)["routes"]
    return {route["route"]: route for route in routes}


def landed(site: Site, queue: str, route: str, count: int) -> dict[str, Any]:
    """Return the route once so many records of its source have landed, in all partitions."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = described(site, queue).get(route) or {"partitions": [], "lag": 1}
        done = [part["landed"] for part in found["partitions"]]
        return found if None not in done and sum(done) == count and not found["lag"] else None

    looked: dict[str, Any] = eventually(look, 30)
    return looked


def write(site: Site, queue: str, partitions: int, *keys: bytes | None) -> None:
    client = producer(site.address)
    for number, key in enumerate(keys):
        client.produce(queue, b"v", key, partition=number % partitions, headers=TAGGED)
    assert client.flush(30) == 0


def configure(site: Site, queue: str, settings: str) -> None:
    """Alter settings by kafka-configs: kafka-topics knows the names of Kafka's own alone."""
    at = ("--bootstrap-server", site.address)
    java(CONFIGS, *at, "--alter", "--topic", queue, "--add-config", settings)


def test_made_changed_and_shown(site: Site, queue: str) -> None:
    at, to = ("--bootstrap-server", site.address), f"{queue}-d.{{key}}"
    create(site.address, queue, partitions=2)
    configure(
        site, queue, f"kproxy.route.to={to},kproxy.route.unroutable={queue}-lost,"
        "kproxy.route.configs=[retention.ms:3600000;cleanup.policy:compact,delete]",
    )  # fmt: skip
    shown = java(TOPICS, *at, "--describe", "--topic", queue)
    assert f"kproxy.route.to={to}" in shown
    red = queue + "-red"
    filter_ = "header:tag:red|blue&!header:gone"
    create(site.address, red, kproxy_route_from=queue, kproxy_route_filter=filter_)
    eventually(lambda: f"to {red}" in described(site, queue), 30)
    write(site, queue, 2, b"1", b"2", b"3", None, b"1")
    entrance = landed(site, queue, f"to {to}", 5)
    assert entrance["made"] == 4  # three keys, and what has none
    assert [part["partition"] for part in entrance["partitions"]] == [0, 1]
    assert landed(site, queue, f"to {red}", 5)["made"] == 0
    assert landed(site, red, f"from {queue}", 5)["waits"] is None
    made = told(site, f"{queue}-d.1")
    assert made["settings"] == {"retention.ms": "3600000", "cleanup.policy": "compact,delete"}
    assert made["routes"] == []
    table = run(site, "describe", queue).stdout
    assert f"to {to}" in table
    assert "QUEUES MADE" in table

    listed = lines(site, "queues", "--routes", "--match", f"{queue}.*")
    assert {one["name"]: one["route"]["route"] for one in listed} == {
        queue: f"to {to}", red: f"from {queue}",
    }  # fmt: skip
    assert all(one["route"]["lag"] == 0 for one in listed)
    assert "ROUTE LAG" in run(site, "queues", "--routes", "--match", f"{queue}.*").stdout

    alter(site.address, queue, kproxy_route_queues_max=1, kproxy_route_keep="false")
    alter(site.address, red, kproxy_route_filter="key:eu-|us-")
    assert told(site, red)["settings"]["kproxy.route.filter"] == "key:eu-|us-"
    write(site, queue, 2, b"4", b"5")
    held = eventually(lambda: waiting(site, queue, f"to {to}"), 30)
    assert held["lag"] == 2
    assert "kproxy.route.queues.max" in held["waits"]
    alter(site.address, queue, kproxy_route_queues_max=None)
    assert landed(site, queue, f"to {to}", 7)["waits"] is None
    eventually(lambda: told(site, queue)["partitions"][0]["start"] == 4, 30)
    alter(site.address, red, kproxy_route_from=None, kproxy_route_filter=None)
    assert described(site, red) == {}
    eventually(lambda: list(described(site, queue)) == [f"to {to}"], 30)
    java(CONFIGS, *at, "--alter", "--topic", queue, "--delete-config", "kproxy.route.to")
    eventually(lambda: described(site, queue) == {}, 30)


def test_commands_show_the_keys_that_names_stand_for(site: Site, queue: str) -> None:
    create(site.address, queue, kproxy_route_to=f"{queue}-d.{{key:%}}",
           kproxy_route_unroutable=f"{queue}-lost")  # fmt: skip
    write(site, queue, 1, b"ann@example.com", b"eu/berlin/7")
    landed(site, queue, f"to {queue}-d.{{key:%}}", 2)
    listed = lines(site, "queues", "--entrance", queue)
    assert {one["name"]: one["decoded"] for one in listed} == {
        f"{queue}-d.ann_40example.com": "ann@example.com",
        f"{queue}-d.eu_2Fberlin_2F7": "eu/berlin/7",
    }
    shown = run(site, "queues", "--entrance", queue).stdout
    assert "STANDS FOR" in shown
    assert "eu/berlin/7" in shown
    described = run(site, "describe", f"{queue}-d.eu_2Fberlin_2F7", "--entrance", queue).stdout
    assert "stands for eu/berlin/7" in described
    refused = run(site, "queues", "--entrance", f"{queue}-d.ann_40example.com")
    assert "name the queue that the records come in by" in refused.stderr


def waiting(site: Site, queue: str, route: str) -> dict[str, Any] | None:
    found: dict[str, Any] = described(site, queue)[route]
    return found if found["waits"] and found["lag"] == 2 else None


def test_a_source_that_is_gone_is_said_to_be(site: Site, queue: str) -> None:
    red = queue + "-red"
    create(site.address, queue, red)
    alter(site.address, red, kproxy_route_from=queue)
    delete(site.address, queue)
    found = eventually(lambda: gone(site, red, queue), 30)
    assert found["partitions"] == []
    alter(site.address, red, retention_ms=5)


def gone(site: Site, red: str, queue: str) -> dict[str, Any] | None:
    found: dict[str, Any] = described(site, red)[f"from {queue}"]
    return found if found["waits"] == f"there is no queue {queue}" else None


WRONG = [
    ("kproxy.route.to={key}", "kproxy.route.to={key}: it must begin with a text that queue"),
    ("kproxy.route.to=d-{key}", "kproxy.route.to needs kproxy.route.unroutable: name a queue"),
    ("kproxy.route.to=d-\x1bc{key}", r"kproxy.route.to=d-\x1bc{key}: it must not have"),
    ("kproxy.route.from=nowhere", "kproxy.route.from=nowhere: there is no such queue: create it"),
    ("kproxy.route.filter=tag", "kproxy.route.filter=tag: a condition must be header:NAME:VALUE"),
    ("kproxy.route.keep=no", "kproxy.route.keep=no: it must be true or false"),
    ("kproxy.route.configs=no.such:1", "kproxy.route.configs: Unknown topic config name: no.such"),
]


def test_error_is_a_line(site: Site, queue: str) -> None:
    for config, said in WRONG:
        with pytest.raises(KafkaException) as refused:
            create(site.address, queue, **dict([config.split("=", 1)]))
        error = refused.value.args[0]
        assert error.name() == "INVALID_CONFIG"
        assert error.str().startswith(said)
        assert error.str().isprintable()


def test_error_is_a_line_of_kafka_configs(site: Site, queue: str) -> None:
    create(site.address, queue)
    at = ("--bootstrap-server", site.address, "--alter", "--topic", queue)
    own = (f"kproxy.route.to=d-{{key}},kproxy.route.unroutable={queue}", "is this queue itself")
    for config, said in (own, WRONG[2]):
        done = run_java(CONFIGS, *at, "--add-config", config)
        assert done.returncode
        shown = [line for line in (done.stdout + done.stderr).splitlines() if said in line]
        assert shown, done
        assert "InvalidConfigurationException: kproxy.route." in shown[0], done
