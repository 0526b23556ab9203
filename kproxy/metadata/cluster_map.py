"""The map on every worker: which node owns which shard, and each node's address.

The map is a fold of the partitions topic. The later claim (log offset) of two owners of a shard
holds, in whatever order their records come. The first record of two addresses for one node id
holds, and so with the cluster id. A worker that sees its own record overwritten writes it again
(`cluster.map_records`), because compaction keeps the last record.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kproxy.protocol.responses import Broker
from kproxy.virtual.levels import NEWEST, OLDEST


class Owner(NamedTuple):
    """The owner of a shard, and the log offset of its claim: its epoch."""

    node_id: int
    claim: int


class BadMap(Exception):
    """The partitions topic says something that this worker cannot work with."""


NOBODY = Owner(-1, -1)


Address = tuple[str, int]


class ClusterMap:
    """Owners by shard, addresses by node id."""

    def __init__(self, shards: int) -> None:
        self.owners: list[Owner] = [NOBODY] * shards
        self.nodes: dict[int, Broker] = {}
        self.addresses: dict[int, dict[str, Address]] = {}  # by listener, of nodes with several
        self._newest_id = 0
        self.cluster_id: str | None = None
        self.level = OLDEST  # in force
        self.levels: dict[int, int] = {}  # by node id, the newest that it knows

    @staticmethod
    def shards_of(records: Iterable[tuple[bytes, bytes | None]]) -> int | None:
        """Return the number of shards that the records of a partitions topic tell of."""
        for key, value in records:
            if key == b"cluster:" and value is not None:
                return int(json.loads(value)["shards"])
        return None

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take in one record. Raise BadMap."""
        kind, _, name = key.decode(errors="replace").partition(":")
        try:
            values = None if value is None else json.loads(value)
            if kind == "cluster" and values is not None:
                self._cluster(values)
            elif kind == "node":
                self._node(int(name), values)
            elif kind == "shard" and values is not None:
                self._shard(int(name), values)
        except (ValueError, KeyError, TypeError, IndexError):
            pass  # not ours

    def _cluster(self, values: dict[str, Any]) -> None:
        level = int(values["format"])
        if level > NEWEST:
            raise BadMap(
                f"the cluster is at level {level}; this kproxy knows levels up to {NEWEST}: start"
                " the release that finalized it, or a later one"
            )
        if values["shards"] != len(self.owners):
            raise BadMap(
                f"the cluster was set up with {values['shards']} shards, which never changes: start"
                f" with --shards {values['shards']}, or use another --topic-prefix"
            )
        if self.cluster_id is None:
            self.cluster_id = str(values["cluster_id"])
        if self.cluster_id == values["cluster_id"]:
            self.level = max(self.level, level)

    def _node(self, node_id: int, values: dict[str, Any] | None) -> None:
        self._newest_id = max(self._newest_id, node_id)
        if values is None:
            return
        if values.get("gone"):  # it was away for long; if it is back, it says so
            self.nodes.pop(node_id, None)
            self.levels.pop(node_id, None)
            self.addresses.pop(node_id, None)
            return
        given = Broker(node_id, str(values["host"]), int(values["port"]))
        if self.nodes.setdefault(node_id, given) == given:
            self.levels[node_id] = int(values.get("level", OLDEST))
            self._listening(node_id, values.get("listeners"))

    def _listening(self, node_id: int, values: Any) -> None:
        self.addresses.pop(node_id, None)
        if isinstance(values, dict) and values:
            self.addresses[node_id] = {
                str(name): (str(host), int(port)) for name, (host, port) in values.items()
            }

    def _shard(self, shard: int, values: dict[str, Any]) -> None:
        given = Owner(int(values["node"]), int(values["claim"]))
        if 0 <= shard < len(self.owners) and given.claim >= self.owners[shard].claim:
            self.owners[shard] = given
            self.levels[given.node_id] = int(values.get("level", OLDEST))

    def free_node_id(self) -> int:
        """Return a node id that was nobody's as far as is known: its worker may come back."""
        return self._newest_id + 1


def cluster_record(cluster_id: str, shards: int, level: int) -> tuple[bytes, bytes]:
    """Return what all workers share. Workers from before levels take `format` and refuse what is
    not 1."""
    values = {"format": level, "cluster_id": cluster_id, "shards": shards}
    return b"cluster:", json.dumps(values).encode()


def node_record(
    node: Broker, level: int = NEWEST, addresses: Mapping[str, Address] | None = None
) -> tuple[bytes, bytes]:
    """Return a worker's address, by listener if several, and the newest level that it knows."""
    values: dict[str, Any] = {"host": node.host, "port": node.port, "level": level}
    if addresses:
        values["listeners"] = {name: list(address) for name, address in addresses.items()}
    return b"node:%d" % node.node_id, json.dumps(values).encode()


def shard_record(shard: int, owner: Owner, level: int = NEWEST) -> tuple[bytes, bytes]:
    """Return the owner of a shard, and the level it knows: less than before after a rollback."""
    values = {"node": owner.node_id, "claim": owner.claim, "level": level}
    return b"shard:%d" % shard, json.dumps(values).encode()


def gone_records(node_id: int) -> tuple[tuple[bytes, bytes | None], ...]:
    """Return the record that a worker is gone, and the one that lets compaction forget it."""
    key = b"node:%d" % node_id
    return (key, json.dumps({"gone": True}).encode()), (key, None)
