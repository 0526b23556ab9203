"""The heartbeat of the consumer protocol as a rule, without a worker, socket or sleep."""

import contextlib
from dataclasses import replace

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.model.consumer_group import ConsumerGroup
from kproxy.groups.model.consumer_member import STATIC_LEAVE_EPOCH, ConsumerMember
from kproxy.groups.requests.assigned_heartbeat import HeartbeatResult
from kproxy.groups.requests.heartbeat import ConsumerHeartbeatRequest, check, heartbeat
from kproxy.virtual.types import QueueId
from tests.groups.rules import StandingCoordinator, coordinator_without_worker

JOIN = ConsumerHeartbeatRequest(
    group_id="g", member_id="a", member_epoch=0, instance=None, rack=None, rebalance_s=60.0,
    topics=("q",), regex=None, assignor=None, owned=frozenset(), names_owned=False,
    client_id="c", host="/h", member_id_required=True,
)  # fmt: skip
STAY = replace(JOIN, member_epoch=1, rebalance_s=-0.001, topics=None, owned=None)
LEAVE = replace(STAY, member_epoch=-1)
PART = (QueueId(bytes(16)), 0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, Code.NONE),
        ({"member_id": ""}, Code.INVALID_REQUEST),
        ({"member_id": "", "member_id_required": False}, Code.NONE),
        ({"group_id": " "}, Code.INVALID_REQUEST),
        ({"instance": ""}, Code.INVALID_REQUEST),
        ({"rack": ""}, Code.INVALID_REQUEST),
        ({"rebalance_s": -0.001}, Code.INVALID_REQUEST),
        ({"owned": None}, Code.INVALID_REQUEST),
        ({"owned": frozenset({PART}), "names_owned": True}, Code.INVALID_REQUEST),
        ({"topics": None}, Code.INVALID_REQUEST),
        ({"topics": None, "regex": "a.*"}, Code.NONE),
        ({"topics": None, "regex": "("}, Code.INVALID_REGULAR_EXPRESSION),
        ({"assignor": "mine"}, Code.UNSUPPORTED_ASSIGNOR),
        ({"assignor": "range"}, Code.NONE),
        ({"member_epoch": -3}, Code.INVALID_REQUEST),
        ({"member_epoch": STATIC_LEAVE_EPOCH}, Code.INVALID_REQUEST),
        ({"member_epoch": STATIC_LEAVE_EPOCH, "instance": "i"}, Code.NONE),
        ({"member_epoch": 5, "topics": None, "owned": None, "rebalance_s": -1}, Code.NONE),
    ],
)
def test_requests_refused_without_a_group(changes: dict[str, object], code: Code) -> None:
    found = Code.NONE
    try:
        check(replace(JOIN, **changes))
    except KafkaError as error:
        found = error.code
    assert found == code


async def said(*requests: ConsumerHeartbeatRequest, members_max: int = 10) -> list[object]:
    """Return (member id, epoch) that each was answered with, or its code."""
    coordinator = coordinator_without_worker(group_members_max=members_max)
    answers: list[object] = []
    for asked in requests:
        try:
            result = await heartbeat(coordinator, asked)
            answers.append((result.member_id, result.member_epoch))
        except KafkaError as error:
            answers.append(error.code)
    return answers


STATIC = replace(JOIN, instance="i")
CASES = [
    ("joins, stays, leaves", [JOIN, replace(STAY, member_epoch=2), LEAVE],
     [("a", 2), ("a", 2), ("a", -1)]),
    ("no such group", [STAY], [Code.GROUP_ID_NOT_FOUND]),
    ("no such member", [JOIN, replace(STAY, member_id="b", member_epoch=2)],
     [("a", 2), Code.UNKNOWN_MEMBER_ID]),
    ("an epoch to come", [JOIN, replace(STAY, member_epoch=3)],
     [("a", 2), Code.FENCED_MEMBER_EPOCH]),
    ("an answer was lost, and it owns nothing it has not",
     [JOIN, replace(STAY, member_epoch=1, owned=frozenset()), replace(STAY, member_epoch=0)],
     [("a", 2), Code.FENCED_MEMBER_EPOCH, ("a", 2)]),
    ("joins twice", [JOIN, JOIN], [("a", 2), ("a", 2)]),
    ("full", [JOIN, replace(JOIN, member_id="b"), replace(JOIN, member_id="c")],
     [("a", 2), ("b", 2), Code.GROUP_MAX_SIZE_REACHED]),
    ("an instance in use", [STATIC, replace(STATIC, member_id="b")],
     [("a", 2), Code.UNRELEASED_INSTANCE_ID]),
    ("an instance that left and is back",
     [STATIC, replace(STATIC, member_epoch=STATIC_LEAVE_EPOCH), replace(STATIC, member_id="b")],
     [("a", 2), ("a", STATIC_LEAVE_EPOCH), ("b", 2)]),
    ("whoever was replaced is fenced",
     [STATIC, replace(STATIC, member_epoch=STATIC_LEAVE_EPOCH), replace(STATIC, member_id="b"),
      replace(STATIC, member_epoch=2), replace(STATIC, member_epoch=-1)],
     [("a", 2), ("a", STATIC_LEAVE_EPOCH), ("b", 2), Code.FENCED_INSTANCE_ID,
      Code.FENCED_INSTANCE_ID]),
    ("an instance nobody has", [JOIN, replace(STATIC, member_epoch=2)],
     [("a", 2), Code.UNKNOWN_MEMBER_ID]),
]  # fmt: skip


