"""Joining, syncing, heartbeats and leaving as rules, without a worker, socket or sleep."""

from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.classic_group import ClassicGroup
from kproxy.groups.model.classic_member import ClassicMember
from kproxy.groups.model.classic_states import State
from kproxy.groups.model.consumer_protocol import encode_subscription
from kproxy.groups.requests import classic_protocol, heartbeat
from kproxy.groups.requests.classic_members import MemberClaim
from kproxy.groups.requests.classic_protocol import JoinRequest
from tests.groups.rules import StandingCoordinator, coordinator_without_worker
from tests.groups.test_heartbeat import JOIN as CONSUMER_JOIN

NEW = JoinRequest(
    group_id="g", member_id="", instance=None, client_id="c", host="/h", session_s=10.0,
    rebalance_s=60.0, protocol_type="consumer", protocols=(("range", b""),),
    known_id_required=False, may_skip_assignment=True,
)  # fmt: skip
PROTOCOL = ("consumer", "range")


async def joined(coordinator: Coordinator, asked: JoinRequest) -> Any:
    """Return the answer's fields, or its code."""
    answers: list[Any] = []

    async def join() -> None:
        try:
            answers.append(await classic_protocol.join(coordinator, asked))
        except KafkaError as error:
            answers.append(error.code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(join)
        while not answers:
            await anyio.lowlevel.checkpoint()
            coordinator.timers.run_due(coordinator.now())
    return answers[0]


async def synced(coordinator: Coordinator, claim: MemberClaim, **assignments: bytes) -> Any:
    try:
        group = await coordinator.load("g")
        answer = await classic_protocol.sync(coordinator, group, claim, PROTOCOL, assignments)
    except KafkaError as error:
        return error.code
    return answer["assignment"]


async def stable(instance: str | None = None, **settings: Any) -> Coordinator:
    """Return a coordinator of one member, "c-0" or "INSTANCE-0", that has its assignment."""
    coordinator = coordinator_without_worker(**settings)
    answer = await joined(coordinator, replace(NEW, instance=instance))
    member_id = answer["member_id"]
    assert member_id == f"{instance or 'c'}-0"
    claim = MemberClaim(member_id, instance, 1)
    assert await synced(coordinator, claim, **{member_id: b"mine"}) == b"mine"
    return coordinator


async def test_a_new_member_first_gets_an_id_that_is_kept_for_it() -> None:
    coordinator = coordinator_without_worker()
    asked = replace(NEW, known_id_required=True)
    answer = await classic_protocol.join(coordinator, asked)
    assert (answer["error_code"], answer["member_id"]) == (Code.MEMBER_ID_REQUIRED, "c-0")
    group: Any = coordinator.groups["g"]
    assert group.reserved("c-0")
    assert await classic_protocol.leave(coordinator, group, [("c-0", None)]) == [Code.NONE]
    assert "g" not in coordinator.groups


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"member_id": "nobody"}, Code.UNKNOWN_MEMBER_ID),
        ({"session_s": 0.0}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_s": 1e7}, Code.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": "connect"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("other", b""),)}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "c-0", "instance": "i"}, Code.UNKNOWN_MEMBER_ID),
    ],
)
async def test_clients_that_may_not_join(changes: dict[str, Any], code: Code) -> None:
    coordinator = await stable()
    assert await joined(coordinator, replace(NEW, **changes)) == code


async def test_a_full_group() -> None:
    coordinator = await stable(group_members_max=1)
    assert await joined(coordinator, NEW) == Code.GROUP_MAX_SIZE_REACHED


async def test_a_static_member_is_back_and_keeps_its_part() -> None:
    coordinator = await stable("i")
    answer = await joined(coordinator, replace(NEW, instance="i"))
    assert (answer["member_id"], answer["generation_id"]) == ("i-1", 1)
    assert answer["skip_assignment"]
    assert await synced(coordinator, MemberClaim("i-1", "i", 1)) == b"mine"
    assert await synced(coordinator, MemberClaim("i-0", "i", 1)) == Code.FENCED_INSTANCE_ID


