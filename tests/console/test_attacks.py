"""Attacks on the console, and on it by way of the kproxy that it shows."""

import socket
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from kproxy.console.app import ACTIONS, PAGES
from kproxy.console.sessions import Sessions
from kproxy.tools.client import Client
from kproxy.tools.records import letters
from kproxy.tools.records.letters import sample
from tests.clients.transactions.calls import transactional
from tests.console.serving import WAIT_S, Browser, console
from tests.console.test_dead import bury
from tests.console.test_pages import admin, make
from tests.console.test_sessions import Clock, connections
from tests.harness import Served, eventually

__all__ = ["admin"]
SHOWN = """</title></td><script>alert(1)</script><img src=x onerror=alert(1)>'\""""
EVIL, PLACED = (f"{SHOWN}\u202e\x1b[31m{null}{{{{7*7}}}}" for null in ("\x00", ""))
"""The second has no null, at which a name of the client library ends."""


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[Browser]:
    with console((server.host, server.port)) as shown:
        yield shown


def test_hostile_texts_are_text_on_every_page(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    """Keys, values, headers, group ids, client ids, transactional ids, settings."""
    dead = "dlq.attacked"
    make(admin, dead, errors_deadletterqueue_group_enable="true", kproxy_delay="header")
    bury(server, dead, PLACED, 1, **{PLACED: PLACED, "kproxy.dlq.cause": EVIL})
    to = {"bootstrap.servers": server.address, "log_level": 0}
    writer = Producer(to)
    writer.produce(dead, EVIL.encode(), key=EVIL.encode())
    writer.produce(dead, b'{"a": "' + EVIL.encode("unicode_escape") + b'"}', key=b"\xff\x00")
    writer.produce(dead, EVIL, EVIL, headers={"kproxy.delay-ms": "86400000"})
    assert writer.flush(WAIT_S) == 0
    changed = browser.post(f"/queues/{dead}/settings", name="kproxy.redrive.job", value=PLACED)
    assert changed.status == 409  # it is not printable
    assert "script" not in changed.tags
    reader = Consumer({**to, "group.id": PLACED, "client.id": PLACED,
                       "auto.offset.reset": "earliest"})  # fmt: skip
    producer = transactional(server.address, PLACED)
    producer.begin_transaction()
    producer.produce(dead, b"open")
    producer.flush(WAIT_S)
    try:
        reader.subscribe([dead])
        eventually(lambda: reader.poll(0.5) is not None, WAIT_S)
        reader.commit(asynchronous=False)
        seen = ""
        for path in PAGES:
            query = {"id": PLACED, "prefix": "", "which": "all"}
            page = browser.get(path.replace("{queue}", dead), **query)
            assert page.status < 500, path
            assert not {"script", "img"} & page.tags, path
            assert not {"\u202e", "\x1b", "\x00"} & set(page.body), path
            seen += page.text
        for path, sought in (("/groups", "{{7*7}} classic"), ("/transactions", "{{7*7}} Ongoing")):
            page = browser.get(path)
            assert sought in page.text
            assert r"\u202e\x1b[31m" in page.text
        assert seen.count(SHOWN) >= 8
    finally:
        reader.close()
        producer.abort_transaction(WAIT_S)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "null"}, {"Origin": "http://evil.example"}, {"Origin": "https://localhost:{}"},
     {"Origin": "http://localhost:1"}, {"Origin": "http://localhost:{}.evil.example"},
     {"Origin": "http://localhost:{}", "Sec-Fetch-Site": "cross-site"},
     {"Origin": "http://localhost:{}", "Sec-Fetch-Site": "same-site"},
     {"Sec-Fetch-Site": "none"}, {"Referer": "http://localhost:{}/"}],
)  # fmt: skip
def test_no_form_of_another_page_changes_anything(
    browser: Browser, headers: dict[str, str]
) -> None:
    given = {name: text.format(browser.port) for name, text in headers.items()}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for path in ACTIONS:
        found = browser.send("POST", path.replace("{queue}", "x"), "confirm=x", given | form)
        assert found.status == 403, path
    assert browser.send("PUT", "/queues", "", given).status == 405


@pytest.mark.parametrize("path", sorted(set(ACTIONS) - set(PAGES)))
def test_no_link_changes_anything(browser: Browser, path: str) -> None:
    assert browser.send("GET", path.replace("{queue}", "x")).status in (404, 405)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:{}", "", "localhost:1"])
def test_no_name_of_another_leads_here(browser: Browser, host: str) -> None:
    found = browser.send("GET", "/queues", headers={"Host": host.format(browser.port)})
    assert found.status in (400, 421)
    whole = f"GET http://evil.example/queues HTTP/1.1\r\nHost: {host.format(browser.port)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", browser.port), WAIT_S) as raw:
        raw.sendall(whole.encode())
        assert raw.recv(13)[9:] in (b"400 ", b"421 ")


@pytest.mark.parametrize(
    ("body", "kind"),
    [("x" * (257 << 10), "application/x-www-form-urlencoded"),
     ("&".join(f"f{n}=1" for n in range(300)), "application/x-www-form-urlencoded"),
     ("%ff%fe=%ff", "application/x-www-form-urlencoded"), ("a=1", "text/plain"),
     ("--x\r\n\r\n--x--", "multipart/form-data; boundary=x")],
    ids=["huge", "many fields", "no text", "plain", "parts"],
)  # fmt: skip
def test_a_form_that_no_page_sends_is_refused(browser: Browser, body: str, kind: str) -> None:
    given = {"Content-Type": kind, "Sec-Fetch-Site": "same-origin"}
    assert browser.send("POST", "/queues", body, given).status == 400


def test_a_user_who_logs_in_all_the_time_keeps_no_other_out() -> None:
    """FAULT: 200 logins of one user were all sessions that there may be, for half an hour."""
    known = Sessions(Clock())
    other = known.begin("bertha", connections())
    tokens = [known.begin("anna", connections()) for _ in range(1000)]
    assert known.find(other)
    assert [bool(known.find(one)) for one in tokens[-21:]] == [False] + [True] * 20
    assert known.begin("carla", connections())
    assert len(known) == 22


def test_letters_that_say_very_much_take_no_memory(
    admin: AdminClient, server: Served, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: all letters of a sample, with all that they said, were kept to count them."""
    monkeypatch.setattr(letters, "_VALUES_MAX", 5)
    make(admin, queue)
    for number in range(30):
        bury(server, queue, f"origin-{number}", 1, **{"kproxy.dlq.cause": "x" * 5000})
    with Client((server.host, server.port)) as client:
        found = sample(client, queue, 1000, 7)
        assert (found.counted, found.matching, len(found.letters)) == (30, 30, 7)
        assert found.letters[0].origin == "origin-29"
        assert found.counts["kproxy.dlq.cause"] == [("x" * 200, 30)]
        assert len(found.counts["__dlq.errors.topic"]) == 5
        only = sample(client, queue, 1000, 7, {"__dlq.errors.topic": "origin-3"})
        assert [one.record.offset for one in only.letters] == [3]
        assert (only.counted, only.matching) == (30, 1)
