"""Dead letters on the console's pages, and their redrive, on a served kproxy."""

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.console.serving import WAIT_S, Browser, console
from tests.console.test_changes import sent
from tests.console.test_pages import admin, fill, make
from tests.harness import Served, eventually

__all__ = ["admin"]
ENABLE = {"errors_deadletterqueue_group_enable": "true"}
EVIL = "<script>alert(1)</script>\u202e\x1b"


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[Browser]:
    with console((server.host, server.port)) as shown:
        yield shown


def bury(server: Served, dead: str, origin: str, count: int, **headers: str) -> None:
    """Put letters into a dead-letter queue, as a share group's would be."""
    producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
    of = {
        "__dlq.errors.topic": origin, "__dlq.errors.partition": "0", "__dlq.errors.group": "crew",
        "__dlq.errors.delivery.count": "5", "kproxy.dlq.cause": "delivery limit",
    }  # fmt: skip
    for number in range(count):
        given = of | {"__dlq.errors.offset": str(number)} | headers
        producer.produce(dead, b"letter %d" % number, key=b"k%d" % number, headers=given)
    assert producer.flush(WAIT_S) == 0


def records_of(browser: Browser, queue: str) -> int:
    found = re.search(r"([\d,]+) records,", browser.get(f"/queues/{queue}").text)
    return int(found[1].replace(",", "")) if found else -1


