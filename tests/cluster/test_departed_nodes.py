"""Workers that are gone for good are forgotten; those that are only away for a while are not."""

import pytest

from kproxy.cluster import departed_nodes
from kproxy.cluster.departed_nodes import DepartedNodes
from kproxy.common.errors import Code, KafkaError
from kproxy.metadata.cluster_map import ClusterMap, Owner, gone_records, node_record, shard_record
from kproxy.protocol.responses import Broker


def brokers(count: int) -> list[Broker]:
    return [Broker(number, "host", 9000 + number) for number in range(1, count + 1)]


async def test_node_away_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT S9: node records were never removed."""
    map_, live, said = ClusterMap(1), {"host:9001", "host:9003"}, []
    for broker in brokers(4):
        map_.apply(*node_record(broker))
    map_.apply(*shard_record(0, Owner(4, 5)))  # it is not heard of, but nobody has its shard yet
    away_from_kafka = False

    async def who_lives() -> set[str]:
        if away_from_kafka:
            raise KafkaError(Code.NOT_CONTROLLER)
        return live

    def publish(key: bytes, value: bytes | None) -> None:
        if value is not None:
            said.append(key)
        map_.apply(key, value)

    away = DepartedNodes(map_, who_lives, publish, lambda: True)
    await away.look()
    live.add("host:9002")  # back again
    await away.look()
    monkeypatch.setattr(departed_nodes, "_AWAY_S", 0.0)
    live.discard("host:9003")
    away_from_kafka = True
    await away.look()
    away_from_kafka = False
    assert not said
    await away.look()
    assert said == [b"node:3"]
    map_.apply(*shard_record(0, Owner(1, 6)))
    await away.look()
    assert said == [b"node:3", b"node:4"]
    live.clear()  # a group that is being made anew
    await away.look()
    assert set(map_.nodes) == {1, 2}


def test_a_forgotten_workers_id_is_not_given_to_the_next() -> None:
    map_ = ClusterMap(1)
    for broker in brokers(3):
        map_.apply(*node_record(broker))
    gone, nothing = gone_records(3)
    map_.apply(*gone)
    map_.apply(*nothing)
    assert 3 not in map_.nodes
    assert map_.free_node_id() == 4
    back = brokers(3)[2]
    map_.apply(*node_record(back))
    assert map_.nodes[3] == back
