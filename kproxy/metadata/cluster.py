"""The cluster as clients see it: its id, its nodes, who leads what."""

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path

from kproxy.protocol.answers import Broker

_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Embedded: one node that leads everything and is the controller."""

    cluster_id: str
    me: Broker

    @property
    def brokers(self) -> tuple[Broker, ...]:
        return (self.me,)

    @property
    def controller_id(self) -> int:
        return self.me.node_id

    def leaders(self, partitions: int) -> tuple[int, ...]:
        return (self.me.node_id,) * partitions


def open_identity(directory: Path) -> str:
    """The cluster id kept in the data directory, made at first start. Raises ValueError."""
    path = directory / "meta.json"
    if path.exists():
        values = json.loads(path.read_text())
        if values.get("format") != _FORMAT:
            raise ValueError(
                f"{path} has format {values.get('format')}, this kproxy reads format {_FORMAT}"
            )
        return str(values["cluster_id"])
    cluster_id = base64.urlsafe_b64encode(b"\x01" + os.urandom(15)).decode().rstrip("=")
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        json.dump({"format": _FORMAT, "cluster_id": cluster_id, "shards": 1}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return cluster_id
