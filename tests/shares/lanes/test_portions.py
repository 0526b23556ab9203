"""Work on records of lanes that lie apart: so much of it at once."""

import threading
from typing import Any

import pytest

from kproxy.metadata.lane_settings import IN_FLIGHT, LANE, ON_DEAD, RATE
from kproxy.shares.lanes import cutting, lane_window, share_lanes
from kproxy.shares.lanes.index import LaneIndex, Turns
from kproxy.shares.lanes.lane_window import LaneWindow
from kproxy.shares.lanes.reading import hash_of
from kproxy.shares.taking import Limits
from kproxy.virtual.commands.shares import Cause, FreeLanes
from kproxy.virtual.rows.shares import RecordState, state_byte
from tests.present import present
from tests.shares.lanes.test_lanes import offsets, produce, with_lanes
from tests.shares.test_polls import GROUP, REJECT, Member, share_of
from tests.wire import keyed, produce_values

LIMITS = Limits(5, 100, 10)


def window(size: int, state: int = 0, of: range | None = None) -> LaneWindow:
    """Return a window of one lane with records at some offsets."""
    made = LaneWindow(0, bytearray([state]) * size)
    made.lanes = LaneIndex(0, Turns(), 1)
    offsets = of or range(size)
    made.lanes.add(offsets, [7] * len(offsets))
    return made


def test_holes_that_lie_apart_are_archived_some_at_a_time_in_order() -> None:
    """FAULT: a compacted queue or one of small transactions has as many as the lookahead has
    records: all were archived at once, which held the loop."""
    most = lane_window._RUNS_MAX
    size = 5 * most
    made = window(size, of=range(0, size, 2))
    made.holes = [(at, at + 1) for at in range(1, size, 2)]
    archived: list[int] = []
    for number in range(3):
        taken = made.acquire_by_lane("m", LIMITS, 9.0, number, 0.0)
        assert len(taken.archived.runs) <= most
        archived += [run.first for run in taken.archived.runs]
        made.settle(taken.archived, (), 0.0)
    assert archived == list(range(1, size, 2))
    assert not made.holes


def test_records_that_were_given_too_often_are_archived_some_at_a_time() -> None:
    """FAULT: with a lower limit all of them were at once."""
    size = 3 * lane_window._RUNS_MAX
    made = window(size, state_byte(RecordState.AVAILABLE, 7))
    taken = made.acquire_by_lane("m", LIMITS, 9.0, 1, 0.0)
    assert not taken.ranges
    assert {run.cause for run in taken.archived.runs} == {Cause.DELIVERY_LIMIT}
    assert len(taken.archived.runs) < size


def test_holes_end_where_so_many_offsets_are_archived() -> None:
    made = window(10)
    wide = lane_window._HOLE_MAX
    made._grow(3 * wide)
    made.holes = [(10, wide), (wide, 3 * wide)]
    for upto in (wide + 10, 2 * wide + 10, 3 * wide):
        taken = made.acquire_by_lane("m", LIMITS, 9.0, 1, 0.0)
        assert sum(taken.archived.runs[-1][:2]) == upto
        made.settle(taken.archived, (), 0.0)
    assert not made.holes


def test_lanes_that_have_reached_their_rate_are_passed_over_some_at_a_time() -> None:
    """FAULT: all were in one go: with 100,000 lanes that held the loop for 0.2 s."""
    made = LaneWindow(0, bytearray(60))
    made.lanes = LaneIndex(0, Turns(rate=3600.0), 1)
    made.lanes.add(range(60), [*range(30), *range(30)])
    assert len(made.acquire_by_lane("m", LIMITS._replace(records_max=30), 9.0, 1, 0.0).ranges) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_window, "PASSES_MAX", 7)
        for number in range(1, 6):
            assert not made.acquire_by_lane("m", LIMITS, 9.0, 2, 0.0).ranges
            assert made.lanes.resting == min(30, 7 * number)
            assert made.lanes.is_ready == (not made.lanes.passes) == (number < 5)


async def test_a_poll_goes_on_behind_lanes_that_have_reached_their_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = await with_lanes({LANE: "key", RATE: "1/h"}, *[b"%d" % at for at in range(9)] * 2)
    member = Member(client)
    assert len(offsets(await member.given())) == 9
    await produce(client, b"9")
    monkeypatch.setattr(lane_window, "PASSES_MAX", 2)
    assert offsets(await member.given(records=1)) == [18]


async def test_much_is_not_packed_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: records of batches in memory were: 8 MB of them with gzip took a third of a second."""
    monkeypatch.setattr(cutting, "PACKED_BYTES_MAX", 1000)
    made, places = cutting.gapped_batch, list[bool]()

    def noted(*args: Any) -> bytes:
        places.append(threading.current_thread() is threading.main_thread())
        return made(*args)

    monkeypatch.setattr(cutting, "gapped_batch", noted)
    client = await with_lanes({LANE: "key"})
    sent = [(b"a", b"v" * 30), *[(b"x%d" % at, b"v" * 30) for at in range(200)]]
    await client.call(0, 9, produce_values("q", keyed(*sent, *sent, codec=3)))
    member = Member(client)
    assert await member.given(records=20)
    assert await member.given(records=80)
    assert await member.given(records=5)
    assert places == [False, False, True]


async def test_rows_of_held_lanes_are_looked_at_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: all were in one go, with each release: where an outage holds 100,000 lanes, that held
    the loop for a quarter of a second."""
    monkeypatch.setattr(share_lanes, "_HELD_AT_ONCE", 3)
    client = await with_lanes({LANE: "key", IN_FLIGHT: "1", ON_DEAD: "hold"})
    await produce(client, *[b"%d" % at for at in range(7)] * 2)
    one = Member(client, "one")
    assert offsets(await one.given()) == [*range(7)]
    await one.says((0, 5, (REJECT,)))
    shard: Any = client.worker.any_shard()
    shard.claim_offset += 1
    two = Member(client, "two")
    assert offsets(await two.given()) == [6]
    share = share_of(client)
    lanes = present(share.lanes)
    lanes.is_stale = True
    assert [lanes.hold_again() for _ in range(3)] == [False, False, True]
    assert lanes.hold_again()
    freed = [(hash_of(b"0"),), (hash_of(b"5"),)]
    shard.append([FreeLanes(share.key, GROUP, freed).envelope()])
    assert not lanes.hold_again()
    lanes.hold(1)
    assert lanes.hold_again()
    assert 1 in lanes.index.held
    assert offsets(await two.given()) == [7, 12]
