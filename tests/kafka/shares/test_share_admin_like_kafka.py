"""Share groups described, listed, reset and deleted: answers as a real Kafka 4.3.1 gives them.

A real Kafka writes the start of a share partition one acknowledgement late, and nothing before the
first: only the lag is compared there. Its leaders go on with what they had in memory when offsets
are altered, until they are refused a write: so offsets are altered before anybody has fetched.
"""

from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.groups.members import Modern, commit
from tests.kafka.shares.cluster import ShareCluster, alike_in_shares
from tests.kafka.shares.sharer import ACCEPT, REJECT, RELEASE, Sharer, sharing


def committed_group(cluster: ShareCluster, group: str, topic: str) -> str:
    """Make a classic group that has nothing but an offset."""
    commit(cluster.coordinator(group, 0), group, topic, 5, version=8)
    return group


@alike_in_shares
def test_describe(cluster: ShareCluster, queue: str) -> None:
    for group in (queue, ""):
        cluster.describe_group(group)
    one = sharing(cluster, queue, partitions=2)
    cluster.describe_group(queue)
    one.leave()
    cluster.describe_group(queue, epochs=False)
    cluster.delete_group(queue)
    cluster.describe_group(queue)


@alike_in_shares
def test_list_groups(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue)
    Sharer(cluster, queue + "-empty", "one", queue).silently(1).leave()
    committed_group(cluster, queue + "-committed", queue)
    modern = Modern(cluster.coordinator(f"{queue}-modern", 0), f"{queue}-modern", "m", queue)
    modern.beat()
    for filters in (
        {}, {"types_filter": ("share",)}, {"types_filter": ("SHARE", "Consumer")},
        {"types_filter": ("consumer",)}, {"types_filter": ("bogus",)},
        {"states_filter": ("Stable",)}, {"states_filter": ("empty",)},
        {"states_filter": ("Empty",), "types_filter": ("share",)},
        {"states_filter": ("Dead",), "types_filter": ("share",)},
    ):  # fmt: skip
        cluster.share_groups(queue, **filters)
    cluster.share_groups(queue, version=4)
    modern.beat(member_epoch=-1)
    modern.close()
    one.leave()
    cluster.share_groups(queue, types_filter=("share",))


@alike_in_shares
def test_lag(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue, partitions=2)
    part = (queue, 0)
    cluster.write(queue, 3, 3)
    one.fetch(part)
    for listed in (
        [(2, 3, ACCEPT)], [(0, 0, ACCEPT)], [(1, 1, REJECT)], [(5, 5, ACCEPT)],
        [(4, 4, RELEASE)],
    ):  # fmt: skip
        one.ack({part: listed})
        cluster.share_offsets(queue, part)
    cluster.write(queue, 3)
    cluster.share_offsets(queue, part)
    cluster.share_offsets(queue, part, version=0)
    one.fetch()
    one.ack({part: [(4, 4, ACCEPT), (6, 8, ACCEPT)]})
    cluster.share_offsets(queue, part)
    one.close()
    one.leave()
    cluster.share_offsets(queue, part)


@alike_in_shares
def test_groups_without_offsets_are_described(cluster: ShareCluster, queue: str) -> None:
    other = cluster.make(queue + "-other")
    sharing(cluster, queue)
    group = committed_group(cluster, queue + "-committed", queue)
    for asked in (group, queue + "-never"):
        cluster.share_offsets(asked, (queue, 0), start=True)
        cluster.share_offsets(asked, all_topics=True, start=True)
    cluster.share_offsets(queue, (queue + "-never", 0), start=True)
    cluster.share_offsets(queue, (other, 0), start=True)
    cluster.share_offsets(queue, start=True)


@alike_in_shares
def test_alterations_are_refused(cluster: ShareCluster, queue: str) -> None:
    one = sharing(cluster, queue, partitions=2)
    other = cluster.make(queue + "-other")
    cluster.write(queue, 3)
    cluster.alter_offsets(queue, {(queue, 0): 0})
    cluster.delete_offsets(queue, queue)
    cluster.delete_group(queue)
    one.leave()
    group = committed_group(cluster, queue + "-committed", queue)
    for refused in (group, ""):
        cluster.alter_offsets(refused, {(queue, 0): 1})
        cluster.delete_offsets(refused, queue)
    cluster.delete_offsets(queue + "-never", queue)
    cluster.alter_offsets(queue, {(queue, 9): 0, (queue, 1): 0})
    cluster.alter_offsets(queue, {(queue + "-never", 0): 0})
    cluster.alter_offsets(queue, {})
    cluster.delete_offsets(queue)
    cluster.delete_offsets(queue, other)
    cluster.delete_offsets(queue, queue + "-never", other)


