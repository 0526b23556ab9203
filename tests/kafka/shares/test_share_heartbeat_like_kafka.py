"""ShareGroupHeartbeat (KIP-932): answers as a real Kafka 4.3.1 gives them.

A real Kafka gives no partition with a group's very first answers, before it has initialised it,
and raises the epoch once more when it has: so each script begins once that is done. Which member
has which partition is not the same twice, so of several only how many each has is compared.
"""

from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.canonical import unheard
from tests.kafka.groups.members import Classic, Modern, commit_values
from tests.kafka.shares.cluster import ShareCluster, alike_in_shares
from tests.kafka.shares.sharer import Sharer, sharing


@alike_in_shares
def test_refusals(cluster: ShareCluster, queue: str) -> None:
    cluster.make(queue)
    for index, changes in enumerate((
        {"member_id": ""}, {"member_id": "x" * 37}, {"group_id": ""}, {"group_id": " "},
        {"rack_id": ""}, {"member_epoch": -2}, {"member_epoch": -3}, {"member_epoch": 5},
        {"member_epoch": -1, "subscribed_topic_names": None},
        {"member_epoch": 5, "subscribed_topic_names": None},
        {"subscribed_topic_names": None}, {"subscribed_topic_names": ()},
    )):  # fmt: skip
        Sharer(cluster, f"{queue}-{index}", "one", queue).beat(**changes)


@alike_in_shares
def test_joins_of_odd_members(cluster: ShareCluster, queue: str) -> None:
    for index, changes in enumerate((
        {"subscribed_topic_names": ("never",)}, {"subscribed_topic_names": ("a b!",)},
        {"subscribed_topic_names": ("",)}, {"subscribed_topic_names": ("never", "never")},
        {"member_id": "x" * 36}, {"rack_id": "r"},
    )):  # fmt: skip
        one = Sharer(cluster, f"{queue}-{index}", "one", queue + "-never")
        one.beat(**changes)
        one.beat(**{k: v for k, v in changes.items() if k == "member_id"})


@alike_in_shares
def test_one_member(cluster: ShareCluster, queue: str) -> None:
    other = cluster.make(queue + "-other")
    one = sharing(cluster, queue, partitions=3)
    one.beat()
    one.beat(subscribed_topic_names=(queue,))
    for by in (1, 100):
        one.beat(by=by)
    one.beat(member_epoch=-2)
    one.beat(rack_id="r")
    cluster.describe_group(queue)
    one.beat(subscribed_topic_names=(queue, queue + "-never"))
    one.beat(by=-1)
    one.beat(by=-2)
    one.beat(member_epoch=0)  # as it joins, but what it is subscribed to is missing
    one.beat(member_epoch=0, subscribed_topic_names=(queue, queue + "-never"))
    one.beat(member_epoch=0, subscribed_topic_names=(queue,))
    one.beat(subscribed_topic_names=())
    one.beat()
    one.beat(subscribed_topic_names=(queue,))
    Sharer(cluster, queue, "probe", other).silently(1).leave()
    settled(one)
    one.beat(subscribed_topic_names=(queue, other))
    one.beat()
    one.beat(subscribed_topic_names=(other,))
    cluster.describe_group(queue)
    one.leave()
    cluster.describe_group(queue, epochs=False)
    one.beat(member_epoch=-1)
    one.beat(member_epoch=3, subscribed_topic_names=None)
    one.beat()
    two = Sharer(cluster, queue, "two", queue)
    two.beat(member_epoch=3, subscribed_topic_names=None)
    two.beat(member_epoch=-1)


def settled(*members: Sharer) -> None:
    """Send heartbeats, unsaid, until all are at one epoch and nothing moves any more."""
    said = len(members[0].cluster.said)

    def still() -> bool:
        before = [(m.epoch, m.parts) for m in members]
        for member in members:
            member.beat()
        return len({m.epoch for m in members}) == 1 and before == [
            (m.epoch, m.parts) for m in members
        ]

    with unheard():
        eventually(lambda: all(still() for _ in range(3)), period=0.05)
    del members[0].cluster.said[said:]


def say_shares(cluster: ShareCluster, *members: Sharer) -> None:
    """Say how many partitions each has, by topic, and which nobody has."""
    topics = sorted({topic for member in members for topic in member.topics})
    for topic in topics:
        subscribed = [m for m in members if topic in m.topics]
        counts = sorted(len([p for p in m.parts if p[0] == topic]) for m in subscribed)
        given = sorted({p for m in members for t, p in m.parts if t == topic})
        cluster.say(f"{topic} of {len(subscribed)}", f"{counts} of {given}")


