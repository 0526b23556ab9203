"""Share groups as rules: who is a member at which epoch, and what is made before it is assigned."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.model.assigned_group import State
from kproxy.groups.model.assigned_member import AssignedMember
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.requests import share_offsets
from kproxy.groups.requests.assigned_heartbeat import HeartbeatRequest
from kproxy.groups.requests.share_heartbeat import check, heartbeat
from kproxy.groups.requests.share_offsets import NewStart
from kproxy.log.base import Ticket
from kproxy.metadata.group_settings import GroupSettings
from kproxy.metadata.group_values import AutoOffsetReset, OffsetReset
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.shares import NoteShareQueues, SetShares, ShareAction, ShareChange
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.rows.shares import SHARE_PARTITIONS
from tests.commands import command
from tests.fakes import refused_append
from tests.groups import rules
from tests.groups.rules import StandingCoordinator
from tests.present import present

JOIN = HeartbeatRequest(
    group_id="g", member_id="a", member_epoch=0, rack=None, topics=("q",), client_id="c", host="/h"
)
STAY = replace(JOIN, member_epoch=2, topics=None)
LEAVE = replace(STAY, member_epoch=-1)


class Stage(rules.Stage):
    """A coordinator of share groups, its shard, and queues in it."""

    def __init__(self, *queues: str, interval_ms: int = 0, **settings: Any) -> None:
        super().__init__(GroupSettings(assignment_interval_ms=interval_ms), **settings)
        for name in queues:
            self.create(name)

    def grow(self, name: str, partitions: int) -> None:
        queue_id = self.queue(name).queue_id
        assert not self.shard.apply(command(Kind.GROW, queue_id, number=partitions)).code

    def queue(self, name: str) -> Queue:
        return present(self.coordinator.lookup.find(name))

    async def beat(self, asked: HeartbeatRequest) -> Any:
        """Beat; return (epoch, partition names) as answered, or the code."""
        try:
            result = await heartbeat(self.coordinator, asked)
        except KafkaError as error:
            return error.code
        if result.assigned is None:
            return result.member_epoch, None
        names = {bytes(queue_id).strip(b".").decode() + str(index)
                 for queue_id, index in result.assigned}  # fmt: skip
        return result.member_epoch, " ".join(sorted(names))

    @property
    def group(self) -> ShareGroup:
        found = self.coordinator.find("g")
        assert isinstance(found, ShareGroup)
        return found

    def logged(self, kind: Kind) -> list[Envelope]:
        return [envelope for envelope in self.shard.log if envelope.kind == kind]

    def share(self, name: str, index: int = 0) -> Any:
        key = self.queue(name).queue_id, index
        return SHARE_PARTITIONS.get(self.shard.state.get, key, "g")

    def rows(self, kind: RowKind) -> int:
        return sum(1 for _ in self.shard.kv.scan(*kind.range()))


async def joined(*queues: str, **settings: Any) -> Stage:
    """Return a stage whose group has a member."""
    stage = Stage(*queues, **settings)
    await stage.beat(JOIN)
    return stage


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({}, Code.NONE, None),
        ({"member_id": ""}, Code.INVALID_REQUEST, None),
        ({"member_id": "x" * 36}, Code.NONE, None),
        ({"member_id": "x" * 37}, Code.INVALID_REQUEST, None),
        ({"group_id": " "}, Code.INVALID_REQUEST, "GroupId can't be empty."),
        ({"rack": ""}, Code.INVALID_REQUEST, "RackId can't be empty."),
        ({"member_epoch": -2}, Code.INVALID_REQUEST, "MemberEpoch is invalid."),
        ({"topics": None}, Code.INVALID_REQUEST,
         "SubscribedTopicNames must be set in first request."),
        ({"topics": ()}, Code.INVALID_REQUEST,
         "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": 1, "topics": ()}, Code.NONE, None),
        ({"member_epoch": -1, "topics": None}, Code.NONE, None),
    ],
)  # fmt: skip
def test_requests_refused_without_a_group(changes: Any, code: Code, message: str | None) -> None:
    found, text = Code.NONE, None
    try:
        check(replace(JOIN, **changes))
    except KafkaError as error:
        found, text = error.code, error.message
    assert (found, text) == (code, message)


CASES: list[tuple[str, list[HeartbeatRequest], list[Any]]] = [
    ("joins, stays, leaves", [JOIN, STAY, LEAVE], [(2, "q0"), (2, None), (-1, None)]),
    ("no such group", [STAY], [Code.GROUP_ID_NOT_FOUND]),
    ("leaves no such group", [LEAVE], [Code.GROUP_ID_NOT_FOUND]),
    ("no such member", [JOIN, replace(STAY, member_id="b"), replace(LEAVE, member_id="b")],
     [(2, "q0"), Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID]),
    ("no member is left", [JOIN, LEAVE, STAY, LEAVE],
     [(2, "q0"), (-1, None), Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID]),
    ("an epoch to come", [JOIN, replace(STAY, member_epoch=3)],
     [(2, "q0"), Code.FENCED_MEMBER_EPOCH]),
    ("an answer was lost",
     [JOIN, replace(JOIN, member_epoch=2, topics=("r",)), STAY, replace(STAY, member_epoch=1)],
     [(2, "q0"), (3, "r0"), (3, None), Code.FENCED_MEMBER_EPOCH]),
    ("the same names once more", [JOIN, replace(JOIN, member_epoch=2, topics=("q", "q"))],
     [(2, "q0"), (2, "q0")]),
    ("joins again", [JOIN, JOIN], [(2, "q0"), (2, "q0")]),
    ("wants nothing any more", [JOIN, replace(STAY, topics=())], [(2, "q0"), (3, "")]),
    ("queues that are not there", [replace(JOIN, topics=("none", "bad name!", ""))], [(2, "")]),
    ("another rack", [JOIN, replace(STAY, rack="r")], [(2, "q0"), (2, None)]),
    ("two share what there is", [JOIN, replace(JOIN, member_id="b"), STAY],
     [(2, "q0"), (3, "q0"), (3, None)]),
    ("after the last has left",
     [JOIN, LEAVE, replace(JOIN, member_id="b")], [(2, "q0"), (-1, None), (4, "q0")]),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "answers"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
async def test_answers(requests: list[HeartbeatRequest], answers: list[Any]) -> None:
    stage = Stage("q", "r")
    assert [await stage.beat(asked) for asked in requests] == answers


async def test_a_group_takes_so_many_members() -> None:
    stage = Stage("q", group_share_max_size=2)
    codes = [await stage.beat(replace(JOIN, member_id=name)) for name in "abcb"]
    assert codes[2] == Code.GROUP_MAX_SIZE_REACHED
    assert codes[3] == (3, "q0")


async def test_failed_join_leaves_nothing_behind() -> None:
    """FAULT: a group that nobody could join stayed in memory, and so did its place."""
    stage = Stage("q", groups_joined_max=1)
    assert await stage.beat(replace(JOIN, member_epoch=0, topics=("q",))) == (2, "q0")
    await stage.beat(LEAVE)
    assert not stage.coordinator.groups
    assert await stage.beat(replace(JOIN, group_id="other")) == (2, "q0")
    assert await stage.beat(JOIN) == Code.COORDINATOR_NOT_AVAILABLE


async def test_a_heartbeat_that_changes_nothing_logs_nothing() -> None:
    stage = await joined("q")
    logged = len(stage.shard.log)
    for _ in range(3):
        assert await stage.beat(STAY) == (2, None)
    assert len(stage.shard.log) == logged


async def test_changes_of_a_member_are_logged() -> None:
    stage = await joined("q")
    await stage.beat(replace(STAY, rack="r", host="/other"))
    stage.take_over()
    member = stage.group.members["a"]
    assert (member.rack, member.host, member.client_id) == ("r", "/other", "c")


# -- share partitions


async def test_share_partitions_are_made_before_they_are_assigned() -> None:
    stage = Stage()
    stage.create("q", 3)
    assert await stage.beat(JOIN) == (2, "q0 q1 q2")
    kinds = [envelope.kind for envelope in stage.shard.log[1:]]
    assert kinds == [Kind.GROUP, Kind.SHARE_SET, Kind.SHARE_QUEUES, Kind.GROUP]
    assert all(stage.share("q", index).epoch == 1 for index in range(3))  # the first GROUP's offset


@pytest.mark.parametrize(
    ("reset", "start", "since_ms"),
    [
        (AutoOffsetReset(OffsetReset.LATEST), -1, -1),
        (AutoOffsetReset(OffsetReset.EARLIEST), -2, -1),
        (AutoOffsetReset(OffsetReset.BY_DURATION, 1000), -1, 999_000),
        (AutoOffsetReset(OffsetReset.BY_DURATION, 2_000_000), -1, 0),
    ],
)
async def test_group_begins_at_its_reset_setting(
    reset: AutoOffsetReset, start: int, since_ms: int
) -> None:
    stage = Stage("q")
    stage.settings = replace(stage.settings, auto_offset_reset=reset)
    await stage.beat(JOIN)
    (change,) = SetShares.decode(stage.logged(Kind.SHARE_SET)[0]).changes
    assert (change.action, change.start, change.since_ms) == (
        ShareAction.INITIALISE, start, since_ms,
    )  # fmt: skip


async def test_a_queue_that_grows_has_only_the_new_partitions_made() -> None:
    stage = await joined("q")
    stage.grow("q", 3)
    stage.group.refresh_again_at = -math.inf
    assert await stage.beat(STAY) == (3, "q0 q1 q2")
    made = SetShares.decode(stage.logged(Kind.SHARE_SET)[-1]).changes
    assert [change.key[1] for change in made] == [1, 2]
    assert stage.group.initialised == {stage.queue("q").queue_id: 3}


async def test_a_queue_that_is_created_later_is_assigned() -> None:
    stage = Stage()
    assert await stage.beat(JOIN) == (2, "")
    stage.create("q")
    stage.group.refresh_again_at = -math.inf
    assert await stage.beat(STAY) == (3, "q0")


async def test_members_that_want_what_is_made_already_make_nothing() -> None:
    stage = await joined("q")
    await stage.beat(replace(JOIN, member_id="b"))
    await stage.beat(replace(LEAVE, member_id="a"))
    await stage.beat(replace(LEAVE, member_id="b"))
    await stage.beat(JOIN)
    assert len(stage.logged(Kind.SHARE_SET)) == len(stage.logged(Kind.SHARE_QUEUES)) == 1


def without(stage: Stage, kind: Kind) -> Any:
    """Lose envelopes of this kind from now on; return the function that ends that."""
    append = stage.shard.append

    def losing(envelopes: Sequence[Envelope]) -> Ticket:
        if any(envelope.kind == kind for envelope in envelopes):
            return refused_append(envelopes, Code.REQUEST_TIMED_OUT)
        return append(envelopes)

    stage.shard.append = losing

    def end() -> None:
        stage.shard.append = append

    return end


@pytest.mark.parametrize("lost", [Kind.SHARE_SET, Kind.SHARE_QUEUES])
async def test_nothing_is_assigned_that_was_not_made(lost: Kind) -> None:
    """A member still joins; whoever serves the shard next makes what there is to make."""
    stage = Stage("q")
    end = without(stage, lost)
    assert await stage.beat(JOIN) == (2, "")
    assert stage.group.initialising
    assert await stage.beat(STAY) == (2, None)
    end()
    made = stage.share("q")
    stage.take_over()
    assert await stage.beat(STAY) == (3, "q0")
    if made is not None:  # FAULT: it was made anew, and what came in between was passed over
        assert stage.share("q") == made
    assert (stage.rows(RowKind.SHARE_PARTITION), stage.rows(RowKind.SHARE_QUEUE)) == (1, 1)


async def test_unassigned_partitions_are_assigned_by_the_next_coordinator() -> None:
    """FAULT: the target of former times was taken for that of all share partitions."""
    stage = Stage("q", interval_ms=1_000_000_000)
    assert await stage.beat(JOIN) == (2, "q0")
    stage.create("r")
    assert await stage.beat(replace(JOIN, member_epoch=2, topics=("q", "r"))) == (2, "q0")
    stage.take_over()  # the interval begins anew, too
    assert await stage.beat(STAY) == (3, "q0 r0")


async def test_a_target_logged_before_share_partitions_were_is_made_anew() -> None:
    stage = await joined("q")
    queue_id, version = stage.create("r"), stage.coordinator.head("g")
    assert version is not None
    note = NoteShareQueues("g", version.version, [(queue_id, 1)])
    assert not stage.shard.apply(note.envelope()).code
    stage.take_over()
    assert stage.group.epoch == stage.group.target_epoch + 1


async def test_a_late_note_of_a_former_coordinator_is_void() -> None:
    stage = await joined("q", "r")
    head = present(stage.coordinator.head("g"))
    late = NoteShareQueues("g", head.version, [(stage.queue("r").queue_id, 1)])
    stage.take_over()
    await stage.beat(replace(JOIN, member_id="b"))
    assert stage.shard.apply(late.envelope()).code == Code.NOT_COORDINATOR
    assert stage.rows(RowKind.SHARE_QUEUE) == 1


# -- takeover


async def test_a_new_coordinator_knows_the_members_and_gives_them_a_whole_session() -> None:
    stage = await joined("q")
    await stage.beat(replace(JOIN, member_id="b"))
    stage.take_over()
    group = stage.group
    assert (sorted(group.members), group.epoch, group.state) == (["a", "b"], 3, State.STABLE)
    assert group.initialised == {stage.queue("q").queue_id: 1}
    now = stage.coordinator.now()
    assert all(44 < member.deadline - now <= 45 for member in group.members.values())
    logged = len(stage.shard.log)
    assert await stage.beat(replace(STAY, member_id="b", member_epoch=3)) == (3, None)
    assert len(stage.shard.log) == logged
    assert await stage.beat(STAY) == (3, None)  # it has that partition already


async def test_a_group_that_another_owner_changed_is_read_again_though_nobody_asks() -> None:
    """FAULT: its members' sessions did not run until somebody asked for the group."""
    stage = await joined("q")
    late = stage.coordinator
    stage.take_over(end=False)
    await stage.beat(replace(JOIN, member_id="b"))
    group: Any = late.groups["g"]
    group.remove("a")
    assert await late.log(group) == Code.NOT_COORDINATOR
    assert not late.groups
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(late.background.run)
        with anyio.fail_after(10):
            while not late.groups:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert sorted(late.groups["g"].members) == ["a", "b"]
    assert late.timers.next < math.inf


