"""Changes that are made by the console's forms, on a served kproxy."""

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from kproxy.console.app import ACTIONS
from kproxy.tools.records.send import _murmur2, partition_of
from tests.clients.transactions.calls import transactional
from tests.console.serving import WAIT_S, Browser, Shown, console
from tests.console.test_groups import commit
from tests.console.test_pages import admin, fill, make
from tests.harness import Served, eventually

__all__ = ["admin"]


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[Browser]:
    with console((server.host, server.port)) as shown:
        yield shown


def sent(browser: Browser, path: str, **form: object) -> Shown:
    """Send a form; return the page that it leads to."""
    found = browser.post(path, **form)
    return browser.get(found.headers["location"]) if found.status == 303 else found


def test_a_record_is_written_as_the_form_says(
    browser: Browser, admin: AdminClient, queue: str
) -> None:
    make(admin, queue, partitions=3)
    path = f"/queues/{queue}/produce"
    assert "Write" in browser.get(path).text
    page = sent(browser, path, key="anna", value="ä <b>", headers="a: 1\r\na: 2\r\n", kind="text")
    assert "The record was written." in page.text
    assert f"Offset 0 of partition {partition_of(b'anna', 3)}" in page.text
    assert "anna text Value ä <b> text Headers Name Value a 1 a 2" in page.text
    page = sent(browser, path, value="00 ff", kind="hex", partition=1)
    assert "00 ff" in page.text
    assert "null" in sent(browser, path, key="k", null="1", partition=2).text
    for wrong in ({"value": "0", "kind": "hex"}, {"headers": "no colon"}, {"partition": "x"}):
        assert sent(browser, path, **wrong).status == 400
    assert sent(browser, path, partition=7).status == 409
    assert sent(browser, "/queues/no-such-queue/produce", value="x").status == 409
    assert browser.get("/queues/no-such-queue").status == 404  # none is made by a mistake


def test_partitions_are_those_of_javas_producers() -> None:
    for key, hashed in (
        (b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107),
        (b"a-little-bit-long-string", -985981536), (b"a-little-bit-longer-string", -1486304829),
    ):  # fmt: skip
        assert _murmur2(key) == hashed & 0xFFFF_FFFF
        assert partition_of(key, 10) == (hashed & 0x7FFF_FFFF) % 10


def test_a_record_is_copied_byte_by_byte(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    target = f"{queue}-copies"
    make(admin, queue, target)
    producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
    headers = [("h", b"\xff\x00"), ("h", None), ("ä", b"")]
    producer.produce(queue, b"\x00value", key=b"\xfe", headers=headers)
    assert producer.flush(WAIT_S) == 0
    page = sent(browser, f"/queues/{queue}/copy", partition=0, offset=0, target=target)
    assert "The record was written." in page.text
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": queue, "log_level": 0,
                         "auto.offset.reset": "earliest"})  # fmt: skip
    try:
        consumer.subscribe([target])
        found = []
        eventually(lambda: found.append(consumer.poll(0.2)) or found[-1] is not None, WAIT_S)
        record = found[-1]
        assert (record.key(), record.value()) == (b"\xfe", b"\x00value")
        assert record.headers() == headers
    finally:
        consumer.close()
    assert sent(browser, f"/queues/{queue}/copy", partition=0, offset=5).status == 409


def test_queues_are_created_changed_and_deleted(browser: Browser, queue: str) -> None:
    assert "The queue was created." in sent(browser, "/queues", name=queue, partitions=2).text
    assert sent(browser, "/queues", name=queue).status == 409
    for partitions in (0, 1 << 31):
        assert sent(browser, "/queues", name=f"{queue}-x", partitions=partitions).status == 400
    path = f"/queues/{queue}"
    page = sent(browser, f"{path}/settings", name="retention.ms", value="60000")
    assert "retention.ms 60000" in page.text
    page = sent(browser, f"{path}/settings", name="retention.ms", value="")
    assert "It has no settings of its own." in page.text
    assert sent(browser, f"{path}/settings", name="no.such", value="1").status == 409
    assert "nothing was changed" in sent(browser, f"{path}/delete", confirm="other").text
    assert browser.get(path).status == 200
    assert "It was deleted." in sent(browser, f"{path}/delete", confirm=queue).text
    assert browser.get(path).status == 404


def test_groups_without_members_are_reset_and_deleted(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue)
    fill(server, queue, *[b"x"] * 5)
    group = f"{queue}-<group>"
    commit(admin, group, queue, 4)
    form = {"id": group, "of": queue, "at": "start"}
    assert sent(browser, "/group/reset", **form).status == 400
    page = sent(browser, "/group/reset", confirm=group, **form)
    assert f"{queue} 0 0 5 5" in page.text
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group, "log_level": 0})
    try:
        consumer.subscribe([queue])
        eventually(lambda: consumer.poll(0.05) or consumer.assignment(), WAIT_S)
        refused = sent(browser, "/group/reset", confirm=group, **form)
        assert refused.status == 409
        assert "members: stop them first" in refused.text
        assert sent(browser, "/group/delete", id=group, confirm=group).status == 409
    finally:
        consumer.close()
    assert "It was deleted." in sent(browser, "/group/delete", id=group, confirm=group).text
    assert browser.get("/group", id=group).status == 404


def test_an_open_transaction_is_aborted_and_its_producer_fenced(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue)
    producer = transactional(server.address, queue, **{"transaction.timeout.ms": 800_000})
    idle = browser.get("/transactions", prefix=queue, which="all")
    assert (idle.status, "Empty" in idle.text) == (200, True)
    producer.begin_transaction()
    producer.produce(queue, b"never-seen", partition=0)
    assert producer.flush(WAIT_S) == 0
    assert sent(browser, "/transactions/abort", id=queue, confirm="other").status == 400
    page = sent(browser, "/transactions/abort", id=queue, confirm=queue)
    assert "The transaction was aborted." in page.text
    assert queue not in browser.get("/transactions", prefix=queue).text.partition("State")[2]
    assert "never-seen" not in browser.get(f"/queues/{queue}/records").text
    assert sent(browser, "/transactions/abort", id=queue, confirm=queue).status == 409


def test_a_read_only_console_changes_nothing(
    server: Served, admin: AdminClient, queue: str
) -> None:
    make(admin, queue)
    fill(server, queue, b"x")
    with console((server.host, server.port), read_only=True) as browser:
        for path in ACTIONS:
            path = path.replace("{queue}", queue)
            form = {"id": queue, "name": queue, "confirm": queue, "key": "k", "of": queue}
            assert browser.post(path, **form).status == 403, path
        for path in ("", "/record", "/produce", "/waiting"):
            page = browser.get(f"/queues/{queue}{path}")
            assert page.status == 200
            assert 'method="post"' not in page.body


def test_changes_of_others_pages_are_refused(browser: Browser, queue: str) -> None:
    typed = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "cross-site"}
    assert browser.send("POST", "/queues", f"name={queue}", typed).status == 403
    assert browser.get(f"/queues/{queue}").status == 404
    assert "Deleted by Mallory" not in browser.get("/queues", done="Deleted by Mallory").text
