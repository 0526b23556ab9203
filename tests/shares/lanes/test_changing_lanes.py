"""Lanes that begin, change or end while records are held and while they are looked for."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code
from kproxy.log.base import Ticket
from kproxy.loop import pace
from kproxy.metadata.lane_settings import IN_FLIGHT, LANE, ON_DEAD
from kproxy.shares import poll
from kproxy.shares.lanes import share_lanes
from kproxy.shares.lanes.reading import LaneReader
from tests.handlers.test_handlers import Client
from tests.handlers.transactional import Transactional
from tests.harness import until
from tests.present import present
from tests.shares.lanes.test_lanes import configure, offsets, produce, with_lanes
from tests.shares.test_polls import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    initialise,
    row,
    share_of,
)
from tests.wire import keyed, produce_values


async def held_with_markers() -> tuple[Client, Member]:
    """Return a member that holds records and the markers between them, and a group with lanes."""
    client = await with_lanes({})
    writer = Transactional(client.worker.any_shard(), initialise(client), "t", 2)
    for _ in range(3):
        writer.write(b"v")
        writer.end(commit=True)
    one = Member(client, "one")
    assert await one.given() == [(0, 5, 1)]
    await configure(client, **{LANE: "key"})
    return client, one


async def test_records_that_come_back_with_markers_before_them_are_given_again() -> None:
    """FAULT: a stretch that began with a marker was archived with all records in it."""
    client, one = await held_with_markers()
    await one.says((0, 0, (ACCEPT,)))
    two = Member(client, "two")
    assert await two.given() == []
    await one.says((1, 5, (RELEASE,)))
    assert await two.given() == [(2, 2, 2), (4, 4, 2)]


async def test_markers_that_come_back_with_records_hold_no_start() -> None:
    """FAULT: what came back behind a record, and was none, was never done."""
    client, one = await held_with_markers()
    two = Member(client, "two")
    assert await two.given() == []
    await one.says((0, 5, (RELEASE,)))
    assert offsets(await two.given()) == [0, 2, 4]
    await two.says(*[(at, at, (ACCEPT,)) for at in (0, 2, 4)])
    await two.given()
    assert row(client).start == 6


async def test_records_that_come_back_while_lanes_are_looked_for_are_given_again() -> None:
    """FAULT: they stayed in their lane's way if they reached beyond what was looked at."""
    client, one = await held_with_markers()
    await one.says((0, 0, (ACCEPT,)))
    share = share_of(client)
    rules = client.worker.shares.settings(GROUP)
    lanes = present(share.use_lanes(rules, client.worker.shares.lane_memory))
    assert lanes.scan_at_once(3)
    await one.says((1, 5, (RELEASE,)))
    assert offsets(await Member(client, "two").given()) == [2, 4]


async def interrupted(client: Client, *, by: Callable[[anyio.CancelScope], object]) -> None:
    """Let something happen while a thread looks for the lanes that a poll waits for."""
    read, reading, over = LaneReader.read, threading.Event(), threading.Event()

    def waiting(self: LaneReader, *args: Any, **more: Any) -> Any:
        found = read(self, *args, **more)
        reading.set()
        assert over.wait(10)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LaneReader, "read", waiting)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Member(client, "gone").given)
            await until(reading.is_set)
            by(tasks.cancel_scope)
            over.set()