async def test_an_empty_group_keeps_its_epoch_and_its_queues() -> None:
    stage = await joined("q")
    await stage.beat(LEAVE)
    stage.take_over()
    assert stage.coordinator.find("g") is None
    assert await stage.beat(replace(JOIN, member_id="b")) == (4, "q0")
    assert len(stage.logged(Kind.SHARE_SET)) == 1


async def test_member_silent_for_a_session_is_out() -> None:
    home: Any = StandingCoordinator()
    home.settings = GroupSettings(share_session_timeout_ms=45_000)
    group = ShareGroup("g", home)
    group.put(AssignedMember("a"))
    group.put(AssignedMember("b"))
    home.pass_time(40)
    group.renew_session(group.members["b"])
    home.pass_time(10)
    assert (home.fenced, sorted(group.members)) == (["a"], ["b"])
    home.settings = GroupSettings(share_session_timeout_ms=5000)  # it is read at each use
    group.renew_session(group.members["b"])
    home.pass_time(6)
    assert home.fenced == ["a", "b"]


# -- other protocols


async def test_a_share_group_is_no_group_of_another_protocol_nor_the_other_way() -> None:
    stage = await joined("q")
    for empty in (False, True):
        if empty:
            await stage.beat(LEAVE)
        with pytest.raises(KafkaError) as refused:
            await stage.coordinator.open_classic("g")
        assert refused.value.code == Code.INCONSISTENT_GROUP_PROTOCOL
        for create in (False, True):
            with pytest.raises(KafkaError) as refused:
                await stage.coordinator.open_consumer("g", create=create)
            assert refused.value.code == Code.GROUP_ID_NOT_FOUND
            assert refused.value.message == "Group g is not a consumer group."
    await stage.coordinator.open_classic("old")
    for epoch in (0, 1, -1):
        assert await stage.beat(replace(JOIN, group_id="old", member_epoch=epoch)) == (
            Code.GROUP_ID_NOT_FOUND
        )


