"""Share groups with lanes, on a worker in memory: whose turn it is, and what a change finds."""

from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code
from kproxy.metadata.lane_settings import (
    IN_FLIGHT,
    LANE,
    LOOKAHEAD,
    ON_DEAD,
    PRIORITY,
    RATE,
    WEIGHTS,
)
from kproxy.protocol.batch import read_header
from kproxy.protocol.made_batches import Content, header, record
from kproxy.protocol.made_batches import batch as made
from kproxy.protocol.records import keyed_records, unpacked, with_records
from kproxy.shard.copier import copy_of
from kproxy.shares.lanes import line, share_lanes
from kproxy.shares.lanes.reading import hash_of
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.records import Compact, Trim
from kproxy.virtual.commands.shares import EARLIEST, FreeLanes
from tests.handlers.test_handlers import Client
from tests.present import present
from tests.shares import test_polls
from tests.shares.test_polls import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    a_queue,
    initialise,
    row,
    share_of,
)
from tests.wire import TODAY_MS, batch, batches, keyed, produce_values

ORDERED = {LANE: "key", IN_FLIGHT: "1"}


async def configure(client: Client, group: str = GROUP, **settings: str) -> None:
    """Set a group's settings; those not named go back to their defaults."""
    resource = {"resource_type": 32, "resource_name": group,
                "configs": [{"name": n, "value": v} for n, v in settings.items()]}  # fmt: skip
    answer = await client.call(33, 2, {"resources": [resource], "validate_only": False})
    assert answer.responses[0].error_code == 0, answer


async def with_lanes(settings: dict[str, str], *keys: bytes | None, **config: Any) -> Client:
    """Return a client of a queue with a batch of records with these keys."""
    client = await a_queue(**config)
    await configure(client, **settings)
    if keys:
        await produce(client, *keys)
    return client


async def produce(client: Client, *keys: bytes | None, **more: Any) -> None:
    sent = keyed(*[(key, b"v") for key in keys], **more)
    answer = await client.call(0, 9, produce_values("q", sent))
    assert answer.responses[0].partition_responses[0].error_code == 0


async def produce_headers(client: Client, *headers: dict[str, str]) -> None:
    records = [
        record(at, Content(b"k", b"v"), [header(*one) for one in some.items()])
        for at, some in enumerate(headers)
    ]
    answer = await client.call(0, 9, produce_values("q", made(records, TODAY_MS)))
    assert answer.responses[0].partition_responses[0].error_code == 0


def offsets(given: list[tuple[int, int, int]]) -> list[int]:
    return [at for first, last, _ in given for at in range(first, last + 1)]


async def test_one_record_behind_many_of_another_lane_is_in_the_next_answer() -> None:
    client = await with_lanes({LANE: "key"}, *[b"a"] * 300)
    member = Member(client)
    assert offsets(await member.given(records=2)) == [0, 1]
    await produce(client, b"b")
    assert offsets(await member.given(records=2)) == [2, 300]


async def test_a_lane_in_order_waits_for_what_is_held() -> None:
    client = await with_lanes(ORDERED, b"a", b"a", b"b", b"a")
    one, two = Member(client, "one"), Member(client, "two")
    assert offsets(await one.given()) == [0, 2]
    assert await two.given() == []
    assert await one.says((0, 0, (ACCEPT,))) == Code.NONE
    assert offsets(await two.given()) == [1]
    assert await two.says((1, 1, (RELEASE,))) == Code.NONE
    assert await one.given() == [(1, 1, 2)]
    assert await one.says((1, 1, (REJECT,)), (2, 2, (ACCEPT,))) == Code.NONE
    assert offsets(await two.given()) == [3]
    await two.says((3, 3, (ACCEPT,)))
    assert row(client).start == 4


async def test_a_waiting_member_is_told_when_a_lane_may_go_on() -> None:
    client = await with_lanes(ORDERED, b"a", b"a")
    one, two = Member(client, "one"), Member(client, "two")
    assert offsets(await one.given()) == [0]
    given: list[Any] = []

    async def wait() -> None:
        given.extend(await two.given(wait_ms=10_000))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(0.01)
            await one.says((0, 0, (ACCEPT,)))
    assert offsets(given) == [1]


async def test_lanes_are_those_of_a_header() -> None:
    client = await with_lanes({LANE: "header:tenant", IN_FLIGHT: "1"})
    await produce_headers(client, {"tenant": "a"}, {"tenant": "a"}, {"x": "a"}, {}, {"tenant": ""})
    assert offsets(await Member(client).given()) == [0, 2]


