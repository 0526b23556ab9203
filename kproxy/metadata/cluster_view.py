"""The cluster as clients see it: its id, its nodes, and the leader of each partition."""

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from anyio import to_thread

from kproxy.common.errors import Code, KafkaError
from kproxy.metadata.cluster_map import Address, ClusterMap
from kproxy.metadata.levels import Level
from kproxy.protocol.responses import Broker
from kproxy.virtual.levels import NEWEST, OLDEST
from kproxy.virtual.partitioner import shard_of

MAIN = "PLAINTEXT"
"""The listener of a node that says nothing of listeners."""
_FORMAT_ABOVE_LEVEL = 1
"""The difference of `format` in `meta.json` and the level: the first level had format 2."""


class Cluster(Protocol):
    """The cluster as Metadata and coordinator look-ups see it."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def me(self) -> Broker: ...
    @property
    def brokers(self) -> tuple[Broker, ...]: ...
    @property
    def controller_id(self) -> int: ...
    def leaders(self, name: str, partitions: int) -> tuple[int, ...]:
        """Return node ids by partition of a queue; -1 if nobody serves it at the moment."""
        ...

    def coordinator(self, name: str) -> Broker | None:
        """Return the broker that serves a group or a transactional id."""
        ...

    def seen_by(self, listener: str) -> "Cluster":
        """Return the same, with the addresses that clients of this listener can use."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleNode:
    """Embedded: one node that leads everything and is the controller."""

    cluster_id: str
    me: Broker
    addresses: Mapping[str, Address] = field(default_factory=dict)  # by listener

    def seen_by(self, listener: str) -> Cluster:
        address = self.addresses.get(listener)
        return self if address is None else replace(self, me=Broker(self.me.node_id, *address))

    @property
    def brokers(self) -> tuple[Broker, ...]:
        return (self.me,)

    @property
    def controller_id(self) -> int:
        return self.me.node_id

    def leaders(self, name: str, partitions: int) -> tuple[int, ...]:
        return (self.me.node_id,) * partitions

    def coordinator(self, name: str) -> Broker | None:
        return self.me


class ClusterMapView:
    """One of many: what the map says."""

    def __init__(self, me: Broker, map_: ClusterMap) -> None:
        self.me = me
        self._map = map_

    @property
    def cluster_id(self) -> str:
        return self._map.cluster_id or ""

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """The brokers that serve something; one that died is gone when others have its shards."""
        serving = {owner.node_id for owner in self._map.owners} | {self.me.node_id}
        nodes = self._map.nodes
        return tuple(nodes[node_id] for node_id in sorted(serving) if node_id in nodes)

    @property
    def controller_id(self) -> int:
        return self.brokers[0].node_id

    def leaders(self, name: str, partitions: int) -> tuple[int, ...]:
        owners = self._map.owners
        home = shard_of(name, len(owners))
        return tuple(owners[(home + i) % len(owners)].node_id for i in range(partitions))

    def coordinator(self, name: str) -> Broker | None:
        owner = self._map.owners[shard_of(name, len(self._map.owners))]
        return self._map.nodes.get(owner.node_id)

    def seen_by(self, listener: str) -> Cluster:
        if not listener or (listener == MAIN and not self._map.addresses):
            return self
        return _SeenBy(self, self._map, listener)


class _SeenBy:
    """The cluster as it is for who came by one listener. A node without that one is not there."""

    def __init__(self, whole: ClusterMapView, map_: ClusterMap, listener: str) -> None:
        self._whole = whole
        self._map = map_
        self._listener = listener
        self._shown = {node.node_id for node in self.brokers}
        self._all = len(self._shown) == len(whole.brokers)

    def _shown_as(self, node: Broker) -> Broker | None:
        addresses = self._map.addresses.get(node.node_id)
        if addresses is None:
            return node if self._listener == MAIN else None
        address = addresses.get(self._listener)
        return None if address is None else Broker(node.node_id, *address)

    @property
    def cluster_id(self) -> str:
        return self._whole.cluster_id

    @property
    def me(self) -> Broker:
        return self._shown_as(self._whole.me) or self._whole.me

    @property
    def brokers(self) -> tuple[Broker, ...]:
        shown = (self._shown_as(node) for node in self._whole.brokers)
        return tuple(node for node in shown if node is not None)

    @property
    def controller_id(self) -> int:
        brokers = self.brokers
        return brokers[0].node_id if brokers else -1

    def leaders(self, name: str, partitions: int) -> tuple[int, ...]:
        leaders = self._whole.leaders(name, partitions)
        if self._all:
            return leaders
        return tuple(leader if leader in self._shown else -1 for leader in leaders)

    def coordinator(self, name: str) -> Broker | None:
        node = self._whole.coordinator(name)
        return None if node is None else self._shown_as(node)

    def seen_by(self, listener: str) -> Cluster:
        return self._whole.seen_by(listener)