# -- offsets and deletion


async def test_starts_are_set_while_nobody_is_a_member() -> None:
    stage = await joined("q", "r")
    coordinator, queue = stage.coordinator, stage.queue("q")
    with pytest.raises(KafkaError) as refused:
        await share_offsets.reset(coordinator, "g", [NewStart(queue, 0, 5)])
    assert refused.value.code == Code.NON_EMPTY_GROUP
    await stage.beat(LEAVE)
    for start, found in ((5, 5), (7, 7), (-2, 0), (-9, 0)):
        await share_offsets.reset(coordinator, "g", [NewStart(queue, 0, start)])
        assert stage.share("q").start == found
    await share_offsets.reset(coordinator, "g", [NewStart(stage.queue("r"), 0, 3)])
    assert (stage.share("r").start, stage.rows(RowKind.SHARE_QUEUE)) == (3, 2)
    assert not coordinator.groups


@pytest.mark.parametrize("by", ["deletion", "forgetting"])
async def test_dropped_partition_begins_anew_despite_late_commands(by: str) -> None:
    """FAULT: it began where a former coordinator's late SHARE_SET said."""
    stage = await joined("q", "r")
    (late,) = stage.logged(Kind.SHARE_SET)
    await stage.beat(LEAVE)
    stage.take_over()
    if by == "deletion":
        assert await stage.coordinator.delete("g") == Code.NONE
    else:
        assert await share_offsets.forget(stage.coordinator, "g", [stage.queue("q")])
    stage.shard.apply(late)
    revived = present(stage.share("q"))
    stage.take_over()
    assert (await stage.beat(JOIN))[1] == "q0"
    made = stage.share("q")
    assert made.epoch > revived.epoch
    for _ in range(2):  # a late command once more, and a coordinator that looks again
        stage.shard.apply(late)
        stage.take_over()
        await stage.beat(replace(JOIN, topics=("q", "r")))
        assert stage.share("q") == made


