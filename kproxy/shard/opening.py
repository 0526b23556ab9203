"""The embedded shard, opened from its disk."""

from collections.abc import Callable
from pathlib import Path

import structlog

from kproxy.config.server import Config
from kproxy.log.base import Deliver
from kproxy.log.disk_space import DiskSpace
from kproxy.log.local import LocalLog
from kproxy.loop.callbacks import nothing
from kproxy.metadata.levels import Level
from kproxy.shard.shard import Shard
from kproxy.store.rocks import RocksKv
from kproxy.store.segments import Segments
from kproxy.virtual.types import ShardId

_log = structlog.get_logger()


def open_local(
    directory: Path, config: Config, level: Level | None = None,
    check: Callable[[], None] = nothing,
) -> Shard:  # fmt: skip
    """Open the embedded shard in `directory`, recovered and ready to run. Raises DamagedLog.

    `check` is called now and then, and may break it off.
    """

    def log(deliver: Deliver) -> LocalLog:
        return LocalLog(
            segments,
            deliver,
            sync=config.sync_policy,
            segment_bytes=config.segment_bytes,
            commit_bytes_max=config.commit_bytes_max,
            disk_space=disk_space,
        )

    segments = Segments(directory / "log", marked=True)
    disk_space = DiskSpace(directory, config.disk_free_bytes_min)
    disk_space.look()  # opening writes, too
    shard = Shard(
        shard=ShardId(0),
        shards=1,
        kv=RocksKv(directory / "rows", config.rows_cache_bytes),
        segments=segments,
        disk_space=disk_space,
        config=config,
        log=log,
        shared=False,
        level=level,
    )
    try:
        recovered = shard.recover(check)
    except BaseException:
        shard.kv.close()
        segments.close()
        raise
    if recovered:
        _log.info("log_recovered", envelopes=recovered)
    return shard
