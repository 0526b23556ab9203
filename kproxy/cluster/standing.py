"""The state of a worker's shards on Kafka (`worker.standing`)."""

from kproxy.cluster.owned_shards import OwnedShards
from kproxy.cluster.shard_owner import ShardOwner
from kproxy.common.counters import Histogram
from kproxy.common.progress import Progress
from kproxy.log.disk_space import DiskSpace
from kproxy.log.shared import SharedLog
from kproxy.loop.clock import Clock
from kproxy.upstream.settings import Connectivity
from kproxy.worker.standing import ShardStanding


class NodeStanding:
    """Read from another thread."""

    def __init__(
        self, shards: OwnedShards, progress: Progress, connectivity: Connectivity,
        disk_space: DiskSpace, append_seconds: Histogram, clock: Clock,
    ) -> None:  # fmt: skip
        self._shards = shards
        self._progress = progress
        self._connectivity = connectivity
        self._clock = clock
        self.disk_space = disk_space
        self.append_seconds = append_seconds

    @property
    def assigned(self) -> bool:
        return self._shards.assigned_once

    @property
    def upstream_up(self) -> bool:
        return not self._connectivity.lost

    def upstream_errors(self) -> dict[str, int]:
        return dict(self._connectivity.errors)

    def shards(self) -> list[ShardStanding]:
        return [self._standing(owner) for owner in self._shards.owners()]

    def _standing(self, owner: ShardOwner) -> ShardStanding:
        held, publisher = owner.held, owner.publisher
        log = None if held is None else held.log
        return ShardStanding(
            owner.index, owner.phase, owner.shard,
            lag=log.lag if isinstance(log, SharedLog) else 0,
            rebuilt=0.0 if owner.phase == "opening" else self._rebuilt(owner),
            published_s_ago=None if publisher is None else publisher.published_s_ago,
        )  # fmt: skip

    def _rebuilt(self, owner: ShardOwner) -> float:
        if owner.phase != "rebuilding":
            return 1.0
        return self._progress.ratio("shard_rebuilding", owner.index) or 0.0