async def test_a_reset_makes_a_group_and_late_ones_are_void() -> None:
    stage = Stage("q")
    await share_offsets.reset(stage.coordinator, "g", [NewStart(stage.queue("q"), 0, 5)])
    late = stage.logged(Kind.SHARE_SET)[-1]
    await share_offsets.reset(stage.coordinator, "g", [NewStart(stage.queue("q"), 0, 7)])
    stage.shard.apply(late)
    assert stage.share("q").start == 7
    assert await stage.beat(JOIN) == (2, "q0")


async def test_partitions_before_one_that_is_reset_are_made_too() -> None:
    """FAULT: a row says up to which partition there are share partitions: the first were not."""
    stage = Stage()
    queue_id = stage.create("q", 5)
    queue, coordinator = stage.queue("q"), stage.coordinator
    await share_offsets.reset(coordinator, "g", [NewStart(queue, 3, 7), NewStart(queue, 1, 5)])
    assert [stage.share("q", index).start for index in range(4)] == [0, 5, 0, 7]
    assert stage.share("q", 4) is None
    stage.take_over()
    assert await stage.beat(JOIN) == (2, "q0 q1 q2 q3 q4")
    assert stage.group.initialised == {queue_id: 5}
    await stage.beat(LEAVE)
    await share_offsets.reset(stage.coordinator, "g", [NewStart(queue, 1, 6)])
    assert [stage.share("q", index).start for index in range(4)] == [0, 6, 0, 7]


