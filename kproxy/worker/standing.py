"""The state of a worker's shards, for readers outside the loop: another thread, at any moment.

The values are plain numbers that the event loop changes. A reader may see one of them a moment
before another.
"""

from typing import NamedTuple, Protocol

from kproxy.common.counters import Histogram
from kproxy.log.disk_space import DiskSpace
from kproxy.shard.shard import Shard

SERVED = "served"
PHASES = ("opening", "rebuilding", "catching_up", "claiming", SERVED, "waiting")
"""The states of a shard's owner. Waiting: its last attempt failed, or the cluster is away."""


class ShardStanding(NamedTuple):
    """One shard that is assigned to this worker."""

    number: int
    phase: str
    shard: Shard | None  # while it is served
    lag: int = 0  # records of the log's end, as last seen, that are not applied
    rebuilt: float = 1.0  # how much of its rebuild is done, 0 to 1
    published_s_ago: float | None = None  # since rows were published; None: they are not


class Standing(Protocol):
    """A worker's shards and what they lie on."""

    disk_space: DiskSpace
    append_seconds: Histogram
    """The seconds until a commit is on disk, or until the cluster has a record."""

    @property
    def assigned(self) -> bool:
        """Whether it is known which shards are this worker's."""
        ...

    def shards(self) -> list[ShardStanding]:
        """Return the state of the shards that are assigned to this worker."""
        ...

    @property
    def upstream_up(self) -> bool | None:
        """Whether the cluster answers; None: there is none."""
        ...

    def upstream_errors(self) -> dict[str, int]:
        """Return the number of errors that a client of the cluster reported, by the error's
        name.
        """
        ...


class OneShardStanding:
    """Embedded."""

    upstream_up = None
    assigned = True

    def __init__(self, shard: Shard, append_seconds: Histogram) -> None:
        self._shard = shard
        self.append_seconds = append_seconds
        self.disk_space = shard.disk_space

    def shards(self) -> list[ShardStanding]:
        shard = self._shard
        return [ShardStanding(shard.shard, SERVED if shard.serving else "waiting", shard)]

    def upstream_errors(self) -> dict[str, int]:
        return {}
