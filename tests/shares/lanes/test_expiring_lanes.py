"""Records that expire in share groups with lanes: archived at their turn, and no lane waits."""

import pytest

from kproxy.common.errors import Code
from kproxy.metadata.lane_settings import IN_FLIGHT, LANE, ON_DEAD, PRIORITY, RATE
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.shares.lanes.index import LaneIndex, Turns
from kproxy.shares.lanes.lane_window import LaneWindow
from kproxy.shares.taking import Limits, Range
from kproxy.virtual.commands.shares import Cause
from tests.bodies import change
from tests.handlers.test_handlers import Client
from tests.shares.lanes.test_lanes import configure, offsets
from tests.shares.test_polls import ACCEPT, RELEASE, Member, a_queue, row
from tests.wire import produce_values

TOPIC = 2
NOW_MS = 1_000_000
ORDERED = {LANE: "key", IN_FLIGHT: "1"}
AT, TTL = "kproxy.expires-at", "kproxy.ttl-ms"
Sent = tuple[bytes, int | None]
"""The key of a record and in how many milliseconds it expires; None: never."""


async def ask(client: Client) -> None:
    asked = change(TOPIC, "q", ("kproxy.ttl", 0, "header"))
    assert not (await client.call(44, 1, asked)).responses[0].error_code


async def with_lanes(settings: dict[str, str], *sent: Sent, codec: int = 0) -> Client:
    """Return a client of a queue where records expire, of a group with lanes."""
    client = await a_queue()
    await ask(client)
    await configure(client, **settings)
    client.worker.shares.now_ms = lambda: NOW_MS
    if sent:
        await put(client, *sent, codec=codec)
    return client


async def put(client: Client, *sent: Sent, codec: int = 0, **more: str) -> None:
    bodies = []
    for key, in_ms in sent:
        headers = [header(*one) for one in more.items()]
        if in_ms is not None:
            headers.append(header(TTL, str(in_ms)))
        bodies.append((body_of(Content(key, b"v"), headers), NOW_MS))
    data = batch_of_bodies(bodies, codec)
    answer = await client.call(ApiKey.PRODUCE, 9, produce_values("q", data))
    assert not answer.responses[0].partition_responses[0].error_code


def expired(client: Client) -> int:
    return client.worker.counters.share_archived["expired"]


@pytest.mark.parametrize("codec", [0, 4])
async def test_an_expired_record_is_archived_and_its_lane_goes_on_in_order(codec: int) -> None:
    client = await with_lanes(
        ORDERED, (b"a", 0), (b"a", 0), (b"a", None), (b"b", -1), (b"a", 0), (b"a", 1),
        codec=codec,
    )  # fmt: skip
    member = Member(client)
    assert await member.given() == [(2, 2, 1)]
    assert expired(client) == 3
    assert await member.given() == []
    assert await member.says((2, 2, (ACCEPT,))) == Code.NONE
    assert await member.given() == [(5, 5, 1)]
    assert expired(client) == 4
    await member.says((5, 5, (ACCEPT,)))
    assert row(client).start == 6


async def test_a_released_record_that_expires_meanwhile_leaves_its_lane() -> None:
    client = await with_lanes(ORDERED, (b"a", 100), (b"a", None))
    member = Member(client)
    assert await member.given() == [(0, 0, 1)]
    client.worker.shares.now_ms = lambda: NOW_MS + 100
    assert await member.given() == []  # it is held still
    await member.says((0, 0, (RELEASE,)))
    assert await member.given() == [(1, 1, 1)]
    assert expired(client) == 1


async def test_an_expired_record_does_not_hold_its_lane() -> None:
    client = await with_lanes({**ORDERED, ON_DEAD: "hold"}, (b"a", 0), (b"a", None), (b"a", None))
    member = Member(client)
    assert await member.given() == [(1, 1, 1)]
    await member.says((1, 1, (ACCEPT,)))
    assert await member.given() == [(2, 2, 1)]


async def test_an_expired_record_is_not_counted_by_the_rate_of_its_lane() -> None:
    client = await with_lanes({LANE: "key", RATE: "1/h"}, (b"a", 0), (b"a", None), (b"a", None))
    assert await Member(client).given() == [(1, 1, 1)]


async def test_more_than_expires_at_once_is_archived_over_several_looks() -> None:
    client = await with_lanes(ORDERED, *[(b"a", 0), (b"b", 0)] * 1500, (b"a", None))
    assert await Member(client).given(wait_ms=1000) == [(3000, 3000, 1)]
    assert expired(client) == 3000
    assert row(client).start == 3000


async def test_a_setting_that_comes_later_counts_in_lanes_that_there_are() -> None:
    client = await a_queue()
    await configure(client, **ORDERED)
    client.worker.shares.now_ms = lambda: NOW_MS
    await put(client, (b"a", -1), (b"a", -1), (b"a", None))
    member = Member(client)
    assert await member.given() == [(0, 0, 1)]
    await ask(client)
    await member.says((0, 0, (RELEASE,)))
    assert await member.given() == [(2, 2, 1)]
    assert expired(client) == 2


async def test_lanes_and_levels_of_headers_are_read_beside_the_time() -> None:
    client = await with_lanes({PRIORITY: "header:p"})
    await put(client, (b"k", None), p="1")
    await put(client, (b"k", 0), (b"k", None), p="9")
    assert offsets(await Member(client).given(records=1)) == [2]
    assert expired(client) == 1


def test_an_expiry_that_the_log_refused_is_asked_for_again_with_its_cause() -> None:
    window = LaneWindow(0, bytearray())
    window.lanes = index = LaneIndex(0, Turns(in_flight=1), 1)
    window.see(0, 3)
    index.add([0, 1, 2], [7, 7, 7])
    index.expiring = {0: 10}
    limits = Limits(5, 100, 100)
    first = window.acquire_by_lane("m", limits, 9.0, 1, 0.0, 10)
    assert first.ranges == [Range(1, 1, 1)]
    assert [(run.first, run.records, run.cause) for run in first.archived.runs] == [
        (0, 1, Cause.EXPIRED)
    ]
    window.take_back(first.archived, 1.0)
    assert not index.is_ready
    assert window.resume(1.0)
    assert index.is_ready
    again = window.acquire_by_lane("m", limits, 9.0, 2, 1.0, 10)
    assert again.archived.runs == first.archived.runs
    window.settle(again.archived, (), 1.0)
    assert window.start == 1
    assert not index.expiring