async def test_records_without_a_key_are_one_lane() -> None:
    client = await with_lanes(ORDERED, None, None, b"", b"a")
    assert offsets(await Member(client).given()) == [0, 3]


async def test_weights_are_turns_in_a_row() -> None:
    client = await with_lanes({LANE: "key", WEIGHTS: "a=2"}, *[b"a"] * 4, *[b"b"] * 4)
    assert offsets(await Member(client).given(records=3)) == [0, 1, 4]
    assert offsets(await Member(client, "n").given(records=3)) == [2, 3, 5]


async def test_a_rate_bounds_a_lane_and_not_the_others() -> None:
    client = await with_lanes({LANE: "key", RATE: "1/h"}, b"a", b"a", b"b")
    member = Member(client)
    assert offsets(await member.given()) == [0, 2]
    assert await member.given() == []


async def test_urgent_records_come_first() -> None:
    client = await with_lanes({PRIORITY: "header:p"})
    await produce_headers(client, {"p": "1"}, {}, {"p": "9"}, {"p": "none"}, {"p": "9"})
    member = Member(client)
    assert offsets(await member.given(records=2)) == [2, 4]
    assert offsets(await member.given(records=2)) == [1, 3]
    assert offsets(await member.given(records=2)) == [0]


async def test_lanes_that_are_made_while_records_are_held_keep_their_order() -> None:
    client = await with_lanes({}, b"a", b"a", b"b")
    one, two = Member(client, "one"), Member(client, "two")
    assert offsets(await one.given()) == [0, 1, 2]
    await produce(client, b"a", b"c")
    await configure(client, **ORDERED)
    assert offsets(await two.given()) == [4]
    await one.says((0, 1, (ACCEPT,)))
    assert offsets(await two.given()) == [3]


async def test_a_group_that_gives_up_its_lanes_goes_on_in_order() -> None:
    client = await with_lanes(ORDERED, b"a", b"a", b"b", b"b")
    one, two = Member(client, "one"), Member(client, "two")
    assert offsets(await one.given()) == [0, 2]
    await configure(client)
    assert offsets(await two.given()) == [1, 3]
    await one.says((0, 0, (ACCEPT,)), (2, 2, (ACCEPT,)))
    await two.says((1, 1, (ACCEPT,)), (3, 3, (ACCEPT,)))
    assert row(client).start == 4
    assert client.worker.shares.lane_memory.used == 0


async def test_compacted_records_and_markers_are_gaps_of_no_lane() -> None:
    client = await with_lanes(ORDERED, b"a")
    await produce(client, b"a")
    await produce(client, b"b")
    await produce(client, b"a")
    key = initialise(client)
    client.worker.any_shard().append([Compact(*key, [(1, 0), (2, 0)]).envelope()])
    member = Member(client)
    assert offsets(await member.given()) == [0]
    await member.says((0, 0, (ACCEPT,)))
    assert offsets(await member.given()) == [3]
    assert row(client).start == 3


async def test_a_trim_lets_the_lane_of_what_was_held_go_on() -> None:
    client = await with_lanes(ORDERED, b"a", b"b", b"b", b"a", b"a")
    one, two = Member(client, "one"), Member(client, "two")
    assert offsets(await one.given()) == [0, 1]
    key = initialise(client)
    client.worker.any_shard().append([Trim(*key, 4).envelope()])
    assert offsets(await two.given()) == [4]


async def test_a_new_owner_derives_the_lanes_again() -> None:
    client = await with_lanes(ORDERED, b"a", b"a", b"b", b"b")
    one, two = Member(client, "one"), Member(client, "two")
    assert offsets(await one.given()) == [0, 2]
    await one.says((0, 0, (ACCEPT,)))
    client.worker.any_shard().claim_offset += 1
    assert offsets(await two.given()) == [1, 2]


async def test_a_reset_begins_with_new_lanes() -> None:
    client = await with_lanes(ORDERED, b"a", b"b", b"a")
    member = Member(client)
    assert offsets(await member.given()) == [0, 1]
    initialise(client, start=EARLIEST, epoch=2)
    assert offsets(await member.given()) == [0, 1]


async def test_lanes_are_looked_for_as_far_as_the_group_says() -> None:
    client = await with_lanes({LANE: "key", LOOKAHEAD: "1000"}, *[b"a"] * 999, b"b")
    await produce(client, b"c")
    member = Member(client)
    assert offsets(await member.given(records=3)) == [0, 1, 999]
    await member.says((0, 1, (ACCEPT,)))
    assert offsets(await member.given(records=2)) == [2, 1000]


