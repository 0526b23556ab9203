"""Thousands of acknowledgements of one partition: in slices, and all of them or none."""

from collections.abc import Callable
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.loop.pace import Pace
from kproxy.virtual.rows.shares import RecordState, state_byte
from tests.handlers.test_handlers import Client
from tests.shares.test_polls import ACCEPT, REJECT, RELEASE, RENEW, Member, a_queue, row, share_of

COUNT = 100


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """Return the calls made in each rest; every part of a work is due to rest."""
    done: list[Callable[[], Any]] = []
    rest = Pace.rest

    async def rested(pace: Pace) -> None:
        for one in done:
            one()
        await rest(pace)

    monkeypatch.setattr(Pace, "due", property(lambda pace: True))
    monkeypatch.setattr(Pace, "rest", rested)
    return done


async def held(client: Client) -> Member:
    """Return a member that holds COUNT records."""
    member = Member(client, "one")
    await client.produce("q", *[b"v"] * COUNT)
    assert await member.given() == [(0, COUNT - 1, 1)]
    return member


async def test_single_acknowledgements_of_a_partition_rest(meanwhile: list[Any]) -> None:
    """FAULT: 4,000 of them held the loop for 79 ms."""
    client = await a_queue()
    member, rests = await held(client), []
    log = len(client.worker.any_shard().log)
    meanwhile.append(lambda: rests.append(1))
    assert await member.says(*[(at, at, (ACCEPT,)) for at in range(COUNT)]) == 0
    assert len(rests) >= COUNT
    assert row(client)[:3] == (COUNT, COUNT, 0)
    assert len(client.worker.any_shard().log) == log + 1


async def test_records_acknowledged_in_slices_are_nobody_elses_meanwhile(
    meanwhile: list[Any],
) -> None:
    client = await a_queue()
    member, window = await held(client), share_of(client).window
    log, before = client.worker.any_shard().log, len(client.worker.any_shard().log)
    first: list[int] = []

    def look() -> None:
        if len(log) == before:  # the log has nothing of it yet
            first.append(window.next_available())

    meanwhile.append(look)
    said = [(at, at, (RELEASE if at % 2 else ACCEPT,)) for at in range(COUNT)]
    assert await member.says(*said) == 0
    assert first
    assert set(first) == {COUNT}
    assert row(client)[:3] == (1, COUNT, COUNT // 2 - 1)


@pytest.mark.parametrize("bad", [(COUNT + 5, COUNT + 5, (ACCEPT,)), (3, 3, (ACCEPT,))])
async def test_one_bad_acknowledgement_undoes_all_slices_before_it(
    meanwhile: list[Any], bad: Any
) -> None:
    client = await a_queue()
    member, window = await held(client), share_of(client).window
    log = len(client.worker.any_shard().log)
    said = [(at, at, (REJECT if at % 2 else ACCEPT,)) for at in range(COUNT)]
    assert await member.says(*said, bad) != 0
    assert len(client.worker.any_shard().log) == log
    assert window.held == COUNT
    assert await member.says(*said) == 0
    assert row(client)[:3] == (COUNT, COUNT, 0)


async def test_nothing_is_renewed_where_anything_is_refused(meanwhile: list[Any]) -> None:
    client = await a_queue()
    member, window = await held(client), share_of(client).window
    due = window.due
    renew, bad = (0, COUNT - 1, (RENEW,)), (COUNT + 5, COUNT + 5, (ACCEPT,))
    assert await member.says(renew, bad, renews=True) == Code.INVALID_REQUEST
    assert window.due == due
    assert await member.says(renew, renews=True) == 0
    assert window.due > due


async def test_late_renewal_is_refused(meanwhile: list[Any]) -> None:
    client = await a_queue()
    member, share = await held(client), share_of(client)

    def run_out() -> None:
        pending = share.window.expire(share.window.due, 5)
        share.window.settle(pending, (), 0.0)

    meanwhile.append(run_out)
    said = [(0, 0, (ACCEPT,)), (1, COUNT - 1, (RENEW,))]
    assert await member.says(*said, renews=True) == Code.INVALID_RECORD_STATE
    assert share.window.counts() == {1: COUNT}
    assert state_byte(RecordState.AVAILABLE, 1) in share.window._states