@pytest.mark.parametrize("start", [0, 2, 4, 6])
@alike_in_shares
def test_alter(cluster: ShareCluster, queue: str, start: int) -> None:
    one = sharing(cluster, queue, partitions=2)
    part = (queue, 0)
    cluster.write(queue, 3, 3)
    one.leave()
    cluster.alter_offsets(queue, {part: start})
    cluster.share_offsets(queue, part, start=True)
    one.silently(2)
    cluster.write(queue, 1)
    one.fetch(part)
    cluster.share_offsets(queue, part)


@pytest.mark.parametrize("start", [7, 9, 5_000_000_000])
@alike_in_shares
def test_alter_to_what_is_to_be_written(cluster: ShareCluster, queue: str, start: int) -> None:
    """The lag is below 0 meanwhile."""
    cluster.make(queue)
    cluster.write(queue, 6)
    cluster.alter_offsets(queue, {(queue, 0): start})
    for version in (0, 1):
        cluster.share_offsets(queue, (queue, 0), start=True, version=version)
    for size in (2, 2):
        cluster.write(queue, size)
        cluster.share_offsets(queue, (queue, 0), start=True)
    if start < 10:
        one = Sharer(cluster, queue, "one", queue).silently(1)
        one.fetch((queue, 0))
        cluster.share_offsets(queue, (queue, 0))


@alike_in_shares
def test_alter_makes_groups(cluster: ShareCluster, queue: str) -> None:
    """A group that is not there, and a topic that it never had."""
    cluster.make(queue, 2)
    cluster.write(queue, 4)
    cluster.alter_offsets(queue, {(queue, 0): 1})
    cluster.describe_group(queue, epochs=False)
    cluster.share_groups(queue)
    cluster.share_offsets(queue, (queue, 0), (queue, 1), start=True)
    cluster.share_offsets(queue, all_topics=True, start=True)
    one = Sharer(cluster, queue, "one", queue).silently(2)
    one.fetch((queue, 0))


@alike_in_shares
def test_delete_offsets(cluster: ShareCluster, queue: str) -> None:
    other = cluster.make(queue + "-other", 2)
    one = sharing(cluster, queue)
    one.topics = (queue, other)
    one.beat(subscribed_topic_names=one.topics)
    del cluster.said[-1]
    one.silently(3).leave()
    cluster.alter_offsets(queue, {(queue, 0): 0, (other, 0): 0, (other, 1): 0})
    cluster.share_offsets(queue, all_topics=True, start=True)
    cluster.delete_offsets(queue, other)
    cluster.share_offsets(queue, all_topics=True, start=True)
    cluster.delete_offsets(queue, other)
    cluster.delete_offsets(queue, queue, queue + "-never")
    cluster.share_offsets(queue, all_topics=True, start=True)
    cluster.describe_group(queue, epochs=False)
    cluster.write(other, 2)
    one.silently(3)
    one.fetch((other, 0))
    one.close()
    one.leave()
    cluster.delete_group(queue)
    cluster.share_groups(queue)
    cluster.share_offsets(queue, (other, 0), start=True)
    cluster.delete_group(queue)


CONFIGS = {
    "share.auto.offset.reset": (
        "none", "EARLIEST", "by_duration:x", "by_duration:-PT1H", "by_duration:",
        "by_duration:P1DT2H3M4.5S", "latest",
    ),
    "share.isolation.level": ("READ_COMMITTED", "x", "read_committed"),
    "share.record.lock.duration.ms": ("999", "1000", "60000", "60001", "x", "", "1.5"),
    "share.delivery.count.limit": ("1", "2", "10", "11"),
    "share.partition.max.record.locks": ("99", "100", "4000", "4001", "10001"),
    "share.session.timeout.ms": ("44999", "45000", "60000", "60001"),
    "share.heartbeat.interval.ms": ("4999", "5000", "15000", "15001"),
    "share.renew.acknowledge.enable": ("false", "TRUE", "maybe"),
    "share.assignment.interval.ms": ("0", "1000", "-1"),
    "no.such": ("1",),
}  # fmt: skip


def altered(cluster: ShareCluster, group: str, key: str, value: Any, operation: int = 0) -> None:
    entry = {"name": key, "config_operation": operation, "value": value}
    resource = {"resource_type": 32, "resource_name": group, "configs": [entry]}
    values = {"resources": [resource], "validate_only": False}
    answer = cluster.wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values).responses[0]
    cluster.say(f"{key} {value!r} op {operation}", (int(answer.error_code), answer.error_message))


@alike_in_shares
def test_configs(cluster: ShareCluster, queue: str) -> None:
    """Also the texts: they tell an operator what would be right."""
    for key, values in CONFIGS.items():
        for value in values:
            altered(cluster, queue, key, value)
    altered(cluster, queue, "share.delivery.count.limit", "3", operation=2)
    altered(cluster, queue, "share.delivery.count.limit", None)
    altered(cluster, queue, "share.delivery.count.limit", None, operation=1)
    altered(cluster, queue, "share.delivery.count.limit", None, operation=1)
    altered(cluster, "", "share.delivery.count.limit", "3")