def test_dead_letter_queues_are_found_with_their_letters(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    dead = f"dlq.{queue}"
    make(admin, dead, **ENABLE)
    make(admin, f"dlq.no-{queue}")
    bury(server, dead, queue, 3)
    page = browser.get("/dead")
    assert f"{dead} 3 –" in page.text
    assert f"dlq.no-{queue}" not in page.text
    assert "You see none" in browser.get("/dead", prefix="dlq.none").text
    assert dead in browser.get("/dead", prefix="").text  # all names
    assert "It takes dead letters" in browser.get(f"/queues/{dead}").text


def test_letters_are_counted_by_cause_and_chosen_by_it(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    dead = f"dlq.{queue}"
    make(admin, queue, dead)
    bury(server, dead, queue, 3)
    bury(server, dead, queue, 2, **{"kproxy.dlq.cause": "rejected", "kproxy.redriven": "1"})
    page = browser.get(f"/dead/{dead}")
    assert "Counted: the newest 5 of 5. 2 of them had been redriven before" in page.text
    assert "Cause Letters Redrive delivery limit 3 these rejected 2 these" in page.text
    assert f"{queue}/0@2 k2 letter 2 crew delivery limit 5" in page.text
    only = browser.follow(page, "rejected")
    assert "Only those with cause rejected: 2" in only.text
    assert "letter 2" not in only.text
    assert "header:kproxy.dlq.cause:delivery%20limit" in page.body.replace("%25", "%").replace(
        "%3A", ":"
    )


def test_a_sample_says_how_many_it_counted(
    browser: Browser, admin: AdminClient, server: Served, queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("kproxy.console.dead._SAMPLES", (2, 100))
    make(admin, queue)
    bury(server, queue, queue, 7)
    page = browser.get(f"/dead/{queue}")
    assert "the newest 2 of 7" in page.text
    assert "the newest 7 of 7" in browser.follow(page, "Count more").text


def test_a_redrive_is_previewed_begun_paused_and_goes_to_its_end(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    dead = f"dlq.{queue}"
    make(admin, queue, dead, **ENABLE)
    bury(server, dead, queue, 3)
    bury(server, dead, queue, 2, **{"kproxy.dlq.cause": "rejected"})
    bury(server, dead, queue, 1, **{"kproxy.redriven": "3"})
    order = {"match": "header:kproxy.dlq.cause:delivery%20limit", "rate": "1/h"}
    page = browser.get(f"/dead/{dead}/redrive", **order)
    assert "3 letters would go of 6. Nothing has changed yet." in page.text
    assert "it was redriven 3 times 1" in page.text
    assert f"{queue} 3" in page.text
    assert "A redrive" not in browser.get(f"/dead/{dead}").text
    page = sent(browser, f"/dead/{dead}/redrive", **order)
    assert "The redrive has begun" in page.text
    assert f"{dead} where they came from running" in browser.get("/jobs").text
    assert browser.post(f"/dead/{dead}/redrive").status == 409  # one at a time
    assert "paused" in sent(browser, f"/dead/{dead}/change", what="pause").text
    assert "paused" in browser.get(f"/dead/{dead}").text
    sent(browser, f"/dead/{dead}/change", what="resume")
    assert "1000/s" in sent(browser, f"/dead/{dead}/change", rate="1000/s").text
    eventually(lambda: "over" in browser.get(f"/dead/{dead}").text, WAIT_S)
    assert "6 of 6" in browser.get(f"/dead/{dead}").text
    assert records_of(browser, queue) == 3


def test_a_redrive_to_another_queue_is_stopped(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue, f"{queue}-2")
    bury(server, queue, queue, 3)
    sent(browser, f"/dead/{queue}/redrive", to=f"{queue}-2", rate="1/h")
    eventually(lambda: "1 of 3" in browser.get(f"/dead/{queue}").text, WAIT_S)
    assert "was stopped" in sent(browser, f"/dead/{queue}/change", what="stop").text
    assert "A redrive" not in browser.get(f"/dead/{queue}").text
    assert browser.post(f"/dead/{queue}/change", what="stop").status == 409


def test_orders_that_the_server_refuses_are_said(
    browser: Browser, admin: AdminClient, queue: str
) -> None:
    make(admin, queue)
    for wrong, said in (
        ({"to": "no-such-queue"}, "create it first"), ({"to": queue}, "this queue itself"),
        ({"match": "a = b"}, "a condition must be"), ({"rate": "fast"}, "a rate is NUMBER/s"),
    ):  # fmt: skip
        page = browser.get(f"/dead/{queue}/redrive", **wrong)
        assert (page.status, said in page.text) == (404, True)
        assert browser.post(f"/dead/{queue}/redrive", **wrong).status == 409
    assert browser.get(f"/dead/{queue}/redrive", times="x").status == 400
    assert browser.post(f"/dead/{queue}/change", what="x").status == 400
    assert browser.get("/dead/no-such-queue").status == 404


def test_letters_full_of_markup_are_text(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue)
    evil = {
        "__dlq.errors.topic": "/../" + EVIL, "__dlq.errors.group": EVIL,
        "__dlq.errors.message": EVIL, "kproxy.dlq.cause": EVIL, "kproxy.redriven": EVIL,
        "__dlq.errors.partition": "²", "__dlq.errors.offset": EVIL,
        "__dlq.errors.delivery.count": EVIL,
    }  # fmt: skip
    bury(server, queue, queue, 2, **evil)
    for page in (browser.get(f"/dead/{queue}"), browser.get(f"/dead/{queue}", cause=EVIL),
                 browser.get(f"/dead/{queue}/redrive")):  # fmt: skip
        assert page.status == 200
        assert "script" not in page.tags
        assert "\u202e" not in page.body
        assert "\x1b" not in page.body
    assert r"<script>alert(1)</script>\u202e\x1b" in browser.get(f"/dead/{queue}").text


def test_hidden_contents_choose_no_letters(server: Served, admin: AdminClient, queue: str) -> None:
    make(admin, queue)
    bury(server, queue, "secret-origin", 1, **{"__dlq.errors.group": "secret-group"})
    with console((server.host, server.port), hide_contents=True) as browser:
        page = browser.get(f"/dead/{queue}")
        assert "1 letters" in page.text
        assert "secret" not in page.body
        assert browser.get(f"/dead/{queue}", cause="rejected").status == 400
        assert browser.get(f"/dead/{queue}/redrive", match="header:a:b").status == 400
        assert browser.post(f"/dead/{queue}/redrive", match="header:a:b").status == 400
        assert "secret" not in browser.get(f"/dead/{queue}/redrive", to=queue).body


def test_waiting_records_are_found_and_cancelled(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue, kproxy_delay_replace="key", kproxy_delay_ms="86400000")
    make(admin, f"{queue}-none")
    fill(server, queue, b"later")
    page = browser.get("/waiting", prefix=queue)
    assert f"{queue} 1 20" in page.text
    assert f"{queue}-none" not in page.text
    page = browser.get(f"/queues/{queue}/waiting")
    assert 'value="0x6b"' in page.body
    assert "The record was cancelled" in sent(browser, f"/queues/{queue}/waiting", key="0x6b").text
    assert "You see none" in browser.get("/waiting", prefix=queue).text