@pytest.mark.parametrize(("what", "requests", "answers"), CASES, ids=[case[0] for case in CASES])
async def test_answers(
    what: str, requests: list[ConsumerHeartbeatRequest], answers: list[object]
) -> None:
    assert await said(*requests, members_max=2) == answers


JOINED = {
    "client": ("c", "/h"), "rack": None, "rebalance_s": 60.0, "topics": ("q",), "regex": "",
    "assignor": None, "instance": None, "epochs": (2, 0),
}  # fmt: skip
FIELDS = [
    ("what is not said stays", {}, {}, 2),
    ("a rack", {"rack": "r"}, {"rack": "r"}, 2),
    ("another client", {"client_id": "d", "host": "/i"}, {"client": ("d", "/i")}, 2),
    ("a rebalance timeout", {"rebalance_s": 5.0}, {"rebalance_s": 5.0}, 2),
    ("the same names", {"topics": ("q", "q")}, {}, 2),
    ("other names, in order, once", {"topics": ("z", "a", "z")},
     {"topics": ("a", "z"), "epochs": (3, 2)}, 3),
    ("no names", {"topics": ()}, {"topics": (), "epochs": (3, 2)}, 3),
    ("a regular expression", {"regex": "a.*"}, {"regex": "a.*", "epochs": (3, 2)}, 3),
    ("an assignor", {"assignor": "range"}, {"assignor": "range"}, 2),
    ("leaves", {"member_epoch": -1}, None, 3),
    ("an epoch to come", {"member_epoch": 3, "rack": "r", "topics": ("z",)}, {}, 2),
]  # fmt: skip


def fields(member: ConsumerMember) -> dict[str, object]:
    return {
        "client": (member.client_id, member.host),
        "rack": member.rack,
        "rebalance_s": member.rebalance_s,
        "topics": member.topics,
        "regex": member.regex,
        "assignor": member.assignor,
        "instance": member.instance,
        "epochs": (member.epoch, member.previous_epoch),
    }


@pytest.mark.parametrize(
    ("what", "changes", "after", "epoch"), FIELDS, ids=[case[0] for case in FIELDS]
)
async def test_a_member_and_its_group_afterwards(
    what: str, changes: dict[str, object], after: dict[str, object] | None, epoch: int
) -> None:
    """`after` are the member's fields that have changed, or None where it is gone."""
    coordinator = coordinator_without_worker(group_consumer_assignment_interval_ms=0)
    await heartbeat(coordinator, JOIN)
    group = coordinator.groups["g"]
    assert isinstance(group, ConsumerGroup)
    member = group.members["a"]
    assert (fields(member), group.epoch) == (JOINED, 2)
    with contextlib.suppress(KafkaError):
        await heartbeat(coordinator, replace(STAY, **{"member_epoch": 2} | changes))
    assert group.epoch == epoch
    assert ("a" in group.members) == (after is not None)
    if after is not None:
        assert fields(member) == JOINED | after
        assert not group.unlogged


async def test_a_static_member_that_is_back_has_what_it_had_from_epoch_0_on() -> None:
    coordinator = coordinator_without_worker()
    leave = replace(STATIC, member_epoch=STATIC_LEAVE_EPOCH)
    await heartbeat(coordinator, replace(STATIC, rack="r", assignor="range"))
    group = coordinator.groups["g"]
    assert isinstance(group, ConsumerGroup)
    await heartbeat(coordinator, leave)
    assert group.members["a"].epoch == STATIC_LEAVE_EPOCH
    await heartbeat(coordinator, replace(STATIC, member_id="b", client_id="d"))
    assert list(group.members) == ["b"]
    back = {"client": ("d", "/h"), "rack": "r", "assignor": "range", "instance": "i"}
    assert fields(group.members["b"]) == JOINED | back
    assert group.epoch == 2  # nobody else has to move


async def test_full_heartbeat_gets_a_full_answer() -> None:
    coordinator = coordinator_without_worker()
    first = await heartbeat(coordinator, JOIN)
    silent = await heartbeat(coordinator, replace(STAY, member_epoch=2))
    whole = await heartbeat(coordinator, replace(JOIN, member_epoch=2))
    assert [first.assigned, silent.assigned, whole.assigned] == [frozenset(), None, frozenset()]
    assert whole == HeartbeatResult("a", 2, frozenset())


async def test_member_without_an_id_in_version_0_is_given_one() -> None:
    """FAULT: all such members were one, without an id."""
    coordinator = coordinator_without_worker()
    asked = replace(JOIN, member_id="", member_id_required=False)
    results = [await heartbeat(coordinator, asked) for _ in range(2)]
    assert [result.member_id for result in results] == ["0", "1"]


def standing_group() -> tuple[StandingCoordinator, ConsumerGroup]:
    home = StandingCoordinator()
    return home, ConsumerGroup("g", home)


def test_a_silent_member_is_fenced_at_the_end_of_its_session() -> None:
    home, group = standing_group()
    for name in "ab":
        group.put(ConsumerMember(name))
    home.pass_time(30)
    group.renew_session(group.members["b"])
    home.pass_time(14.9)
    assert not home.fenced
    home.pass_time(0.2)
    assert home.fenced == ["a"]
    home.pass_time(29.8)
    assert home.fenced == ["a"]
    home.pass_time(0.2)
    assert home.fenced == ["a", "b"]