async def test_unlogged_initialisation_is_not_begun() -> None:
    stage = Stage("q")
    end = without(stage, Kind.GROUP)
    with pytest.raises(KafkaError) as refused:
        await share_offsets.reset(stage.coordinator, "g", [NewStart(stage.queue("q"), 0, 5)])
    assert refused.value.code == Code.COORDINATOR_NOT_AVAILABLE
    assert await stage.beat(JOIN) == Code.COORDINATOR_NOT_AVAILABLE
    assert not stage.logged(Kind.SHARE_SET)
    assert not stage.coordinator.groups
    end()
    assert await stage.beat(JOIN) == (2, "q0")


@pytest.mark.parametrize("unsure", [False, True])
async def test_a_group_forgets_queues(unsure: bool) -> None:
    """`unsure`: a former coordinator was making share partitions. FAULT: all were said to go."""
    stage = Stage("q", "r", "s")
    await stage.beat(replace(JOIN, topics=("q", "r")))
    queues = [stage.queue(name) for name in ("q", "s")]
    with pytest.raises(KafkaError) as refused:
        await share_offsets.forget(stage.coordinator, "g", queues)
    assert refused.value.code == Code.NON_EMPTY_GROUP
    await stage.beat(LEAVE)
    if unsure:
        end = without(stage, Kind.SHARE_SET)
        with pytest.raises(KafkaError):
            await share_offsets.forget(stage.coordinator, "g", [stage.queue("r")])
        end()
        stage.take_over()
    dropped = await share_offsets.forget(stage.coordinator, "g", queues)
    assert dropped == {stage.queue("q").queue_id}
    assert (stage.share("q"), stage.rows(RowKind.SHARE_QUEUE)) == (None, 0 if unsure else 1)
    assert await stage.beat(JOIN) == (4, "q0")
    with pytest.raises(KafkaError) as refused:
        await share_offsets.forget(stage.coordinator, "none", queues)
    assert refused.value.code == Code.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("lost", [Kind.SHARE_SET, Kind.SHARE_QUEUES])