async def test_without_memory_lanes_look_less_far_and_the_order_stays() -> None:
    client = await with_lanes({**ORDERED, LOOKAHEAD: "2000"}, b"a", share_lanes_bytes_max=1)
    await client.metadata("other")
    key = initialise(client, "other")
    for name in (b"a", b"a", b"b"):
        sent = keyed(*[(name, b"v")] * 600)
        await client.call(0, 9, produce_values("other", sent))
    member = Member(client, "m", "q", "other")
    assert offsets(await member.given()) == [0, 0]
    other = client.worker.shares.find(client.worker.any_shard(), key, GROUP)
    assert present(other.lanes).index.end == 1200
    assert client.worker.counters.share_lookaheads_shortened == 1


async def test_a_group_leaves_some_of_the_memory_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: one group that looked far ahead had all, and all others looked at the least."""
    monkeypatch.setattr(share_lanes, "_RECORDS_MAX", 1000)
    monkeypatch.setattr(line, "_KNOWN_MAX", 64)
    settings = {LANE: "key", LOOKAHEAD: "20000"}
    client = await with_lanes(settings, share_lanes_bytes_max=600_000)
    for first in range(0, 18_000, 600):
        await produce(client, *[b"%d" % number for number in range(first, first + 600)])
    assert await Member(client).given()
    ahead = present(share_of(client).lanes).index.end
    memory = client.worker.shares.lane_memory
    assert ahead < 18_000
    monkeypatch.setattr(test_polls, "GROUP", "another")
    await client.metadata("other")
    await configure(client, "another", **settings)
    key = initialise(client, "other")
    for first in range(0, 3000, 600):
        records = keyed(*[(b"%d" % number, b"v") for number in range(first, first + 600)])
        await client.call(0, 9, produce_values("other", records))
    assert await Member(client, "m", "other").given()
    other = client.worker.shares.find(client.worker.any_shard(), key, "another")
    assert present(other.lanes).index.end > 1200
    assert memory.used < 600_000


async def test_records_that_cannot_be_read_are_in_the_lane_of_those_that_say_none() -> None:
    client = await with_lanes(ORDERED)
    bad = batch(b"", b"", packed=b"\xff" * 30)
    await client.call(0, 9, produce_values("q", bad))
    member = Member(client)
    assert offsets(await member.given()) == [0]
    assert client.worker.counters.share_lanes_unread == 2


async def test_records_given_too_often_end_and_their_lane_goes_on() -> None:
    client = await with_lanes({**ORDERED, "share.delivery.count.limit": "2"}, b"a", b"a")
    member = Member(client)
    for deliveries in (1, 2):
        assert await member.given() == [(0, 0, deliveries)]
        await member.says((0, 0, (RELEASE,)))
    assert offsets(await member.given()) == [1]


@pytest.mark.parametrize("name", [LANE, PRIORITY])
async def test_lanes_below_their_level_are_refused(name: str) -> None:
    client = await a_queue()
    client.worker.level.value = 8
    configs = [{"name": name, "value": "header:a", "config_operation": 0}]
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": configs}
    answer = await client.call(44, 1, {"resources": [resource], "validate_only": False})
    assert answer.responses[0].error_code == Code.INVALID_CONFIG
    assert "needs level 9" in answer.responses[0].error_message


async def given_records(member: Member, **more: Any) -> list[tuple[int, bytes | None]]:
    """Return (offset, key) of each record in the batches of an answer, and accept nothing."""
    answer = await member.fetch(**more)
    return [
        (base + one.offset_delta, one.key)
        for topic in answer.responses
        for part in topic.partitions
        for base, sent in batches(part.records)
        for one in keyed_records(read_header(sent), unpacked(sent))
    ]


@pytest.mark.parametrize("codec", [0, 3])
async def test_scattered_records_are_cut_out_of_their_batches(codec: int) -> None:
    client = await with_lanes({LANE: "key"})
    for _ in range(3):
        await produce(client, *[b"a"] * 50, b"b", *[b"a"] * 50, codec=codec)
    await produce(client, b"c", codec=codec)
    given = await given_records(Member(client), records=5)
    assert given == [(0, b"a"), (1, b"a"), (50, b"b"), (151, b"b"), (303, b"c")]


async def test_batches_of_which_most_is_given_are_sent_as_they_lie() -> None:
    client = await with_lanes({LANE: "key"}, b"a", b"a", b"b")
    assert len(await given_records(Member(client), records=2)) == 3


def compact(client: Client, key: Any) -> None:
    """Have compaction leave the records with key b of a queue's only batch."""
    state, shard = client.worker.any_shard().state, client.worker.any_shard()
    ((last, found),) = state.batches(key, 0, 100)
    head = bytes(shard.segments.data)[found.position : found.position + found.length]
    kept = [one for one in keyed_records(read_header(head), unpacked(head)) if one.key == b"b"]
    smaller = with_records(read_header(head), [one.data for one in kept], TODAY_MS)
    shard.append([copy_of(key, last, found, smaller, 1)])


