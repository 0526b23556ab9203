"""Queues and records that go by themselves, with kcat and Kafka's own tools.

`on_kafka/test_life.py` has the other ways, with librdkafka, and what faults do.
"""

import subprocess
import time

import pytest

from tests.clients.calls import WAIT_S, admin, alter, bounds, create
from tests.clients.groups.test_group_tools import CONFIGS
from tests.clients.libraries.test_kcat import kcat
from tests.clients.topics.test_kafka_tools import CONSUMER, PRODUCER, TOPICS
from tests.harness import eventually, java, need_program
from tests.workers import Site

pytestmark = pytest.mark.long

IDLE_S = 60  # the least
EXPIRES = {"kproxy.expire.idle.ms": IDLE_S * 1000, "kproxy.expire.with.records": "true"}
READER = ("--reader-property", "parse.headers=true", "--reader-property", "parse.key=true",
          "--reader-property", "null.marker=NULL")  # fmt: skip


def say(site: Site, queue: str, *lines: str) -> None:
    """Write records of headers, key and value by Java's console producer."""
    at = ("--bootstrap-server", site.address, "--topic", queue)
    java(PRODUCER, *at, *READER, stdin="".join(f"{line}\n" for line in lines))


def heard(site: Site, queue: str, count: int) -> list[str]:
    said = java(
        CONSUMER, "--bootstrap-server", site.address, "--topic", queue, "--from-beginning",
        "--max-messages", str(count), "--timeout-ms", "30000",
    )  # fmt: skip
    return said.split()


def listed(site: Site) -> tuple[list[str], str]:
    """Return the names that kafka-topics lists, and what kcat lists."""
    return java(TOPICS, "--bootstrap-server", site.address, "--list").split(), kcat(site, "-L")


def test_reply_queues_go_once_nobody_uses_them(site: Site, queue: str) -> None:
    """One of which kafka-configs says so, and one that a record of kcat's makes by a route."""
    mine, made, kept = f"{queue}-java", f"{queue}-to-kcat", f"{queue}-kept"
    at = ("--bootstrap-server", site.address)
    create(site.address, queue, mine, f"{queue}.lost", kept)
    configs = ",".join(f"{name}={value}" for name, value in EXPIRES.items())
    java(CONFIGS, *at, "--alter", "--topic", mine, "--add-config", configs)
    alter(site.address, queue, **{
        "kproxy.route.to": f"{queue}-to-{{key}}", "kproxy.route.unroutable": f"{queue}.lost",
        "kproxy.route.configs": ";".join(f"{name}:{value}" for name, value in EXPIRES.items()),
    })  # fmt: skip
    kcat(site, "-P", "-t", queue, "-K:", stdin="kcat:42\n")
    client = admin(site.address)
    eventually(lambda: made in client.list_topics(timeout=WAIT_S).topics, 30)
    eventually(lambda: bounds(site.address, made) == (0, 1), 30)
    assert kcat(site, "-C", "-t", made, "-e", "-q") == "42\n"
    kcat(site, "-P", "-t", mine, stdin="43\n")
    assert heard(site, mine, 1) == ["43"]
    began = time.monotonic()

    def gone() -> bool:
        names, said = listed(site)
        assert kept in names
        left = {one for one in (mine, made) if one in names or f'"{one}"' in said}
        assert not left or time.monotonic() - began < 2.5 * IDLE_S, left
        return not left

    assert {mine, made} <= set(listed(site)[0])
    eventually(gone, 3 * IDLE_S, 2)
    assert time.monotonic() - began > IDLE_S - 20


def test_java_replaces_and_cancels_what_waits(site: Site, queue: str) -> None:
    create(site.address, queue, kproxy_delay="header", kproxy_delay_replace="key")
    hour = "kproxy.delay-ms:3600000"
    say(site, queue, f"{hour}\ttea\told", f"{hour}\tmilk\told")
    say(site, queue, "kproxy.delay-ms:500\ttea\tnew")
    say(site, queue, "a:b\tmilk\tNULL", "kproxy.delay-ms:1500\tsugar\tlate")
    assert heard(site, queue, 2) == ["new", "late"]
    say(site, queue, "kproxy.every:1000\ttick\tgo")
    assert heard(site, queue, 4) == ["new", "late", "go", "go"]
    say(site, queue, "a:b\ttick\tNULL")
    end = bounds(site.address, queue)[1]
    time.sleep(2.5)
    assert bounds(site.address, queue) == (0, end)


def test_kcat_writes_where_the_end_is_as_it_expects(site: Site, queue: str) -> None:
    create(site.address, queue, kproxy_append_if="header")
    kcat(site, "-P", "-t", queue, "-H", "kproxy.if-end-offset=0", stdin="first\n")
    late = subprocess.run(
        [need_program("kcat"), "-b", site.address, "-P", "-t", queue, "-H",
         "kproxy.if-end-offset=0"],
        input="late\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "failed to validate record" in late.stderr
    kcat(site, "-P", "-t", queue, "-H", "kproxy.if-end-offset=1", stdin="second\n")
    assert kcat(site, "-C", "-t", queue, "-e", "-q") == "first\nsecond\n"