@pytest.mark.parametrize("again", [False, True])
async def test_queues_that_are_forgotten_in_part(lost: Kind, again: bool) -> None:
    """FAULT: share partitions that were dropped counted as made: nobody got their records."""
    stage = Stage()
    stage.create("q", 400)
    stage.create("r", 400)
    both = replace(STAY, topics=("q", "r"))
    await stage.beat(JOIN)
    await stage.beat(both)
    await stage.beat(LEAVE)
    queues, before = [stage.queue("q"), stage.queue("r")], stage.share("r", 399)
    append, seen = stage.shard.append, 0

    def losing(envelopes: Sequence[Envelope]) -> Ticket:
        nonlocal seen
        seen += envelopes[0].kind == lost
        if envelopes[0].kind == lost and seen > (lost == Kind.SHARE_SET):  # half of the drops
            return refused_append(envelopes, Code.REQUEST_TIMED_OUT)
        return append(envelopes)

    stage.shard.append = losing
    with pytest.raises(KafkaError):
        await share_offsets.forget(stage.coordinator, "g", queues)
    stage.shard.append = append
    stage.take_over()
    if again:
        await share_offsets.forget(stage.coordinator, "g", queues)
        assert (stage.share("q"), stage.share("r", 399)) == (None, None)
        assert stage.rows(RowKind.SHARE_QUEUE) == 0
    epoch, _ = await stage.beat(JOIN)
    await stage.beat(replace(both, member_epoch=epoch))
    assert stage.share("q") is not None
    if lost == Kind.SHARE_SET or again:
        assert stage.share("r", 399).epoch > before.epoch


