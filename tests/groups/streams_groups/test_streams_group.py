"""Streams groups as rules: tasks move from member to member, and outlive coordinators."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from kproxy.common.errors import Code
from kproxy.groups.model.streams_group import StreamsGroup, StreamsState
from kproxy.groups.model.streams_member import StreamsMember
from kproxy.loop import steps
from kproxy.loop.steps import at_once
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows.groups import Change
from kproxy.virtual.rows.kinds import RowKind
from tests.groups.streams_groups.threads import (
    LargeThread,
    Stage,
    Thread,
    internal,
    part,
    settle,
    topology,
)
from tests.held import HELD_S, held_by, slowness

ONE = topology(part("0", "q"))
COUNTS = topology(
    part("0", "q", sinks=("r",)),
    part("1", repartitions=(internal("r"),), changelogs=("c",)),
)


async def test_a_member_gets_all_tasks_and_the_next_one_half() -> None:
    stage = Stage("q")
    one, two = Thread(stage, "one", ONE), Thread(stage, "two", ONE)
    assert await one.beat() == {"active 0": [0, 1, 2, 3]}
    assert await two.beat() == {}  # they are the first's still
    await settle(one, two)
    assert sorted(one.has["active 0"] + two.has["active 0"]) == [0, 1, 2, 3]
    assert len(one.has["active 0"]) == 2
    assert stage.group().state == StreamsState.STABLE


async def test_a_task_goes_to_nobody_before_it_is_given_up() -> None:
    stage = Stage("q")
    one, two = Thread(stage, "one", ONE), Thread(stage, "two", ONE)
    await one.beat()
    before = one.owned()
    await two.beat()
    await one.beat()  # told to give up
    await one.beat(owned=before)
    assert await two.beat() == {}
    assert stage.group().state == StreamsState.RECONCILING
    await one.beat()
    assert len((await two.beat())["active 0"]) == 2


async def test_a_new_coordinator_goes_on() -> None:
    stage = Stage("q")
    one, two = Thread(stage, "one", ONE), Thread(stage, "two", ONE)
    await one.beat()
    await two.beat()
    await one.beat()
    before = stage.group().epoch
    stage.take_over()
    await settle(one, two)
    assert sorted(one.has["active 0"] + two.has["active 0"]) == [0, 1, 2, 3]
    assert stage.group().epoch == before
    member = stage.group().members["one"]
    assert member.epochs.keys() == {task for task in member.assigned if task[0][0] == 0}


async def test_topology_outlives_the_last_member_and_goes_with_the_group() -> None:
    stage = Stage("q")
    one = Thread(stage, "one", ONE)
    await one.beat()
    assert await one.beat(member_epoch=-1) == {"active 0": [0, 1, 2, 3]}
    assert [key for key, _ in stage.shard.kv.scan(*RowKind.MEMBER.range())] == [
        group_rows.member_key("g", group_rows.TOPOLOGY_ROW)
    ]
    other = Thread(stage, "other", topology(part("9", "q")))
    assert await other.beat() == Code.INVALID_REQUEST
    assert stage.coordinator.groups == {}
    assert await stage.coordinator.delete("g") == Code.NONE
    assert list(stage.shard.kv.scan(*RowKind.MEMBER.range())) == []
    assert await other.beat() == {"active 9": [0, 1, 2, 3]}


async def test_a_streams_group_without_members_becomes_classic_and_back() -> None:
    stage = Stage("q")
    one = Thread(stage, "one", ONE)
    await one.beat()
    with pytest.raises(Exception, match="INCONSISTENT_GROUP_PROTOCOL"):
        await stage.coordinator.open_classic("g")
    await one.beat(member_epoch=-1)
    classic = await stage.coordinator.open_classic("g")
    assert not await stage.coordinator.log(classic)
    assert list(stage.shard.kv.scan(*RowKind.MEMBER.range())) == []
    head = stage.coordinator.head("g")
    assert head is not None
    assert head.kind == "classic"
    assert await Thread(stage, "one", topology(part("9", "q"))).beat() == {"active 9": [0, 1, 2, 3]}


async def test_missing_topics_are_said_until_they_are_there() -> None:
    stage = Stage("q")
    one = Thread(stage, "one", COUNTS)
    assert await one.beat() == {}
    assert one.statuses == [3]
    assert [(m.topic.name, m.partitions) for m in one.told.missing] == [("c", 4), ("r", 4)]
    assert stage.group().state == StreamsState.NOT_READY
    stage.create("r", 4)
    stage.create("c", 4)
    assert await one.beat() == {"active 0": [0, 1, 2, 3], "active 1": [0, 1, 2, 3]}
    assert one.statuses == []


async def test_standby_tasks_lie_in_another_process() -> None:
    stage = Stage("q", "r", "c", streams_num_standby_replicas=1)
    threads = [Thread(stage, name, COUNTS, process) for name, process in ("aA", "bA", "cB", "dB")]
    for thread in threads:
        await thread.beat()
    await settle(*threads)
    for process in "AB":
        own = [thread for thread in threads if thread.process == process]
        active = [p for thread in own for p in thread.has.get("active 1", [])]
        standby = [p for thread in own for p in thread.has.get("standby 1", [])]
        assert sorted(active + standby) == [0, 1, 2, 3]
    stage.settings = stage.settings.__class__(streams_assignment_interval_ms=0)
    await settle(*threads)
    assert not any(key.startswith("standby") for thread in threads for key in thread.has)


async def test_a_first_target_waits_for_more_members() -> None:
    stage = Stage("q", streams_initial_rebalance_delay_ms=3000)
    one, two = Thread(stage, "one", ONE), Thread(stage, "two", ONE)
    assert await one.beat() == {}
    assert one.statuses == [5]
    assert await two.beat() == {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.coordinator.subscriptions.run)
        stage.fire_timers(stage.coordinator.now() + 4)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert len((await one.beat())["active 0"]) == 2
    assert len((await two.beat())["active 0"]) == 2


async def test_a_member_that_does_not_give_up_in_time_is_taken_out() -> None:
    stage = Stage("q")
    one, two = Thread(stage, "one", ONE), Thread(stage, "two", ONE)
    await one.beat()
    await two.beat()
    await one.beat()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.coordinator.background.run)
        stage.fire_timers(stage.coordinator.now() + 6)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert await one.beat() == Code.UNKNOWN_MEMBER_ID
    assert await two.beat() == {"active 0": [0, 1, 2, 3]}


async def test_a_shutdown_is_told_to_all_until_nobody_is_left() -> None:
    stage = Stage("q")
    one, two = Thread(stage, "one", ONE), Thread(stage, "two", ONE)
    await one.beat()
    await two.beat(shutdown=True)
    await one.beat()
    assert one.statuses == [4]
    await two.beat(member_epoch=-1)
    await one.beat()
    assert one.statuses == [4]
    await one.beat(member_epoch=-1)
    one.epoch = 0
    await one.beat()
    assert one.statuses == []


async def test_an_older_epoch_may_commit_what_it_has_had_since() -> None:
    stage = Stage("q")
    one, two = Thread(stage, "one", ONE), Thread(stage, "two", ONE)
    await one.beat()
    first = one.epoch
    await two.beat()
    await settle(one, two)
    group = stage.group()
    assert one.epoch > first
    assert group.commit_fault("one", None, first, 9) == Code.NONE
    kept, gone = one.has["active 0"][0], two.has["active 0"][0]
    assert group.task_fault("one", first, "q", kept) == Code.NONE
    assert group.task_fault("one", first, "q", gone) == Code.STALE_MEMBER_EPOCH
    assert group.task_fault("one", first - 1, "q", kept) == Code.STALE_MEMBER_EPOCH
    assert group.task_fault("two", first, "q", gone) == Code.STALE_MEMBER_EPOCH
    assert group.task_fault("one", first, "other", kept) == Code.STALE_MEMBER_EPOCH
    stage.take_over()
    assert await one.beat() is not None
    assert stage.group().task_fault("one", first, "q", kept) == Code.NONE


async def test_a_refused_first_heartbeat_leaves_nothing() -> None:
    stage = Stage("q")
    loop = topology(part("0", sinks=("r",), repartitions=(internal("r"),)))
    assert await Thread(stage, "one", loop).beat() == Code.STREAMS_INVALID_TOPOLOGY
    assert stage.coordinator.groups == {}
    assert len(stage.coordinator.timers) == 0
    assert list(stage.shard.kv.scan(*RowKind.GROUP.range())) == []


@asynccontextmanager
async def looking(stage: Stage) -> AsyncIterator[None]:
    """Have the coordinator do what it does beside heartbeats."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.coordinator.subscriptions.run)
        yield
        tasks.cancel_scope.cancel()