@pytest.mark.parametrize(
    ("member_id", "instance", "generation", "code"),
    [
        ("i-0", "i", 1, Code.NONE),
        ("i-0", None, 1, Code.NONE),
        ("i-0", "i", 2, Code.ILLEGAL_GENERATION),
        ("i-0", "i", -1, Code.ILLEGAL_GENERATION),
        ("i-9", "i", 1, Code.FENCED_INSTANCE_ID),
        ("i-0", "other", 1, Code.UNKNOWN_MEMBER_ID),
        ("i-9", None, 1, Code.UNKNOWN_MEMBER_ID),
    ],
)
async def test_claims_of_a_member_are_checked(
    member_id: str, instance: str | None, generation: int, code: Code
) -> None:
    coordinator = await stable("i")
    group = await coordinator.load("g")
    claim = MemberClaim(member_id, instance, generation)
    found = Code.NONE
    try:
        found = await classic_protocol.heartbeat(coordinator, group, claim)
    except KafkaError as error:
        found = error.code
    assert found == code


LEAVING = [
    ("i-0", None, Code.NONE),
    ("i-0", "i", Code.NONE),
    ("", "i", Code.NONE),
    ("", None, Code.UNKNOWN_MEMBER_ID),
    ("", "other", Code.UNKNOWN_MEMBER_ID),
    ("i-9", None, Code.UNKNOWN_MEMBER_ID),
    ("i-9", "i", Code.FENCED_INSTANCE_ID),
    ("i-0", "other", Code.UNKNOWN_MEMBER_ID),
]


@pytest.mark.parametrize(("member_id", "instance", "code"), LEAVING)
async def test_members_that_leave(member_id: str, instance: str | None, code: Code) -> None:
    coordinator = await stable("i")
    group = await coordinator.load("g")
    assert await classic_protocol.leave(coordinator, group, [(member_id, instance)]) == [code]


@pytest.mark.parametrize(("member_id", "instance", "code"), LEAVING)
async def test_members_that_leave_a_consumer_group(
    member_id: str, instance: str | None, code: Code
) -> None:
    """The same rule as in a classic group, as with Kafka."""
    coordinator = coordinator_without_worker()
    await heartbeat.heartbeat(coordinator, replace(CONSUMER_JOIN, member_id="i-0", instance="i"))
    group = await coordinator.load("g")
    assert await classic_protocol.leave(coordinator, group, [(member_id, instance)]) == [code]


async def test_a_member_that_leaves_a_consumer_group_is_named_twice() -> None:
    """Kafka finds all members before it removes one."""
    coordinator = coordinator_without_worker()
    await heartbeat.heartbeat(coordinator, replace(CONSUMER_JOIN, member_id="i-0", instance="i"))
    group = await coordinator.load("g")
    twice: list[tuple[str, str | None]] = [("i-0", "i"), ("", "i"), ("i-0", None)]
    assert await classic_protocol.leave(coordinator, group, twice) == [Code.NONE] * 3
    assert await coordinator.load("g") is None


async def mixed(*protocols: str) -> Coordinator:
    """Return a group of a member of the consumer protocol, "new", and one that supports these."""
    coordinator = coordinator_without_worker()
    await heartbeat.heartbeat(coordinator, replace(CONSUMER_JOIN, member_id="new"))
    assert (await joined(coordinator, consumer(*protocols)))["error_code"] == Code.NONE
    return coordinator


def consumer(*protocols: str) -> JoinRequest:
    return replace(NEW, protocols=tuple((name, encode_subscription(["q"])) for name in protocols))


async def left_alone(coordinator: Coordinator) -> ClassicGroup:
    """Let the member of the consumer protocol be silent until its session ends."""
    group: Any = await coordinator.load("g")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(coordinator.run)
        coordinator.fence_soon(group, group.members["new"], lambda: True)
        with anyio.fail_after(5):
            while not isinstance(coordinator.groups.get("g"), ClassicGroup):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    found: Any = coordinator.groups["g"]
    return found


