"""Pages of a console about a served kproxy that asks for no login."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException
from unittest.mock import patch

import pytest

pytest.importorskip("starlette")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.console.serving import WAIT_S, Browser, console
from tests.harness import Served, eventually, free_port


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[Browser]:
    with console((server.host, server.port)) as shown:
        yield shown


@pytest.fixture(scope="module")
def admin(server: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.address, "log_level": 0})


def make(admin: AdminClient, *names: str, partitions: int = 1, **settings: str) -> None:
    made = [NewTopic(name, partitions, config={k.replace("_", "."): v for k, v in settings.items()})
            for name in names]  # fmt: skip
    for future in admin.create_topics(made).values():
        future.result(WAIT_S)


def fill(server: Served, queue: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
    for value in values:
        producer.produce(queue, value, key=b"k", partition=0)
    assert producer.flush(WAIT_S) == 0


def test_overview_shows_workers_and_groups(browser: Browser, server: Served) -> None:
    page = browser.get("/")
    assert page.status == 200
    assert f"localhost:{server.port}" in page.text or f"127.0.0.1:{server.port}" in page.text
    assert "(controller)" in page.text
    assert "script" not in page.tags


def test_queues_are_found_by_their_beginning_a_page_at_a_time(
    browser: Browser, admin: AdminClient, server: Served
) -> None:
    names = [f"pages.meter-{number:03}" for number in range(120)]
    make(admin, *names, "pages.metes", "pages.metfs")
    fill(server, names[0], b"one", b"two")
    first = browser.get("/queues", prefix="pages.meter-")
    seen = [name for name in names if name in first.text]
    assert seen == names[:50]
    assert "pages.meter-000 1 2" in first.text  # partitions and records
    second = browser.follow(first, "next ›")
    third = browser.follow(second, "next ›")
    assert [name for name in names if name in second.text] == names[50:100]
    assert [name for name in names if name in third.text] == names[100:]
    assert "next ›" not in third.text
    assert "metes" not in third.text
    assert "You see no such queue" in browser.get("/queues", prefix="pages.none").text


def test_queues_are_found_by_a_part_of_their_names(browser: Browser, admin: AdminClient) -> None:
    make(admin, "pages.a-needle-1", "pages.b-needle-2", "pages.c")
    page = browser.get("/queues", contains="needle", prefix="pages.")
    assert "pages.a-needle-1" in page.text
    assert "pages.b-needle-2" in page.text
    assert "pages.c" not in page.text


def test_queue_shows_partitions_and_settings(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue, partitions=3, retention_ms="86400000")
    fill(server, queue, b"x" * 100)
    page = browser.get(f"/queues/{queue}")
    assert page.status == 200
    assert "1 records" in page.text
    assert "retention.ms 86400000" in page.text
    assert "3 partitions" in page.text
    assert "Nothing waits" in browser.get(f"/queues/{queue}/waiting").text
    assert "You see none" in browser.get(f"/queues/{queue}/readers").text


def test_queue_of_many_partitions_is_shown_in_parts(
    browser: Browser, admin: AdminClient, queue: str
) -> None:
    make(admin, queue, partitions=201)
    page = browser.get(f"/queues/{queue}")
    assert "201 partitions" in page.text
    rest = browser.get(f"/queues/{queue}", **{"from": 200})
    assert len(rest.body) < len(page.body) / 3


def test_routes_are_found_among_other_queues(browser: Browser, admin: AdminClient) -> None:
    make(admin, "routed.a", "routed.c")
    to = {"kproxy_route_to": "routed.of-{key}", "kproxy_route_unroutable": "routed.c"}
    make(admin, "routed.b", **to)
    page = browser.get("/routes", prefix="routed.")
    assert "routed.b to routed.of-{key} 0" in page.text
    assert "routed.a" not in page.text
    assert "You see none" in browser.get("/routes", prefix="routed.c").text


def test_a_page_refreshes_where_that_is_asked_for(browser: Browser) -> None:
    page = browser.get("/queues", prefix="pages.none&")
    assert "refresh" not in page.body.partition("</head>")[0]
    page = browser.follow(page, "5 s")
    assert '<meta http-equiv="refresh" content="5">' in page.body
    assert "begin with pages.none&" in page.text
    assert "refresh" not in browser.follow(page, "off").body.partition("</head>")[0]
    assert browser.get("/", refresh="0").status == 400


@pytest.mark.parametrize("path", ["/queues/no-such-queue", "/queues/no/such", "/nothing"])
def test_no_such_page_is_said_in_words(browser: Browser, path: str) -> None:
    page = browser.get(path)
    assert page.status == 404
    assert "there is no" in page.text


def test_addresses_that_no_page_links_to(browser: Browser, admin: AdminClient, queue: str) -> None:
    assert browser.get("/queues/x/waiting", **{"from": "-1"}).status == 400
    assert browser.get("/queues", prefix="x" * 5000).status == 400
    make(admin, queue)
    for at in ("@" + "9" * 24, "@²"):
        assert browser.get(f"/queues/{queue}/records", at=at).status == 400
    assert browser.get("/queues?path=x&self=y").status == 200
    evil = "<script>\x1b\u202e</script>"
    page = browser.get("/queues", prefix=evil)
    assert page.status == 200
    assert "script" not in page.tags
    assert r"<script>\x1b\u202e</script>" in page.text
    assert browser.send("GET", "/static/console.css").status == 200
    assert browser.send("GET", "/static/../app.py").status == 404


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_browser_that_does_not_ask_is_disconnected(said: bytes) -> None:
    with console(("127.0.0.1", free_port()), times={"HEAD_S": 0.05}) as browser:
        with socket.create_connection(("127.0.0.1", browser.port), WAIT_S) as silent:
            silent.sendall(said)
            with suppress(ConnectionResetError):
                assert silent.recv(1) == b""


def test_one_browser_too_many_is_turned_away() -> None:
    with patch("kproxy.console.serving._CONNECTIONS_MAX", 2), ExitStack() as stack:
        browser = stack.enter_context(console(("127.0.0.1", free_port())))
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", browser.port), WAIT_S))
        eventually(lambda: _is_turned_away(browser), WAIT_S)  # once both are there


def _is_turned_away(browser: Browser) -> bool:
    try:
        browser.get("/static/console.css")
    except (ConnectionError, HTTPException):
        return True
    return False


def test_a_lost_kproxy_is_a_banner() -> None:
    with console(("127.0.0.1", free_port())) as browser:
        page = browser.get("/")
    assert page.status == 502
    assert "nothing serves at" in page.text
    assert "Traceback" not in page.body