async def test_lanes_that_a_client_which_left_had_looked_for_are_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: of a batch that was read while its client went what was told was in no lane: nobody
    was given it, and the start stayed."""
    monkeypatch.setattr(share_lanes, "_RECORDS_MAX", 5000)
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    client = await with_lanes({LANE: "key"})
    await produce(client, *[b"a"] * 9000, codec=3)
    await interrupted(client, by=lambda scope: scope.cancel())
    await Member(client).given(records=1)
    assert share_of(client).lanes.index.available == 9000 - 1


async def test_lanes_that_end_while_they_are_looked_for_hold_no_memory() -> None:
    """FAULT: they were counted after they had given it back, until nothing was left for others."""
    client = await with_lanes({LANE: "key"})
    await produce(client, *[b"a"] * 5000, codec=3)
    await interrupted(client, by=lambda _: share_of(client).leave_lanes())
    share_of(client).leave_lanes()
    assert client.worker.shares.lane_memory.used == 0


async def test_a_poll_waits_while_what_is_held_lies_in_an_open_transaction() -> None:
    """FAULT: it looked again and again, and was never answered."""
    client = await with_lanes({LANE: "key"}, b"a")
    writer = Transactional(client.worker.any_shard(), initialise(client), "t", 2)
    writer.write(b"v")
    one, two = Member(client, "one"), Member(client, "two")
    assert await one.given() == [(0, 1, 1)]
    await configure(client, **{LANE: "key", "share.isolation.level": "read_committed"})
    with anyio.fail_after(10):
        assert await two.given() == []
    await one.says((0, 1, (RELEASE,)))
    assert await two.given() == [(0, 0, 2)]
    writer.end(commit=True)
    assert await two.given() == [(1, 1, 2)]


async def test_records_before_a_damaged_batch_are_given_and_other_queues_are_read() -> None:
    """FAULT: each fetch ended its connection: the damage was raised, and nothing was given."""
    client = await with_lanes({LANE: "key"}, *[b"a"] * 300)
    await client.metadata("other")
    initialise(client, "other")
    await produce(client, b"b")
    shard: Any = client.worker.any_shard()
    shard.segments.data[-3] ^= 1
    await client.call(0, 9, produce_values("other", keyed((b"x", b"v"))))
    member = Member(client, "m", "q", "other")
    assert sorted(await member.given()) == [(0, 0, 1), (0, 299, 1)]
    assert await member.says((0, 299, (ACCEPT,))) == Code.NONE
    (topic,) = (await member.fetch()).responses
    assert topic.partitions[0].error_code == Code.CORRUPT_MESSAGE


async def test_a_poll_that_looks_for_lanes_for_long_gives_what_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: it looked as far as the lookahead goes, however long that took: a client gave up
    before, and the next one began anew."""
    monkeypatch.setattr(poll, "_PATIENT_S", 0.0)
    monkeypatch.setattr(share_lanes, "_RECORDS_MAX", 100)
    client = await with_lanes({LANE: "key"})
    for name in (b"a", b"b", b"c"):
        await produce(client, *[name] * 300)
    member = Member(client)
    assert offsets(await member.given(records=2)) == [0, 1]
    assert share_of(client).lanes.index.end == 300
    assert 300 in offsets(await member.given(records=9))


async def test_a_poll_that_finds_nothing_for_long_is_answered_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll, "_PATIENT_S", 0.0)
    monkeypatch.setattr(share_lanes, "_RECORDS_MAX", 100)
    client = await with_lanes({}, *[b"a"] * 300)
    await produce(client, *[b"a"] * 300)
    await produce(client, b"b")
    one, two = Member(client, "one"), Member(client, "two")
    assert await one.given() == [(0, 599, 1)]
    await configure(client, **{LANE: "key"})
    assert await two.given() == []
    assert share_of(client).lanes.index.end < 601
    assert [600] in [offsets(await two.given()) for _ in range(3)]


HOLDING = {LANE: "key", ON_DEAD: "hold"}


def use(client: Client) -> Any:
    """Return the lanes as the group's settings are now, before anything is looked at."""
    shares = client.worker.shares
    return present(share_of(client).use_lanes(shares.settings(GROUP), shares.lane_memory))


async def test_a_lane_is_held_by_a_rejection_while_lanes_are_looked_for_again() -> None:
    """FAULT: its record was in no lane yet, so the lane went on."""
    client = await with_lanes({**HOLDING, IN_FLIGHT: "1"}, b"a", b"b", b"a", b"b")
    one = Member(client, "one")
    assert offsets(await one.given()) == [0, 1]
    await configure(client, **HOLDING, **{IN_FLIGHT: "2"})
    use(client)
    assert await one.says((0, 0, (REJECT,)), (1, 1, (ACCEPT,))) == Code.NONE
    assert offsets(await Member(client, "two").given()) == [3]
    assert use(client)._before is None


async def test_a_rejection_on_its_way_holds_no_lane_that_is_not_to_be_held_any_more() -> None:
    """FAULT: the lane was held by lanes that none can be released of."""
    client = await with_lanes(HOLDING, b"a")
    one = Member(client, "one")
    assert offsets(await one.given()) == [0]
    shard: Any = client.worker.any_shard()
    append, tickets = shard.append, list[tuple[Ticket, Any]]()

    def later(envelopes: Any) -> Ticket:
        tickets.append((Ticket(list(envelopes)), envelopes))
        return tickets[-1][0]

    async with anyio.create_task_group() as tasks:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shard, "append", later)
            tasks.start_soon(one.says, (0, 0, (REJECT,)))
            await until(lambda: tickets)
        await configure(client, **{LANE: "key"})
        assert not use(client).rules.holds
        ((ticket, envelopes),) = tickets
        ticket.set_outcomes(append(envelopes).outcomes())
    await produce(client, b"a")
    assert offsets(await Member(client, "two").given()) == [1]