@pytest.mark.parametrize(
    ("partitions", "members"),
    [(1, 1), (1, 2), (1, 5), (2, 2), (2, 4), (3, 2), (3, 3), (5, 2), (5, 3), (7, 4), (4, 6)],
)
@alike_in_shares
def test_shares(cluster: ShareCluster, queue: str, partitions: int, members: int) -> None:
    one = sharing(cluster, queue, partitions=partitions)
    all_ = [one, *(Sharer(cluster, queue, f"m{i}", queue) for i in range(1, members))]
    for member in all_[1:]:
        member.beat()
        del cluster.said[-1]
    settled(*all_)
    say_shares(cluster, *all_)
    for _ in range(members - 1):
        all_.pop(0).leave()
        settled(*all_)
        say_shares(cluster, *all_)


@alike_in_shares
def test_different_subscriptions(cluster: ShareCluster, queue: str) -> None:
    a, b = cluster.make(queue + "-a", 4), cluster.make(queue + "-b", 2)
    Sharer(cluster, queue, "first", a, b).silently(6).leave()
    members = [
        Sharer(cluster, queue, "x", a), Sharer(cluster, queue, "y", a, b),
        Sharer(cluster, queue, "z", b),
    ]  # fmt: skip
    for member in members:
        member.beat()
        del cluster.said[-1]
    settled(*members)
    given = {part for member in members for part in member.parts}
    cluster.say("given", sorted(given))
    cluster.say("each has some", [bool(member.parts) for member in members])


@alike_in_shares
def test_topics_come_and_go(cluster: ShareCluster, queue: str) -> None:
    one = Sharer(cluster, queue, "one", queue)
    one.beat()
    one.beat()
    cluster.describe_group(queue)
    cluster.make(queue, 2)
    one.silently(2)
    cluster.describe_group(queue)
    more = {"name": queue, "count": 3, "assignments": None}
    values = {"topics": [more], "timeout": 5000, "validate_only": False}
    assert cluster.wire.call(37, 3, values).results[0].error_code == 0
    one.silently(3)
    cluster.wire.delete(queue)
    one.silently(0)
    cluster.describe_group(queue)
    cluster.forget_id(queue)
    cluster.make(queue)
    one.silently(1)
    one.leave()


@alike_in_shares
def test_other_requests_for_a_share_group(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    wire = cluster.coordinator(queue, 0)

    def say(what: str, answer: Any) -> None:
        cluster.say(what, answer)

    modern = Modern(wire, queue, "m", queue)
    answer = modern.beat()
    say("consumer heartbeat", (int(answer.error_code), answer.member_id))
    classic = Classic(wire, queue, (queue,))
    answer = classic.join()
    say("join", (int(answer.error_code), answer.generation_id, answer.member_id))
    for member_id, generation in (("", -1), ("one", one.epoch), ("one", 1)):
        classic.id, classic.generation = member_id, generation
        say("commit", classic.commit(queue, 1))
        say("heartbeat", classic.beat())
        say("sync", int(classic.sync().error_code))
        say("leave", classic.leave())
    cluster.committed(queue, queue)
    values = {
        "group_id": queue, "topics": [{"name": queue, "partitions": [{"partition_index": 0}]}],
    }  # fmt: skip
    say("offset delete", int(wire.call(ApiKey.OFFSET_DELETE, 0, values).error_code))
    asked = {"groups": (queue,), "include_authorized_operations": False}
    for version in (5, 6):
        found = wire.call(ApiKey.DESCRIBE_GROUPS, version, asked).groups[0]
        say(f"describe v{version}", (int(found.error_code), found.group_state))
    ids = {"group_ids": (queue,), "include_authorized_operations": False}
    for key in (ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.STREAMS_GROUP_DESCRIBE):
        version = 1 if key == ApiKey.CONSUMER_GROUP_DESCRIBE else 0
        found = wire.call(key, version, ids).groups[0]
        say(key.name, (int(found.error_code), found.group_state))
    one.beat()
    modern.close()
    classic.close()


@alike_in_shares
def test_share_members_of_other_groups(cluster: ShareCluster, queue: str) -> None:
    """Also once they are empty: a group's type stays."""
    cluster.make(queue)

    def tried(group: str) -> None:
        one = Sharer(cluster, group, "one", queue)
        for epoch in (0, 1, -1):
            one.beat(member_epoch=epoch)
        cluster.describe_group(group)

    committed = queue + "-committed"
    values = commit_values(committed, queue, 5)
    cluster.coordinator(committed, 0).call(ApiKey.OFFSET_COMMIT, 8, values)
    tried(committed)
    modern = Modern(cluster.coordinator(f"{queue}-modern", 0), f"{queue}-modern", "m", queue)
    modern.beat()
    tried(modern.group)
    modern.beat(member_epoch=-1)
    tried(modern.group)
    group = f"{queue}-classic"
    classic = Classic(cluster.coordinator(group, 0), group, (queue,))
    classic.join()
    tried(group)
    classic.close()
    modern.close()