async def beat_until(count: int, *threads: Thread) -> None:
    """Beat until each of the members has so many tasks."""
    while not all(sum(map(len, thread.has.values())) == count for thread in threads):
        for thread in threads:
            await thread.beat()
        await anyio.lowlevel.checkpoint()


@pytest.mark.long
async def test_a_hundred_thousand_tasks_hold_nobody_up() -> None:
    slow = slowness()
    stage = Stage("q", partitions=50_000)
    stage.create("p", 50_000)
    big = topology(part("0", "q"), part("1", "p"))
    one, two = LargeThread(stage, "one", big), LargeThread(stage, "two", big)

    async def joined() -> None:
        async with looking(stage):
            await beat_until(100_000, one)

    async def shared() -> None:
        async with looking(stage):
            await two.beat()
            await beat_until(50_000, one, two)

    async def taken_over() -> None:
        async with looking(stage):
            await one.beat()
            await two.beat()
            while stage.group().configured is None:
                await anyio.lowlevel.checkpoint()

    async def elsewhere() -> None:
        async with looking(stage):
            await one.beat(member_epoch=0, process="another")
            while stage.group().target_epoch < stage.group().epoch:
                await anyio.lowlevel.checkpoint()

    async def left() -> None:
        await two.beat(member_epoch=-1)
        async with looking(stage):
            await beat_until(100_000, one)
        await one.beat(member_epoch=-1)

    for phase in (joined, shared, taken_over, elsewhere, left):
        if phase is taken_over:
            stage.take_over()
        _, held = await held_by(phase())
        assert held < HELD_S * slow, phase.__name__


