"""The repair of records of the partitions topic that compaction would keep although they do not
hold.

The map uses the first record of some keys, but compaction keeps the last one. A worker therefore
writes its own record again where another record stands behind it, or where its record was lost.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kproxy.metadata.cluster_map import (
    Address,
    ClusterMap,
    cluster_record,
    node_record,
    shard_record,
)
from kproxy.protocol.responses import Broker

_KINDS = (b"cluster:", b"node:", b"shard:")


class MapRecordGuard:
    """The last record of each key, as far as the topic was read."""

    def __init__(
        self, map_: ClusterMap, publish: Callable[[bytes, bytes], None],
        addresses: Mapping[str, Address] | None = None,
    ) -> None:  # fmt: skip
        """Take this worker's `addresses` by listener, where it has several."""
        self._addresses = addresses
        self._map = map_
        self._publish = publish
        self._last: dict[bytes, Any] = {}

    def heard(self, key: bytes, value: bytes | None) -> None:
        """Note the last record of a key of the topic."""
        if not key.startswith(_KINDS):
            return
        self._last.pop(key, None)
        if value is not None:
            try:
                self._last[key] = json.loads(value)
            except ValueError:
                self._last[key] = None

    def say_again(self, me: Broker) -> None:
        """Publish what this worker has to say and what does not stand last."""
        for key, value in self._own(me):
            last = self._last.get(key)
            wanted = json.loads(value)
            if not isinstance(last, dict) or wanted != {name: last.get(name) for name in wanted}:
                self._publish(key, value)

    def _own(self, me: Broker) -> Iterator[tuple[bytes, bytes]]:
        """Yield this worker's own address and shards, and the cluster's name, which all workers
        share.
        """
        map_ = self._map
        if map_.cluster_id is not None:
            yield cluster_record(map_.cluster_id, len(map_.owners), map_.level)
        yield node_record(me, addresses=self._addresses)
        for shard, owner in enumerate(map_.owners):
            if owner.node_id == me.node_id:
                yield shard_record(shard, owner)
