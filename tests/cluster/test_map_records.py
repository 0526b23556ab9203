"""Compaction keeps the last record of a key: it says what holds, or somebody says that again."""

import json

import pytest

from kproxy.cluster.map_records import MapRecordGuard
from kproxy.metadata.cluster_map import (
    ClusterMap,
    Owner,
    cluster_record,
    gone_records,
    node_record,
    shard_record,
)
from kproxy.protocol.responses import Broker

ME, OTHER = Broker(2, "me", 9092), Broker(2, "other", 9092)
Record = tuple[bytes, bytes | None]


class Topic:
    """A topic that one worker reads; `said` is what it published."""

    def __init__(self, *records: Record) -> None:
        self.map, self.said = ClusterMap(2), list[Record]()
        self.last = MapRecordGuard(self.map, lambda key, value: self.said.append((key, value)))
        for record in records:
            self.hear(record)

    def hear(self, record: Record) -> None:
        self.last.heard(*record)
        self.map.apply(*record)

    def say_again(self) -> list[Record]:
        self.said.clear()
        self.last.say_again(ME)
        for record in self.said:
            self.hear(record)
        return list(self.said)


OURS = (cluster_record("first", 2, 1), node_record(ME), shard_record(1, Owner(2, 9)))


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (cluster_record("rival", 2, 1), [OURS[0]]),
        (cluster_record("rival", 2, 2), [OURS[0]]),
        (node_record(OTHER), [OURS[1]]),
        (gone_records(2)[0], [OURS[1]]),
        (gone_records(2)[1], [OURS[1]]),
        (shard_record(1, Owner(5, 3)), [OURS[2]]),
        ((b"shard:1", None), [OURS[2]]),
        ((b"shard:1", b"nonsense"), [OURS[2]]),
        ((b"shard:1", b"[1]"), [OURS[2]]),
        (shard_record(0, Owner(5, 3)), []),
        (shard_record(1, Owner(5, 10)), []),
        (node_record(Broker(3, "third", 1)), []),
        ((b"of somebody else", b"x"), []),
    ],
)
def test_a_late_record_over_ours_is_answered(late: Record, said: list[Record]) -> None:
    """FAULT: what came while the worker had no node id yet was never answered."""
    topic = Topic(*OURS, late)
    assert topic.say_again() == said
    assert topic.say_again() == []


def test_lost_record_is_written_again() -> None:
    """FAULT: who serves a shard was said once, best effort."""
    topic = Topic(*OURS)
    topic.map.apply(*shard_record(0, Owner(2, 12)))  # its record never arrives
    assert topic.say_again() == [shard_record(0, Owner(2, 12))]
    assert topic.say_again() == []


def test_a_later_level_in_force_is_not_undone() -> None:
    topic = Topic(*OURS, cluster_record("first", 2, 2))
    assert topic.say_again() == []
    topic.hear(cluster_record("first", 2, 1))
    assert topic.say_again() == [cluster_record("first", 2, 2)]


def test_records_of_an_earlier_release_are_said_anew() -> None:
    topic = Topic(*OURS, (b"node:2", json.dumps({"host": "me", "port": 9092}).encode()))
    assert topic.say_again() == [node_record(ME)]
