"""The services that all shards of a worker share."""

from collections.abc import Callable
from dataclasses import dataclass

import anyio

from kproxy.cluster.command_router import CommandRouter
from kproxy.common.counters import Counters
from kproxy.common.progress import Progress
from kproxy.config.server import Config
from kproxy.log.disk_space import DiskSpace
from kproxy.loop.clock import Clock
from kproxy.metadata.catalogue import Lookup
from kproxy.metadata.levels import Level
from kproxy.shard.compactor import CompactionLimits
from kproxy.upstream.link import DataLink
from kproxy.upstream.settings import Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServices:
    """One worker's means."""

    config: Config
    upstream: Upstream
    link: DataLink
    command_router: CommandRouter
    announce: Callable[[int, int], None]
    """Tell the map who serves a shard: (shard, claim's log offset)."""
    disk_space: DiskSpace
    opening: anyio.Semaphore  # how many local copies are opened at a time
    compacting: CompactionLimits
    counters: Counters
    progress: Progress
    lookup: Lookup
    clock: Clock
    level: Level
