"""The counts of share groups' records, and the events of those that they give up."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from kproxy.shares import share_partitions
from tests.fakes import refused_append
from tests.handlers.test_handlers import Client
from tests.shares.test_polls import (
    ACCEPT,
    REJECT,
    RELEASE,
    Member,
    a_queue,
    set_group,
    share_of,
)  # fmt: skip
from tests.shares.test_read_committed import transactional

GAP = 0


def counted(client: Client) -> dict[str, Any]:
    counters = client.worker.counters
    found = {name: getattr(counters, f"share_{name}") for name in
             ("delivered", "accepted", "released", "rejected", "timed_out")}  # fmt: skip
    return {name: value for name, value in found.items() if value} | dict(counters.share_archived)


async def test_each_way_that_records_go_is_counted() -> None:
    """FAULT: without a dead-letter queue there was no trace of what a group had given up."""
    client = await a_queue(5)
    member = Member(client)
    assert await member.given() == [(0, 4, 1)]
    said = (0, 1, (ACCEPT,)), (2, 2, (REJECT,)), (3, 3, (RELEASE,)), (4, 4, (GAP,))
    with capture_logs() as logs:
        assert await member.says(*said) == 0
    assert counted(client) == {
        "delivered": 5, "accepted": 2, "rejected": 1, "released": 1, "gap": 1,
    }  # fmt: skip
    assert [(one["event"], one["group"], one["records"]) for one in logs] == [
        ("records_archived", "g", 1)
    ]
    assert await member.given() == [(3, 3, 2)]
    assert counted(client)["delivered"] == 6


async def test_records_given_too_often_or_held_too_long_are_counted() -> None:
    client = await a_queue(2)
    await set_group(client, "share.delivery.count.limit", "2")
    member = Member(client)
    await member.given()
    assert await member.says((0, 1, (RELEASE,))) == 0
    assert await member.given() == [(0, 1, 2)]
    share, shares = share_of(client), client.worker.shares
    pending = share.window.expire(share.window.due, 2)
    by = share_partitions.By.TIME
    shares.log("g", [share_partitions.PartitionChange(share, pending.runs, pending, by)])
    assert counted(client) == {
        "delivered": 4, "released": 2, "timed_out": 2, "delivery_limit": 2,
    }  # fmt: skip


async def test_refused_commands_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    client = await a_queue(1)
    member = Member(client)
    await member.given()
    shard: Any = client.worker.any_shard()
    monkeypatch.setattr(shard, "append", refused_append)
    assert await member.says((0, 0, (ACCEPT,))) != 0
    assert counted(client) == {"delivered": 1}


async def test_aborted_records_are_counted_as_a_hole() -> None:
    client = await a_queue()
    await set_group(client, "share.isolation.level", "read_committed")
    gone = transactional(client, "gone")
    gone.write(b"1", b"2")
    gone.end(commit=False)
    assert await Member(client).given() == [(2, 2, 1)]
    assert counted(client) == {"delivered": 1, "hole": 2}
