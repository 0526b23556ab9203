"""The heartbeat of the consumer protocol as a rule, without a worker, socket or sleep."""

from dataclasses import replace

import pytest

from kproxy.errors import Code, KafkaError
from kproxy.groups.consumer_group import ConsumerGroup
from kproxy.groups.consumer_member import STATIC_LEAVE_EPOCH, ConsumerMember
from kproxy.groups.heartbeat import HeartbeatRequest, HeartbeatResult, check, heartbeat
from kproxy.virtual.types import QueueId
from tests.groups.rules import StandingCoordinator, coordinator_without_worker

JOIN = HeartbeatRequest(
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
def test_what_is_refused_without_a_group(changes: dict[str, object], code: Code) -> None:
    found = Code.NONE
    try:
        check(replace(JOIN, **changes))
    except KafkaError as error:
        found = error.code
    assert found == code


async def said(*requests: HeartbeatRequest, members_max: int = 10) -> list[object]:
    """(member id, epoch) that each was answered with, or its code."""
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
async def test_answers(what: str, requests: list[HeartbeatRequest], answers: list[object]) -> None:
    assert await said(*requests, members_max=2) == answers


async def test_who_says_all_is_told_all() -> None:
    coordinator = coordinator_without_worker()
    first = await heartbeat(coordinator, JOIN)
    silent = await heartbeat(coordinator, replace(STAY, member_epoch=2))
    whole = await heartbeat(coordinator, replace(JOIN, member_epoch=2))
    assert [first.assigned, silent.assigned, whole.assigned] == [frozenset(), None, frozenset()]
    assert whole == HeartbeatResult("a", 2, frozenset())


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
