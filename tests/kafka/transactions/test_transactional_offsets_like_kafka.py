"""Offsets that are committed within transactions: answers as a real Kafka 4.3.1 gives them."""

from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.cluster import Cluster, name
from tests.kafka.groups.members import Classic, Modern, known
from tests.kafka.transactions.producer import Producer, alike_in_transactions

NOBODY = 1 << 40  # a producer id that no Kafka has given out: a low one may be another test's


def shown(cluster: Cluster, group: str, queue: str, partition: int = 0) -> None:
    """Say the answers to readers of committed offsets."""
    for stable in (False, True):
        for version in (7, 8):
            cluster.committed(group, queue, partition=partition, stable=stable, version=version)


@pytest.mark.parametrize("version", range(5))
@alike_in_transactions
def test_after_the_group_was_added(cluster: Cluster, queue: str, version: int) -> None:
    cluster.make(queue, 2)
    group = queue + "-group"
    one = Producer(cluster, queue, tv=1)
    one.but(pid=NOBODY, epoch=0).commit_offset(group, queue, 5, version=version)
    one.init()
    one.commit_offset(group, queue, 5, version=version)  # not added
    shown(cluster, group, queue)
    one.add_offsets(group)
    one.commit_offset(group, queue, 6, version=version)
    one.commit_offset(group, queue, 7, version=version, metadata="m")
    shown(cluster, group, queue)
    shown(cluster, group, queue, 1)
    one.commit()
    shown(cluster, group, queue)
    one.add_offsets(group)
    one.commit_offset(group, queue, 9, version=version)
    one.commit_offset(group, queue, 9, partition=1, version=version)
    one.abort()
    shown(cluster, group, queue)
    shown(cluster, group, queue, 1)
    one.add_offsets(group).commit_offset(group, queue, 3, version=version)  # back
    one.commit()
    shown(cluster, group, queue)


@pytest.mark.parametrize("version", [0, 2, 3, 4, 5])
@alike_in_transactions
def test_faults(cluster: Cluster, queue: str, version: int) -> None:
    """A fenced epoch is INVALID_PRODUCER_EPOCH in every version."""
    cluster.make(queue)
    group = queue + "-group"
    one = Producer(cluster, queue).init()
    one.init()
    one.add_offsets(group)
    one.but(by=-1).commit_offset(group, queue, 1, version=version)
    one.but(by=1).commit_offset(group, queue, 1, version=version)
    one.but(epoch=-1).commit_offset(group, queue, 1, version=version)
    one.but(pid=one.pid + 1_000_000).commit_offset(group, queue, 1, version=version)
    one.but(pid=-1).commit_offset(group, queue, 1, version=version)
    one.but(id="").commit_offset(group, queue, 1, version=version)
    one.but(id=queue + "-absent").commit_offset(group, queue, 1, version=version)
    one.commit_offset(group, queue, 1, version=version, group_id="")
    one.commit_offset(group, queue + "-absent", 1, version=version)
    one.commit_offset(group, queue, 1, partition=9, version=version)
    one.commit_offset(group, queue, 1, partition=-1, version=version)
    one.commit_offset(group, queue, -1, version=version)
    one.commit_offset(group, queue, 1, version=version, metadata="x" * 4096)
    one.commit_offset(group, queue, 1, version=version, metadata="x" * 4097)
    one.commit_offset(group, queue, 1, version=version, metadata=None)
    one.commit_offset(group, queue, 1, version=version, topics=())
    shown(cluster, group, queue)
    one.abort()
    shown(cluster, group, queue)


@alike_in_transactions
def test_the_group_is_added_by_its_first_offset(cluster: Cluster, queue: str) -> None:
    """TxnOffsetCommit 5 (KIP-890)."""
    cluster.make(queue)
    group = queue + "-group"
    one = Producer(cluster, queue).init()
    for commit in (True, False, True):
        before = one.but()
        one.commit_offset(group, queue, one.epoch + 5)
        cluster.describe(queue)
        shown(cluster, group, queue)
        one.end(commit)
        shown(cluster, group, queue)
        before.commit_offset(group, queue, 99)  # late
        one.but(by=1).commit_offset(group, queue, 99)
        shown(cluster, group, queue)
    one.commit_offset(group, queue, 20).write(queue).commit_offset(group + "-2", queue, 21)
    one.commit()
    shown(cluster, group, queue)
    shown(cluster, group + "-2", queue)


@alike_in_transactions
def test_late_ones_of_old_clients(cluster: Cluster, queue: str) -> None:
    """After its end, without being added again."""
    cluster.make(queue)
    group = queue + "-group"
    one = Producer(cluster, queue, tv=1).init()
    one.add_offsets(group).commit_offset(group, queue, 5).commit()
    one.commit_offset(group, queue, 6)
    old = one.but()
    one.init()
    old.commit_offset(group, queue, 7)
    old.add_offsets(group)
    shown(cluster, group, queue)


