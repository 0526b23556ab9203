"""A data directory that comes from a backup: its log goes on where no log was before.

Producer ids are log offsets, and the end of the lost log is not known. So the restored log skips
far ahead, to a log offset that depends on the time (`virtual.commands.restore`). RESTORED is the
first envelope there.
"""

from pathlib import Path

from kproxy.config.server import Config
from kproxy.metadata.levels import Level
from kproxy.shard.opening import open_local
from kproxy.virtual.commands.restore import Restored, first_offset


def begin_again(directory: Path, config: Config, level: Level, time_ms: int) -> int:
    """Fold a restored log, and skip ahead; the log offset at which it goes on.

    Raises DamagedLog, RowsFailed, LogFailed, OSError.
    """
    shard = open_local(directory, config, level)
    try:
        log_offset = first_offset(shard.applied_through.next_offset, time_ms)
        shard.skip_to(log_offset, Restored(time_ms).envelope())
    finally:
        shard.close()
    return log_offset