def _read_identity(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    level = _level_of(values)
    if not OLDEST <= level <= NEWEST:
        raise ValueError(
            f"{path} has format {values.get('format')}, this kproxy reads formats"
            f" {OLDEST + _FORMAT_ABOVE_LEVEL} to {NEWEST + _FORMAT_ABOVE_LEVEL}: a later kproxy"
            " has it"
        )
    return dict(values)


def _level_of(values: dict[str, Any]) -> int:
    format_ = values.get("format")
    return format_ - _FORMAT_ABOVE_LEVEL if isinstance(format_, int) else OLDEST - 1


def _write_identity(path: Path, cluster_id: str, shards: int, *, kafka: bool, level: int) -> None:
    values = {
        "format": level + _FORMAT_ABOVE_LEVEL, "cluster_id": cluster_id, "shards": shards,
        "kafka": kafka,
    }  # fmt: skip
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        json.dump(values, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_identity(directory: Path) -> tuple[str, Level]:
    """Return cluster id and level of an embedded directory, made if new. Raise ValueError."""
    path = directory / "meta.json"
    values = _read_identity(path)
    if values is None:
        cluster_id = new_cluster_id()
        _write_identity(path, cluster_id, 1, kafka=False, level=NEWEST)
        return cluster_id, Level(NEWEST)
    if values.get("kafka"):
        raise ValueError("it is the local copy of a Kafka cluster's: give --bootstrap-servers")
    return str(values["cluster_id"]), Level(_level_of(values))


def identity(directory: Path) -> dict[str, Any]:
    """Return what `meta.json` of a data directory says. Raise OSError, ValueError."""
    values = _read_identity(directory / "meta.json")
    if values is None:
        raise ValueError("it is not there: this is no data directory")
    return values


def raise_level(directory: Path, level: int) -> Level:
    """Let an embedded data directory have this level at least. Raise OSError, ValueError."""
    values = identity(directory)
    known = _level_of(values)
    if known < level:
        path = directory / "meta.json"
        _write_identity(path, str(values["cluster_id"]), 1, kafka=False, level=level)
    return Level(max(known, level))


class DirectoryUpgrades:
    """`Upgrades` of an embedded data directory: its format is what says the level."""

    def __init__(self, directory: Path, cluster_id: str, level: Level) -> None:
        self._path = directory / "meta.json"
        self._cluster_id = cluster_id
        self._level = level

    async def behind(self, level: int) -> list[str]:
        return []

    async def finalize(self, level: int) -> None:
        try:
            await to_thread.run_sync(self._write, level)
        except OSError as error:
            raise KafkaError(Code.KAFKA_STORAGE_ERROR, f"{self._path}: {error}") from error
        self._level.value = level

    def _write(self, level: int) -> None:
        _write_identity(self._path, self._cluster_id, 1, kafka=False, level=level)


def check_identity(directory: Path, cluster_id: str, shards: int) -> None:
    """Check that a directory is, or can become, a local copy of this cluster's. Raise ValueError.

    The cluster itself says its level, so a local copy keeps the oldest.
    """
    path = directory / "meta.json"
    values = _read_identity(path)
    if values is None:
        _write_identity(path, cluster_id, shards, kafka=True, level=OLDEST)
    elif not values.get("kafka"):
        raise ValueError("it holds queues of an embedded kproxy: choose another --data-dir")
    elif (values["cluster_id"], values["shards"]) != (cluster_id, shards):
        raise ValueError(
            f"it is a local copy of cluster {values['cluster_id']}, not of {cluster_id}: choose"
            " another --data-dir, or delete it"
        )


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(b"\x01" + os.urandom(15)).decode().rstrip("=")
