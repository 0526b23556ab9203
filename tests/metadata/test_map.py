"""The map of owners and nodes: late records change nothing, whatever their order."""

import itertools
import json

import pytest

from kproxy.metadata.cluster_map import (
    BadMap,
    ClusterMap,
    Owner,
    cluster_record,
    node_record,
    shard_record,
)
from kproxy.metadata.cluster_view import ClusterMapView
from kproxy.protocol.responses import Broker
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.partitioner import shard_of

ONE, TWO = Broker(1, "a", 9092), Broker(2, "b", 9092)


def test_the_later_claim_holds_in_every_order() -> None:
    records = [shard_record(0, Owner(1, 5)), shard_record(0, Owner(2, 9)),
               shard_record(0, Owner(1, 7))]  # fmt: skip
    for order in itertools.permutations(records):
        map_ = ClusterMap(2)
        for record in order:
            map_.apply(*record)
        assert map_.owners[0] == Owner(2, 9)


def test_a_late_record_changes_nothing() -> None:
    map_ = ClusterMap(2)
    for record in (
        shard_record(1, Owner(2, 9)), shard_record(1, Owner(1, 5)), node_record(ONE),
        node_record(Broker(1, "other", 1)), (b"node:1", None),
    ):  # fmt: skip
        map_.apply(*record)
    assert map_.owners[1] == Owner(2, 9)
    assert map_.nodes == {1: ONE}
    assert map_.free_node_id() == 2


def test_a_cluster_keeps_its_id_and_number_of_shards() -> None:
    map_ = ClusterMap(4)
    map_.apply(*cluster_record("first", 4, 1))
    map_.apply(*cluster_record("second", 4, 1))
    assert map_.cluster_id == "first"
    with pytest.raises(BadMap, match="--shards 8"):
        map_.apply(*cluster_record("first", 8, 1))
    with pytest.raises(BadMap, match="level 99"):
        map_.apply(b"cluster:", b'{"format": 99, "shards": 4, "cluster_id": "x"}')
    assert ClusterMap.shards_of([(b"node:1", b"{}"), cluster_record("x", 7, 1)]) == 7
    assert ClusterMap.shards_of([]) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"shard:9", b'{"node": 1, "claim": 1}'), (b"shard:-1", b'{"node": 1, "claim": 1}'),
        (b"shard:x", b"{}"), (b"shard:0", b"nonsense"), (b"shard:0", b'{"node": 1}'), (b"", b""),
        (b"\xff\xfe", b"{}"), (b"node:1", b'{"host": "a"}'), (b"shard:0", None), (b"other", b"{}"),
    ],
)  # fmt: skip
def test_records_of_others_are_passed_over(key: bytes, value: bytes | None) -> None:
    map_ = ClusterMap(2)
    map_.apply(key, value)
    assert map_.owners == ClusterMap(2).owners
    assert not map_.nodes


def test_metadata_comes_from_the_map() -> None:
    map_ = ClusterMap(4)
    for node in (ONE, TWO):
        map_.apply(*node_record(node))
    home = shard_of("q", 4)
    map_.apply(*shard_record(home, Owner(2, 1)))
    cluster = ClusterMapView(ONE, map_)
    assert cluster.leaders("q", 3) == (2, -1, -1)
    assert cluster.coordinator("q") == TWO
    assert cluster.brokers == (ONE, TWO)
    map_.apply(*shard_record(home, Owner(1, 2)))
    assert cluster.leaders("q", 5) == (1, -1, -1, -1, 1)
    assert cluster.brokers == (ONE,)  # a node that serves nothing is not named
    assert cluster.controller_id == 1


def test_a_level_rises_and_never_falls() -> None:
    map_ = ClusterMap(4)
    map_.apply(*cluster_record("c", 4, 1))
    assert map_.level == 1
    map_.apply(*cluster_record("other", 4, 2))
    assert map_.level == 1  # it is not this cluster's record
    map_.apply(*cluster_record("c", 4, 2))
    assert map_.level == 2
    map_.apply(*cluster_record("c", 4, 1))
    assert map_.level == 2


def test_worker_without_a_level_is_of_the_first_release() -> None:
    map_ = ClusterMap(4)
    map_.apply(b"node:1", b'{"host": "a", "port": 9092}')
    assert map_.levels == {1: 1}
    map_.apply(*node_record(ONE, 2))  # the same worker, in a later release
    assert map_.levels == {1: 2}
    map_.apply(*node_record(Broker(1, "other", 1), 1))
    assert map_.levels == {1: 2}
    map_.apply(b"shard:0", b'{"node": 1, "claim": 7}')  # it was rolled back: nothing else says so
    assert map_.levels == {1: 1}
    map_.apply(*shard_record(0, Owner(1, 8)))
    assert map_.levels == {1: NEWEST}


def test_client_of_a_listener_is_told_its_addresses() -> None:
    map_ = ClusterMap(2)
    for record in (
        node_record(ONE, addresses={"PLAINTEXT": ("a", 9092), "OUTSIDE": ("a.example", 9093)}),
        node_record(TWO), shard_record(0, Owner(1, 5)), shard_record(1, Owner(2, 5)),
    ):  # fmt: skip
        map_.apply(*record)
    whole = ClusterMapView(ONE, map_)
    outside = whole.seen_by("OUTSIDE")
    assert outside.brokers == (Broker(1, "a.example", 9093),)
    assert outside.me == Broker(1, "a.example", 9093)
    assert outside.leaders("q", 2).count(-1) == 1, "a node without the listener leads nothing here"
    assert {outside.coordinator(f"g{i}") for i in range(20)} == {outside.me, None}
    for name in ("", "PLAINTEXT"):
        assert whole.seen_by(name).brokers == (ONE, TWO)
    map_.apply(*node_record(TWO, addresses={"OUTSIDE": ("b.example", 9093)}))
    assert whole.seen_by("OUTSIDE").brokers == (
        Broker(1, "a.example", 9093), Broker(2, "b.example", 9093),
    )  # fmt: skip
    assert whole.seen_by("PLAINTEXT").brokers == (ONE,)


def test_odd_addresses_are_none() -> None:
    map_ = ClusterMap(1)
    for listeners in ({"A": 1}, [1], {"A": ["h"]}, {"A": ["h", "x"]}, "A"):
        value = {"host": "a", "port": 9092, "level": 1, "listeners": listeners}
        map_.apply(b"node:1", json.dumps(value).encode())
        assert map_.nodes == {1: ONE}
        assert map_.addresses == {}
