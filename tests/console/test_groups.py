"""Groups on the console's pages: of a served kproxy, and share groups of a worker in memory."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from kproxy.console import groups
from kproxy.console.app import Options
from kproxy.console.pages import Asked, Page, Query
from kproxy.console.shown import rendered
from kproxy.tools.client import Refused
from kproxy.tools.client_settings import ClientSettings
from tests.console.serving import WAIT_S, Browser, Shown, console
from tests.console.test_pages import admin, fill, make
from tests.harness import Served, eventually
from tests.shares.test_polls import REJECT, Member
from tests.tools.test_share_groups import Direct, client

__all__ = ["admin", "client"]
EVIL = "<script>alert(1)</script>/../?x=1&y#\u202e"


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[Browser]:
    with console((server.host, server.port)) as shown:
        yield shown


def commit(admin: AdminClient, group: str, queue: str, offset: int) -> None:
    offsets = [ConsumerGroupTopicPartitions(group, [TopicPartition(queue, 0, offset)])]
    for future in admin.alter_consumer_group_offsets(offsets).values():
        future.result(WAIT_S)


def test_groups_are_listed_with_their_lag_a_page_at_a_time(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue)
    fill(server, queue, *[b"x"] * 5)
    names = [f"console-{number:02}" for number in range(60)]
    for name in names:
        commit(admin, name, queue, 2)
    first = browser.get("/groups", prefix="console-")
    assert [name for name in names if name in first.text] == names[:50]
    assert "console-00 classic Empty 1 3" in first.text
    second = browser.follow(first, "next ›")
    assert [name for name in names if name in second.text] == names[50:]
    readers = browser.get(f"/queues/{queue}/readers")
    assert "console-59 3" in readers.text


def test_a_group_with_a_hostile_name_is_a_page_like_any_other(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue)
    fill(server, queue, b"x")
    commit(admin, EVIL, queue, 0)
    shown = EVIL.replace("\u202e", "\\u202e")
    page = browser.follow(browser.get("/groups", contains="alert(1)"), shown)
    assert page.status == 200
    assert "script" not in page.tags
    assert f"{shown} A classic group, Empty" in page.text
    assert f"{queue} 0 0 1 1" in page.text
    assert browser.get("/group", id="no-such-group").status == 404
    assert browser.get("/share", id=EVIL).status == 404


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_are_shown_with_what_they_read(
    browser: Browser, admin: AdminClient, server: Served, queue: str, protocol: str
) -> None:
    make(admin, queue, partitions=2)
    consumer = Consumer({
        "bootstrap.servers": server.address, "group.id": queue, "client.id": "reader-<b>",
        "group.protocol": protocol, "log_level": 0,
    })  # fmt: skip
    try:
        consumer.subscribe([queue])
        eventually(lambda: consumer.poll(0.05) or len(consumer.assignment()) == 2, WAIT_S)
        page = browser.get("/group", id=queue)
        assert f"A {protocol} group, Stable" in page.text
        assert "1 members" in page.text
        assert "reader-<b>" in page.text
        assert f"{queue} 0 1" in page.text
    finally:
        consumer.close()


def test_share_group_is_shown_record_by_record_state(client: Direct) -> None:
    async def read() -> None:
        member = Member(client.served, "a")
        assert await member.given() == [(2, 4, 1)]
        assert await member.says((3, 3, (REJECT,))) == 0

    asyncio.run(read())
    text = show(groups.share_page, client, id="g")
    assert "A share group, Stable; 2 records of 1 queues are not done" in text
    assert "q 0 2 2 2 2 × 1 0 1" in text  # in flight, delivered once, acknowledged, archived
    with pytest.raises(Refused):
        groups.share_page(Asked(client, Query({"id": "none"}), True))


def test_names_of_lanes_are_contents_of_records(
    client: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read() -> None:
        assert await Member(client.served, "a").given() == [(2, 4, 1)]

    asyncio.run(read())
    lane = {"lane": "customer-7", "held_at": 3}
    line = dict.fromkeys(("partition", "lanes", "available", "looked_ahead", "held"), 1)
    lines = [{"queue": "q", "held_lanes": [lane]} | line]
    monkeypatch.setattr(groups, "_settings", lambda *_: {"kproxy.share.lane": "key"})
    monkeypatch.setattr(groups, "_lanes", lambda *_: lines)
    assert "customer-7, offset 3 was given up" in show(groups.share_page, client, id="g")
    text = show(groups.share_page, client, hidden=True, id="g")
    assert "customer-7" not in text
    assert "hidden, offset 3 was given up" in text


def show(page: Any, client: Direct, *, hidden: bool = False, **query: str) -> str:
    made: Page = page(Asked(client, Query(query), not hidden))
    options = Options(("127.0.0.1", 1), ClientSettings(), frozenset(), hide_contents=hidden)
    return Shown(200, {}, rendered(made.template, options.around(None) | made.values)).text
