"""Records of a served kproxy on the console's pages."""

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.clients.transactions.calls import transactional
from tests.console.serving import WAIT_S, Browser, console
from tests.console.test_pages import admin, make
from tests.harness import Served

__all__ = ["admin"]
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'\x1b[2J\u202e"
EVIL_SHOWN = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'\\x1b[2J\\u202e"


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[Browser]:
    with console((server.host, server.port)) as shown:
        yield shown


@pytest.fixture
def producer(server: Served) -> Producer:
    return Producer({"bootstrap.servers": server.address, "log_level": 0, "linger.ms": 50})


def test_latest_records_come_first_and_lead_to_those_before(
    browser: Browser, admin: AdminClient, producer: Producer, queue: str
) -> None:
    make(admin, queue)
    for number in range(120):
        producer.produce(queue, f"value-{number:03}".encode())
    assert producer.flush(WAIT_S) == 0
    values = [f"value-{number:03}" for number in range(120)]
    latest = browser.get(f"/queues/{queue}/records")
    assert [v for v in values if v in latest.text] == values[70:]
    assert latest.text.index("value-119") < latest.text.index("value-070")
    before = browser.follow(latest, "‹ before")
    assert [v for v in values if v in before.text] == values[20:70]
    after = browser.follow(browser.get(f"/queues/{queue}/records", at="3"), "from 53 ›")
    assert [v for v in values if v in after.text] == values[53:103]
    start = browser.get(f"/queues/{queue}/records", at="start", partition=0)
    assert [v for v in values if v in start.text] == values[:50]
    assert browser.get(f"/queues/{queue}/records", at="nonsense").status == 400


def test_records_are_found_by_key_header_and_time(
    browser: Browser, admin: AdminClient, producer: Producer, queue: str
) -> None:
    make(admin, queue, partitions=3)
    now = int(time.time() * 1000)
    for number in range(60):
        producer.produce(
            queue, f"value-{number:02}".encode(), key=f"key-{number % 20}".encode(),
            headers=[("colour", b"red" if number == 7 else b"blue")],
            timestamp=now - 3_600_000 if number < 30 else now,
        )  # fmt: skip
    assert producer.flush(WAIT_S) == 0
    path = f"/queues/{queue}/records"
    text = browser.get(path, key="key-7").text
    assert [n for n in range(60) if f"value-{n:02}" in text] == [7, 27, 47]
    text = browser.get(path, key="0x6b65792d37").text
    assert [n for n in range(60) if f"value-{n:02}" in text] == [7, 27, 47]
    text = browser.get(path, header="colour=red").text
    assert [n for n in range(60) if f"value-{n:02}" in text] == [7]
    assert "No record here" in browser.get(path, header="size").text
    text = browser.get(path, at="@-30m").text
    assert [n for n in range(60) if f"value-{n:02}" in text] == [*range(30, 60)]
    assert browser.get(path, partition=9).status == 404


def test_hostile_records_are_text(
    browser: Browser, admin: AdminClient, producer: Producer, queue: str
) -> None:
    make(admin, queue)
    evil = EVIL.encode()
    producer.produce(queue, evil, key=evil, headers=[(EVIL, evil), (EVIL, b"\xff"), ("n", None)])
    producer.produce(queue, b'{"evil": "</pre><script>"}')
    producer.produce(queue, b"\x00\xff" * 100_000)
    assert producer.flush(WAIT_S) == 0
    listed = browser.get(f"/queues/{queue}/records")
    assert EVIL_SHOWN in listed.text
    pages = [browser.get(f"/queues/{queue}/record", offset=offset) for offset in range(3)]
    assert pages[0].text.count(EVIL_SHOWN) == 5  # the key, the value, a header, two names
    assert '"evil": "</pre><script>"' in pages[1].text
    assert "134,464 bytes more are not shown" in pages[2].text
    for page in (listed, *pages):
        assert page.status == 200
        assert not {"script", "img"} & page.tags
        assert not set(page.body) & set("\x1b\u202e\x00")
    assert "3c 73 63 72" in browser.get(f"/queues/{queue}/record", offset=0, form="hex").text


def test_only_committed_records_are_shown(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue)
    producer = transactional(server.address, queue, **{"transaction.timeout.ms": 800_000})
    for value in (b"first-committed", b"then-aborted", b"last-committed"):
        producer.begin_transaction()
        producer.produce(queue, value, partition=0)
        assert producer.flush(WAIT_S) == 0
        (producer.abort_transaction if b"aborted" in value else producer.commit_transaction)(WAIT_S)
    producer.begin_transaction()
    producer.produce(queue, b"still-open", partition=0)
    assert producer.flush(WAIT_S) == 0
    for at in ("", "start", "2", "-50"):
        text = browser.get(f"/queues/{queue}/records", at=at).text
        assert "then-aborted" not in text
        assert "still-open" not in text
        assert "last-committed" in text
    open_ones = browser.get("/transactions", prefix=queue).text
    assert f"{queue} Ongoing" in open_ones
    assert f"{queue} 0" in open_ones
    assert "You see none" in browser.get("/transactions", prefix=f"not-{queue}").text
    assert browser.get(f"/queues/{queue}/record", offset=2).status == 404
    assert browser.get(f"/queues/{queue}/record", offset=4).status == 200
    producer.abort_transaction(WAIT_S)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_packed_records_are_read_and_what_unpacks_to_very_much_is_left_out(
    browser: Browser, admin: AdminClient, server: Served, queue: str, codec: str
) -> None:
    make(admin, queue)
    producer = Producer({
        "bootstrap.servers": server.address, "log_level": 0, "compression.type": codec,
        "linger.ms": 100, "message.max.bytes": 40 << 20,
    })  # fmt: skip
    producer.produce(queue, b"small " * 100)
    assert producer.flush(WAIT_S) == 0
    if codec == "zstd":
        producer.produce(queue, bytes(20 << 20))
        assert producer.flush(WAIT_S) == 0
    page = browser.get(f"/queues/{queue}/records")
    assert "small small" in page.text
    assert ("1 are left out" in page.text or "left out: the records unpack" in page.text) == (
        codec == "zstd"
    )


def test_hidden_contents_are_shown_by_no_page(
    server: Served, admin: AdminClient, producer: Producer, queue: str
) -> None:
    make(admin, queue)
    producer.produce(queue, b"private-value", key=b"private-key", headers=[("private-name", b"v")])
    assert producer.flush(WAIT_S) == 0
    with console((server.host, server.port), hide_contents=True) as browser:
        for path in ("records", "record"):
            page = browser.get(f"/queues/{queue}/{path}")
            assert page.status == 200
            assert "private" not in page.body
        assert browser.get(f"/queues/{queue}/records", key="private-key").status == 400
        assert browser.get(f"/queues/{queue}/records", header="private-name").status == 400