@pytest.mark.parametrize("tv", [1, 2])
@alike_in_transactions
def test_plain_commits_between(cluster: Cluster, queue: str, tv: int) -> None:
    """The offset committed last wins, not the one that became visible last."""
    cluster.make(queue, 2)
    group = queue + "-group"
    one = Producer(cluster, queue, tv).init()
    for commit in (True, False):
        one.add_offsets(group).commit_offset(group, queue, 10)
        one.commit_offset(group, queue, 10, partition=1)
        cluster.commit_plainly(group, queue, 5)
        shown(cluster, group, queue)
        one.end(commit)
        shown(cluster, group, queue)
        shown(cluster, group, queue, 1)
    cluster.commit_plainly(group, queue, 6)
    one.add_offsets(group).commit_offset(group, queue, 20)
    cluster.commit_plainly(group, queue, 7)
    one.commit_offset(group, queue, 30)
    one.commit()
    shown(cluster, group, queue)


@pytest.mark.parametrize("tv", [1, 2])
@alike_in_transactions
def test_two_producers_of_a_group(cluster: Cluster, queue: str, tv: int) -> None:
    cluster.make(queue)
    for first, second in ((True, True), (False, True), (True, False)):
        group = f"{queue}-{first}-{second}"
        one = Producer(cluster, group + "-1", tv).init()
        two = Producer(cluster, group + "-2", tv).init()
        one.add_offsets(group).commit_offset(group, queue, 10)
        two.add_offsets(group).commit_offset(group, queue, 20)
        two.end(second)
        shown(cluster, group, queue)
        one.end(first)
        shown(cluster, group, queue)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@alike_in_transactions
def test_members_of_classic_groups(cluster: Cluster, queue: str, version: int) -> None:
    cluster.make(queue)
    group = queue + "-group"
    member = Classic(cluster.coordinator(group, 0), group, (queue,))
    member.instance = "instance"
    member.join()
    member.sync({member.id: b"x"})
    one = Producer(cluster, queue).init()
    one.add_offsets(group)

    def commit(**changes: Any) -> None:
        cluster.say("with", sorted((k, v) for k, v in changes.items() if v != member.id))
        one.commit_offset(group, queue, 5, version=version, **changes)

    commit()
    commit(generation_id=1)
    commit(member_id=member.id, generation_id=1)
    commit(member_id=member.id, generation_id=0)
    commit(member_id=member.id, generation_id=2)
    commit(member_id=member.id, generation_id=-1)
    commit(member_id="absent", generation_id=1)
    commit(member_id=member.id, generation_id=1, group_instance_id="instance")
    commit(member_id="absent", generation_id=1, group_instance_id="instance")
    commit(member_id=member.id, generation_id=1, group_instance_id="absent")
    commit(member_id="", generation_id=1, group_instance_id="instance")
    one.commit()
    shown(cluster, group, queue)
    member.leave()
    member.close()


@pytest.mark.parametrize("version", [2, 3, 5])
@alike_in_transactions
def test_members_of_consumer_groups(cluster: Cluster, queue: str, version: int) -> None:
    """Another epoch is ILLEGAL_GENERATION here, not STALE_MEMBER_EPOCH."""
    known(cluster.leader(queue), queue)
    group = queue + "-group"
    member = Modern(cluster.coordinator(group, 0), group, "one", queue)
    member.beat()
    at = member.epoch
    one = Producer(cluster, queue).init()
    one.add_offsets(group)
    for who, epoch in (
        ("", -1), ("one", at), ("one", at + 1), ("one", at - 1), ("one", -1), ("two", at),
        ("", at),
    ):  # fmt: skip
        cluster.say("with", (who, epoch - at))
        one.commit_offset(group, queue, 5, version=version, member_id=who, generation_id=epoch)
    one.commit()
    shown(cluster, group, queue)
    member.beat(member_epoch=-1)
    member.close()


@pytest.mark.parametrize("tv", [1, 2])
@alike_in_transactions
def test_groups_and_offsets_are_deleted_with_what_pends(
    cluster: Cluster, queue: str, tv: int
) -> None:
    cluster.make(queue)
    for how in ("group", "offset"):  # a real Kafka deletes a topic's offsets some time later
        group = f"{queue}-{how}"
        one = Producer(cluster, group, tv).init()
        one.add_offsets(group).commit_offset(group, queue, 5)
        wire = cluster.coordinator(group, 0)
        if how == "group":
            answer = wire.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": (group,)})
            cluster.say("delete group", name(answer.results[0].error_code))
        else:
            parts = [{"partition_index": 0}]
            values = {"group_id": group, "topics": [{"name": queue, "partitions": parts}]}
            answer = wire.call(ApiKey.OFFSET_DELETE, 0, values)
            codes = [name(p.error_code) for t in answer.topics for p in t.partitions]
            cluster.say("delete offset", (name(answer.error_code), codes))
        cluster.committed(group, queue)
        one.commit()
        cluster.committed(group, queue)