@pytest.mark.parametrize(
    ("protocols", "code"),
    [
        (("range",), Code.NONE),
        (("other", "roundrobin"), Code.NONE),
        (("other",), Code.INCONSISTENT_GROUP_PROTOCOL),
        ((), Code.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
async def test_classic_members_of_a_consumer_group_support_one_protocol(
    protocols: tuple[str, ...], code: Code
) -> None:
    coordinator = await mixed("range", "roundrobin")
    for asked in (consumer(*protocols), replace(consumer(*protocols), known_id_required=True)):
        answer = await joined(coordinator, asked)
        if code:
            assert answer == code
        else:
            assert not isinstance(answer, Code)
    assert (await left_alone(coordinator)).protocol in ("range", "roundrobin")


async def test_a_classic_member_that_has_moved_on_binds_nobody() -> None:
    coordinator = await mixed("range")
    moved = replace(CONSUMER_JOIN, member_id="c-0", member_epoch=0)
    await heartbeat.heartbeat(coordinator, moved)
    assert not isinstance(await joined(coordinator, consumer("other")), Code)
    assert await joined(coordinator, consumer("range")) == Code.INCONSISTENT_GROUP_PROTOCOL


async def test_rows_of_members_that_agree_on_nothing() -> None:
    """Earlier code let them in; the worker ended with them, and again at each start."""
    coordinator = await mixed("range")
    group: Any = await coordinator.load("g")
    odd = group.members["c-0"].copy("c-1")
    odd.protocols = (("other", b""),)
    group.put(odd)
    classic = await left_alone(coordinator)
    assert (classic.protocol, len(classic.members)) == ("", 2)


async def test_a_fault_in_one_group_is_its_own() -> None:
    coordinator = await mixed("range")
    await heartbeat.heartbeat(coordinator, replace(CONSUMER_JOIN, group_id="h", member_id="h"))
    groups: Any = coordinator.groups
    broken, whole = groups["g"], groups["h"]
    broken.rebalance_without = None  # a fault that nobody knows of yet
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(coordinator.run)
        for group, member in ((broken, "new"), (whole, "h")):
            coordinator.fence_soon(group, group.members[member], lambda: True)
        with anyio.fail_after(5):
            while "h" in coordinator.groups or not broken.ended:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    again: Any = await coordinator.load("g")
    assert again.members.keys() == {"new", "c-0"}  # as its rows say


def standing_group(count: int) -> tuple[StandingCoordinator, ClassicGroup]:
    """Return a group in its first rebalance, joined at the same time."""
    home = StandingCoordinator()
    group = ClassicGroup("g", home)
    for number in range(count):
        member = ClassicMember(f"m{number}", None, "c", "/h", 10.0, 60.0, NEW.protocols)
        group.join(member, "consumer")
    return home, group


async def test_a_new_group_waits_for_more_members() -> None:
    home, group = standing_group(2)
    home.pass_time(5.9)  # for the second member it waits once more
    group.join(ClassicMember("m2", None, "c", "/h", 10.0, 60.0, NEW.protocols), "consumer")
    home.pass_time(3.0)
    assert (group.state, group.generation) == (State.PREPARING, 0)
    home.pass_time(0.2)
    assert (group.state, group.generation, len(group.members)) == (State.COMPLETING, 1, 3)


async def test_member_that_never_syncs_is_left_out_after_its_rebalance_timeout() -> None:
    home, group = standing_group(2)
    home.pass_time(3.1)
    for beat in range(11):
        for member in group.members.values():
            group.renew_session(member)
        home.pass_time(5)
        assert len(group.members) == 2, beat
    group.wait_for_sync(group.members["m0"])
    home.pass_time(5.1)
    assert list(group.members) == ["m0"]


async def test_a_silent_member_goes_at_the_end_of_its_session() -> None:
    home, group = standing_group(2)
    home.pass_time(6.0)
    for member_id in list(group.members):
        group.wait_for_sync(group.members[member_id])
    group.settle()
    home.pass_time(9.0)
    group.renew_session(group.members["m1"])
    home.pass_time(1.1)
    assert list(group.members) == ["m1"]
    assert group.state == State.PREPARING
