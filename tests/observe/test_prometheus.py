"""Debian's Prometheus scrapes a served kproxy; every query of the dashboard has an answer."""

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.harness import Served, eventually, need_program
from tests.observe.prometheus import (
    RULES,
    Prometheus,
    fetched,
    panels,
    prometheus,
)
from tests.workers import Workers

FLAGS = ("--http-listen", "127.0.0.1:0", "--metrics-queues", "seen-.*", "--metrics-groups", ".*")


def workers_of(site: Served | Workers) -> list[Served]:
    return site.workers if isinstance(site, Workers) else [site]


def endpoints(site: Served | Workers) -> list[str]:
    events = [worker.event("http_ready") for worker in workers_of(site)]
    return [event["listen"] for event in events if event is not None]


@contextmanager
def load(address: str) -> Iterator[None]:
    """Run a load: records come and go, a group commits, and somebody speaks no Kafka."""
    over = threading.Event()

    def work() -> None:
        producer = Producer({"bootstrap.servers": address, "linger.ms": 1})
        consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "seen-group", "log_level": 0,
             "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
        )  # fmt: skip
        consumer.subscribe(["seen-0", "seen-1"])
        number = 0
        while not over.is_set():
            for _ in range(20):
                producer.produce(f"seen-{number % 2}", b"x" * 100)
                number += 1
            producer.flush(5)
            consumer.consume(100, 0.05)
            host, _, port = address.split(",")[0].rpartition(":")
            if number % 200 == 0:
                with socket.create_connection((host, int(port)), 5) as stranger:
                    stranger.sendall(b"\x00\x00\x00\x08GET / HT")
        consumer.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def unanswered(seen: Prometheus, embedded: bool) -> list[str]:
    """Return queries of the dashboard that have no data (yet)."""
    return [
        f"{title}: {query}"
        for title, targets in panels()
        for query, _ in targets
        if not (embedded and "(on Kafka)" in title) and not seen.query(query)
    ]


def test_every_query_of_the_dashboard_has_an_answer(site: Served | Workers, tmp_path: Path) -> None:
    addresses = endpoints(site)
    with prometheus(tmp_path, addresses) as seen, load(site.address):
        seen.wait_scraped(len(addresses))
        embedded = isinstance(site, Served)
        missing: list[str] = []

        def all_there() -> bool:
            missing[:] = unanswered(seen, embedded)
            return not missing

        try:
            eventually(all_there, 40, 0.5)
        except AssertionError:
            raise AssertionError(f"no data: {missing}") from None
        rules = eventually(lambda: [r for r in seen.rules() if r["health"] == "ok"])
        assert all(rule["health"] == "ok" for rule in seen.rules())
        firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
        assert not firing
        (served,) = seen.query('sum(kproxy_shards{state="served"})')
        assert int(served["value"][1]) == (1 if embedded else 8)
        (queues,) = seen.query("sum(kproxy_queues)")
        assert int(queues["value"][1]) >= 2
        if embedded:  # on Kafka its group and its queue may have different owners
            assert seen.query('kproxy_group_lag_sum{group="seen-group"}')


def test_health(site: Served | Workers) -> None:
    for address in endpoints(site):
        assert fetched(f"http://{address}/livez") == "ok\n"
        assert fetched(f"http://{address}/readyz").startswith("ok, ")
        report: dict[str, Any] = json.loads(fetched(f"http://{address}/healthz"))
        assert report["ready"]
        assert report["reasons"] == []
        assert report["shards"]["served"] >= 1
        assert report["upstream_up"] is (True if isinstance(site, Workers) else None)


@pytest.mark.parametrize("what", [["check", "rules", RULES.name],
                                  ["test", "rules", "alerts_test.yml"]])  # fmt: skip
def test_alerts_are_sound_and_do_what_they_say(what: list[str]) -> None:
    done = subprocess.run(
        [need_program("promtool"), *what], cwd=RULES.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
