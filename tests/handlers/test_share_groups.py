"""Requests about share groups, over the codec, as Kafka 4.3.1 answers them."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from kproxy.common.errors import Code
from kproxy.handlers.shares import offsets as share_offsets
from kproxy.protocol.api_keys import ApiKey
from kproxy.shard.appends import outcomes_of
from kproxy.virtual.levels import SHARES_FROM
from tests import bodies
from tests.handlers.test_handlers import Client

NO_ID = UUID(int=0)
OPERATIONS = -2147483648


async def beat(client: Client, member: str = "a", epoch: int = 0, *names: str, **more: Any) -> Any:
    values = {
        "group_id": "g", "member_id": member, "member_epoch": epoch, "rack_id": None,
        "subscribed_topic_names": names or None,
    }  # fmt: skip
    return await client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, values | more)


async def described(client: Client, *groups: str) -> Any:
    values = {"group_ids": groups, "include_authorized_operations": False}
    return (await client.call(ApiKey.SHARE_GROUP_DESCRIBE, 1, values)).groups


async def joined(**settings: Any) -> Client:
    """Return a worker with queue q of 3 partitions, and a member of share group g that reads it."""
    client = Client(group_share_assignment_interval_ms=0, **settings)
    await client.worker.catalogue.create("q", 3)[1].wait()
    assert not (await beat(client, "a", 0, "q")).error_code
    return client


async def test_a_member_joins_and_leaves() -> None:
    client = Client()
    await client.worker.catalogue.create("q", 2)[1].wait()
    answer = await beat(client, "a", 0, "q")
    (topic,) = answer.assignment.topic_partitions
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", 2)
    assert answer.heartbeat_interval == timedelta(seconds=5)
    assert topic.partitions == (0, 1)
    assert topic.topic_id.bytes == client.worker.catalogue.find("q").queue_id
    answer = await beat(client, "a", 2)
    assert (answer.error_code, answer.assignment) == (0, None)
    answer = await beat(client, "a", -1)
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, -1, None)
    assert answer.heartbeat_interval == timedelta(0)


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"group_id": ""}, 42, "GroupId can't be empty."),
        ({"member_id": ""}, 42, None),
        ({"member_epoch": -2}, 42, "MemberEpoch is invalid."),
        ({"group_id": "none", "member_epoch": 1}, 69, "Share group none not found."),
        ({"group_id": "none", "member_epoch": -1}, 69, "Group none not found."),
        ({"member_id": "b", "member_epoch": 1}, 25, "Member b is not a member of group g."),
        ({"member_epoch": 9}, 110, "The share group member has a greater member epoch (9) than the"
         " one known by the group coordinator (2). The member must abandon all its partitions and"
         " rejoin."),
    ],
)  # fmt: skip
async def test_a_refusal_says_no_more_than_why(
    changes: dict[str, Any], code: int, message: str | None
) -> None:
    client = await joined()
    answer = await beat(client, "a", 0, "q", **changes)
    assert (answer.error_code, answer.error_message) == (code, message)
    assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)
    assert answer.heartbeat_interval == timedelta(0)


async def test_a_group_is_described() -> None:
    client = await joined()
    await beat(client, "a", 2, rack_id="r")
    group, missing = await described(client, "g", "none")
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "simple")
    assert (group.group_epoch, group.assignment_epoch) == (2, 2)
    assert group.authorized_operations == OPERATIONS
    (member,) = group.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("a", "r", 2)
    assert member.subscribed_topic_names == ("q",)
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("q", (0, 1, 2))
    assert (missing.error_code, missing.error_message) == (69, "Group none not found.")
    assert (missing.group_state, missing.assignor_name, missing.members) == ("", "", ())
    await beat(client, "a", -1)
    (group,) = await described(client, "g")
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Empty", 3, 2)
    (empty,) = await described(client, "")
    assert empty.error_code == 24


async def test_requests_of_other_protocols() -> None:
    """With a member and without; as Kafka answers them."""
    client = await joined()
    for _ in range(2):
        answer = await client.call(ApiKey.JOIN_GROUP, 9, {
            "group_id": "g", "session_timeout": timedelta(seconds=10),
            "rebalance_timeout": timedelta(seconds=10), "member_id": "m",
            "group_instance_id": None, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}], "reason": None,
        })  # fmt: skip
        assert (answer.error_code, answer.generation_id, answer.member_id) == (23, -1, "m")
        leaving = [{"member_id": "a", "group_instance_id": None, "reason": None}]
        answer = await client.call(ApiKey.LEAVE_GROUP, 5, {"group_id": "g", "members": leaving})
        assert (answer.error_code, answer.members[0].error_code) == (0, 25)
        claim = {"group_id": "g", "generation_id": 1, "member_id": "a", "group_instance_id": None}
        assert (await client.call(ApiKey.HEARTBEAT, 4, claim)).error_code == 25
        for epoch, member in ((-1, ""), (2, "a")):
            values = bodies.commit("g", "q", 1, member=member, epoch=epoch)
            answer = await client.call(ApiKey.OFFSET_COMMIT, 9, values)
            assert answer.topics[0].partitions[0].error_code == 69
        answer = await client.call(ApiKey.OFFSET_DELETE, 0, {
            "group_id": "g", "topics": [{"name": "q", "partitions": [{"partition_index": 0}]}],
        })  # fmt: skip
        assert answer.error_code == 69
        for version, code in ((5, 0), (6, 69)):
            values = {"groups": ("g",), "include_authorized_operations": False}
            (group,) = (await client.call(ApiKey.DESCRIBE_GROUPS, version, values)).groups
            assert (group.error_code, group.group_state) == (code, "Dead")
        values = {"group_ids": ("g",), "include_authorized_operations": False}
        for key, kind in (
            (ApiKey.CONSUMER_GROUP_DESCRIBE, "consumer"), (ApiKey.STREAMS_GROUP_DESCRIBE, "streams")
        ):  # fmt: skip
            (group,) = (await client.call(key, 0, values)).groups
            assert group.error_message == f"Group g is not a {kind} group."
        await beat(client, "a", -1)


async def test_a_member_of_a_transaction_cannot_commit_in_a_share_group() -> None:
    client = await joined()
    producer = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
    values = bodies.commit("g", "q", 1) | producer | {"generation_id": -1}
    answer = await client.call(ApiKey.TXN_OFFSET_COMMIT, 3, values)
    assert answer.topics[0].partitions[0].error_code == 69


async def test_below_their_level_nothing_is_logged() -> None:
    client = await joined()
    client.worker.level.value = SHARES_FROM - 1
    shard: Any = client.worker.any_shard()
    logged = len(shard.log)
    assert (await beat(client, "b", 0, "q")).error_code == Code.UNSUPPORTED_VERSION
    assert (await described(client, "g"))[0].error_code == Code.UNSUPPORTED_VERSION
    assert (await altered(client, ("q", 0, 1))).error_code == Code.UNSUPPORTED_VERSION
    assert (await forgotten(client, "q")).error_code == Code.UNSUPPORTED_VERSION
    assert (await offsets(client, None)).error_code == Code.UNSUPPORTED_VERSION
    assert len(shard.log) == logged


# -- offsets


async def offsets(
    client: Client, topics: list[tuple[str, tuple[int, ...]]] | None, version: int = 1
) -> Any:
    asked = None if topics is None else [
        {"topic_name": name, "partitions": indices} for name, indices in topics
    ]  # fmt: skip
    values = {"groups": [{"group_id": "g", "topics": asked}]}
    answer = await client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, values)
    return answer.groups[0]


async def altered(client: Client, *starts: tuple[str, int, int], group: str = "g") -> Any:
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": index, "start_offset": start}]}
        for name, index, start in starts
    ]
    values = {"group_id": group, "topics": topics}
    return await client.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, values)


async def forgotten(client: Client, *names: str, group: str = "g") -> Any:
    values = {"group_id": group, "topics": [{"topic_name": name} for name in names]}
    return await client.call(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, values)


def stands(group: Any) -> dict[str, list[tuple[int, int, int, int]]]:
    return {
        t.topic_name: [(p.partition_index, p.start_offset, p.lag, p.error_code)
                       for p in t.partitions]
        for t in group.topics
    }  # fmt: skip


async def test_offsets_are_described() -> None:
    client = await joined()
    for _ in range(5):
        await client.produce("q", b"x")  # into partition 0
    expected = {"q": [(0, 0, 5, 0), (1, 0, 0, 0), (2, 0, 0, 0)]}
    found = await offsets(client, None)
    assert (found.error_code, stands(found)) == (0, expected)
    assert found.topics[0].topic_id.bytes == client.worker.catalogue.find("q").queue_id
    found = await offsets(client, [("q", (0, 7)), ("none", (0,))])
    assert stands(found) == {"q": [(0, 0, 5, 0), (7, -1, -1, 3)], "none": [(0, -1, -1, 0)]}
    assert found.topics[1].topic_id in (None, NO_ID)
    old = await offsets(client, [("q", (0,))], version=0)
    assert old.topics[0].partitions[0].start_offset == 0
    values = {"groups": [{"group_id": name, "topics": None} for name in ("none", "")]}
    none, empty = (await client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, values)).groups
    assert (none.error_code, none.topics) == (0, ())
    assert (empty.error_code, empty.topics) == (0, ())  # Kafka refuses it only with topics


async def test_offsets_of_many_groups_wait_for_the_log_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = await joined()
    await client.produce("q", b"x")
    waits = 0

    async def counted(tickets: Any) -> Any:
        nonlocal waits
        waits += 1
        return await outcomes_of(tickets)

    monkeypatch.setattr(share_offsets, "outcomes_of", counted)
    asked = {"topics": [{"topic_name": "q", "partitions": (0,)}]}
    values = {"groups": [{"group_id": f"g{number % 3}"} | asked for number in range(150)]}
    groups = (await client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, values)).groups
    assert [stands(group) for group in groups] == [{"q": [(0, -1, -1, 0)]}] * 150
    assert waits == 1


async def test_offsets_are_altered() -> None:
    client = await joined()
    await client.worker.catalogue.create("r", 1)[1].wait()
    for _ in range(5):
        await client.produce("q", b"x")
    answer = await altered(client, ("q", 0, 3))
    assert (answer.error_code, answer.error_message) == (68, "The group is not empty.")
    assert answer.responses == ()
    await beat(client, "a", -1)
    answer = await altered(client, ("q", 0, 3), ("q", 9, 3), ("none", 0, 1), ("r", 0, 2))
    assert answer.error_code == 0
    assert [
        (p.partition_index, p.error_code, p.error_message)
        for t in answer.responses
        for p in t.partitions
    ] == [
        (0, 0, None), (9, 3, "This server does not host this topic-partition."),
        (0, 3, "This server does not host this topic-partition."), (0, 0, None),
    ]  # fmt: skip
    found = stands(await offsets(client, None))
    assert (found["q"][0], found["r"]) == ((0, 3, 2, 0), [(0, 2, -2, 0)])
    for group, code in (("", 24), ("old", 69)):
        await client.worker.groups.of(client.worker.any_shard()).open_classic("old")
        assert (await altered(client, ("q", 0, 0), group=group)).error_code == code
    assert (await altered(client, ("q", 0, 2), group="new")).error_code == 0
    assert (await described(client, "new"))[0].group_state == "Empty"


async def test_offsets_are_deleted() -> None:
    client = await joined()
    await client.worker.catalogue.create("r", 1)[1].wait()
    answer = await forgotten(client, "q")
    assert (answer.error_code, answer.error_message) == (68, "The group is not empty.")
    await beat(client, "a", -1)
    answer = await forgotten(client, "q", "r", "none")
    queue_id = UUID(bytes=bytes(client.worker.catalogue.find("q").queue_id))
    assert [(t.topic_id or NO_ID, t.error_code, t.error_message) for t in answer.responses] == [
        (queue_id, 0, None), (NO_ID, 3, "There is no offset information to delete."),
        (NO_ID, 3, "This server does not host this topic-partition."),
    ]  # fmt: skip
    assert stands(await offsets(client, None)) == {}
    answer = await forgotten(client, "q", group="none")
    assert (answer.error_code, answer.error_message) == (69, "Group none not found.")
    assert (await forgotten(client, "q", group="")).error_code == 24
    assert (await forgotten(client)).error_code == 0