async def test_more_tasks_than_a_group_may_have_are_said_and_not_assigned() -> None:
    stage = Stage("q", partitions=50_000)
    stage.create("p", 50_001)
    one = Thread(stage, "one", topology(part("0", "q"), part("1", "p")))
    assert await one.beat() == {}
    assert one.statuses == [2]


async def test_a_refused_heartbeat_takes_nothing_from_the_next_one() -> None:
    stage = Stage("q")
    one = Thread(stage, "one", COUNTS)
    await one.beat()
    stage.create("r", 4)
    await one.beat()
    stage.create("c", 4)
    assert await one.beat(owned=[(0, "0", (99,))]) == Code.INVALID_REQUEST
    assert await one.beat() == {"active 0": [0, 1, 2, 3], "active 1": [0, 1, 2, 3]}


LARGE = topology(*(part(f"{number:03}", f"q{number}") for number in range(300)))


def large() -> Stage:
    """Return a stage whose topology takes longer to look at than a heartbeat may."""
    return Stage(*(f"q{number}" for number in range(300)), partitions=1)


async def test_a_large_topology_that_cannot_be_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "AT_ONCE", 1)
    stage = large()
    never = topology(part("0", "q0", repartitions=(internal("r"),)))
    assert await Thread(stage, "one", never).beat() == Code.STREAMS_INVALID_TOPOLOGY
    assert stage.coordinator.groups == {}


async def test_a_new_coordinator_takes_no_tasks_while_it_looks_at_a_large_topology(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "AT_ONCE", 1)
    stage = large()
    one, two = Thread(stage, "one", LARGE), Thread(stage, "two", LARGE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.coordinator.subscriptions.run)
        await one.beat()
        await anyio.wait_all_tasks_blocked()
        assert len(await one.beat()) == 300
        tasks.cancel_scope.cancel()
    epoch = stage.group().epoch
    stage.take_over()
    await one.beat()
    assert stage.group().epoch == epoch
    await two.beat()  # the topics are not looked at yet
    assert len(await one.beat()) == 300


async def test_names_and_tags_of_members_count_as_bytes_to_log() -> None:
    group = StreamsGroup("g", Stage().coordinator)
    for number in range(200):
        member = StreamsMember(str(number))
        member.client_id = member.process = "x" * 30_000
        group.put(member)
    group.was_logged(Change({}, 0, {}))
    assert 1 < len(at_once(group.change()).rows) < 200