async def test_a_deleted_group_leaves_nothing() -> None:
    stage = Stage("q")
    stage.create("r", 3)
    await stage.beat(replace(JOIN, topics=("q", "r")))
    assert await stage.coordinator.delete("g") == Code.NON_EMPTY_GROUP
    await stage.beat(LEAVE)
    assert await stage.coordinator.delete("g") == Code.NONE
    for kind in (RowKind.SHARE_PARTITION, RowKind.SHARE_QUEUE, RowKind.GROUP, RowKind.MEMBER):
        assert not stage.rows(kind)
    assert await stage.coordinator.delete("g") == Code.GROUP_ID_NOT_FOUND


async def test_a_group_whose_offsets_were_set_is_deleted_with_them() -> None:
    """FAULT: the version had not changed since, and so the share partitions were kept."""
    stage = Stage("q")
    await share_offsets.reset(stage.coordinator, "g", [NewStart(stage.queue("q"), 0, 5)])
    assert await stage.coordinator.delete("g") == Code.NONE
    assert not stage.rows(RowKind.SHARE_PARTITION)


async def test_a_deletion_that_was_broken_off_is_ended_by_who_comes_next() -> None:
    stage = await joined("q")
    await stage.beat(LEAVE)
    end = without(stage, Kind.SHARE_SET)
    assert await stage.coordinator.delete("g") == Code.COORDINATOR_NOT_AVAILABLE
    end()
    stage.take_over()
    assert stage.coordinator.going("g")
    assert await stage.coordinator.delete("g") == Code.NONE
    assert not stage.rows(RowKind.SHARE_PARTITION)
    assert not stage.rows(RowKind.GROUP)


@pytest.mark.parametrize("takeovers", range(3))
async def test_share_partitions_that_no_row_tells_of_go_with_the_group(takeovers: int) -> None:
    """FAULT: they stayed, and a later group of that id began where they were left."""
    stage = Stage("q", "r")
    end = without(stage, Kind.SHARE_QUEUES)
    await stage.beat(JOIN)
    end()
    assert stage.rows(RowKind.SHARE_PARTITION)
    for number in range(takeovers):
        stage.take_over()
        if number:  # it wants another queue by then
            await stage.beat(replace(JOIN, member_epoch=2, topics=("r",)))
    await stage.beat(LEAVE)
    assert await stage.coordinator.delete("g") == Code.NONE
    assert not stage.rows(RowKind.SHARE_PARTITION)


async def test_a_deletion_looks_at_all_queues_only_where_it_must() -> None:
    stage = await joined("q", "r")
    await stage.beat(LEAVE)
    before = len(stage.logged(Kind.SHARE_SET))
    assert await stage.coordinator.delete("g") == Code.NONE
    await share_offsets.reset(stage.coordinator, "g", [NewStart(stage.queue("q"), 0, 5)])
    assert await stage.coordinator.delete("g") == Code.NONE
    sets = [SetShares.decode(envelope).changes for envelope in stage.logged(Kind.SHARE_SET)]
    drops = [one.key[0] for some in sets[before:] for one in some if one.action == ShareAction.DROP]
    assert drops == [stage.queue("q").queue_id] * 2


async def test_an_initialisation_that_comes_late_changes_nothing() -> None:
    stage = await joined("q")
    late = stage.logged(Kind.SHARE_SET)[0]
    before = stage.share("q")
    change = ShareChange((stage.queue("q").queue_id, 0), ShareAction.INITIALISE, 10**6, 9)
    stage.shard.apply(late)
    stage.shard.apply(SetShares("g", [change], 0).envelope())
    assert stage.share("q") == before


async def test_rows_of_deleted_queues_are_removed() -> None:
    stage = Stage("q", "r")
    await stage.beat(replace(JOIN, topics=("q", "r")))
    gone, head = stage.queue("q").queue_id, stage.coordinator.head("g")
    assert head is not None
    stage.shard.apply(command(Kind.DELETE, gone))
    await stage.coordinator.forget_gone_queues("g", head.version)
    assert gone not in stage.group.initialised
    assert stage.rows(RowKind.SHARE_QUEUE) == 1