async def test_records_behind_a_hole_are_given_again_after_lanes_were_set() -> None:
    """FAULT: what was given without lanes, and begins with a hole, was archived as one."""
    client = await a_queue()
    await produce(client, b"a", b"b", b"a", b"b", b"b")
    compact(client, initialise(client))
    one, two = Member(client, "one"), Member(client, "two")
    assert offsets(await one.given()) == [0, 1, 2, 3, 4], "as Kafka acquires a batch"
    await configure(client, **{LANE: "key"})
    assert await two.given() == []
    await one.says((0, 4, (RELEASE,)))
    assert offsets(await two.given()) == [1, 3, 4]
    assert row(client).start == 1


async def test_records_that_compaction_has_taken_since_are_done_and_not_given() -> None:
    client = await with_lanes({LANE: "key"}, *[b"a"] * 40, b"b")
    member = Member(client)
    assert offsets(await member.given(records=1)) == [0]
    compact(client, share_of(client).key)
    assert await given_records(member, records=3) == [(40, b"b")]
    await member.given()
    assert row(client).done + row(client).start >= 2


async def test_an_answer_that_is_cut_has_no_more_bytes_than_asked_for() -> None:
    client = await with_lanes({LANE: "key"})
    for name in (b"a", b"b", b"c"):
        sent = keyed(*[(b"x%d" % at, b"small") for at in range(50)], (name, b"v" * 4000))
        await client.call(0, 9, produce_values("q", sent))
    member = Member(client)
    first = await given_records(member, records=200, max_bytes=5000)
    assert 0 < len(first) < 100
    rest = await given_records(Member(client, "n"), records=200)
    assert {key for _, key in (*first, *rest)} >= {b"a", b"b", b"c"}


HOLDING = {**ORDERED, ON_DEAD: "hold"}


async def test_a_lane_whose_record_was_rejected_is_held_until_it_is_freed() -> None:
    client = await with_lanes(HOLDING, b"a", b"a", b"b", b"b")
    member = Member(client)
    assert offsets(await member.given()) == [0, 2]
    await member.says((0, 0, (REJECT,)), (2, 2, (ACCEPT,)))
    assert offsets(await member.given()) == [3]
    key = initialise(client)
    client.worker.any_shard().claim_offset += 1
    assert offsets(await Member(client, "n").given()) == [3]  # a new owner holds it, too
    freed = FreeLanes(key, GROUP, [(hash_of(b"a"),)])
    client.worker.any_shard().append([freed.envelope()])
    assert offsets(await Member(client, "o").given()) == [1]


async def test_a_lane_whose_record_was_given_too_often_is_held() -> None:
    client = await with_lanes({**HOLDING, "share.delivery.count.limit": "2"}, b"a", b"a")
    member = Member(client)
    for deliveries in (1, 2):
        assert await member.given() == [(0, 0, deliveries)]
        await member.says((0, 0, (RELEASE,)))
    assert await member.given() == []
    assert row(client).start == 1


async def test_a_reset_frees_held_lanes() -> None:
    client = await with_lanes(HOLDING, b"a", b"a")
    member = Member(client)
    assert offsets(await member.given()) == [0]
    await member.says((0, 0, (REJECT,)))
    initialise(client, start=EARLIEST, epoch=2)
    assert offsets(await member.given()) == [0]


async def test_a_rejection_that_comes_twice_holds_a_lane_once() -> None:
    client = await with_lanes(HOLDING, b"a", b"a")
    member = Member(client)
    await member.given()
    await member.says((0, 0, (REJECT,)))
    shard: Any = client.worker.any_shard()
    late = next(one for one in reversed(shard.log) if one.kind == Kind.SHARE)
    shard.append([FreeLanes(initialise(client), GROUP, [(hash_of(b"a"),)]).envelope()])
    shard.append([late])
    assert offsets(await member.given()) == [1]
