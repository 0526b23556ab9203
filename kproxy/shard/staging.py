"""A stage for an embedded server's files: it links them for a backup while the server serves.

Rows first: they are flushed as always, and their tables linked. Then the log's segments are linked.
So the log reaches at least as far as the rows, and a restore folds it from there. No segment is
deleted in between; the links stay, whatever becomes of the originals, until it is released.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import structlog
from anyio import to_thread

from kproxy.common.errors import CannotStart
from kproxy.shard.shard import Shard
from kproxy.store import backups, files

_log = structlog.get_logger()

_NAME = "backup-staging"
_TRIES = 50
_AGAIN_S = 0.1


def sweep(directory: Path) -> None:
    """Remove what a kill has left in a data directory."""
    shutil.rmtree(directory / _NAME, ignore_errors=True)


class Staging:
    """The stage of one data directory; one backup at a time."""

    def __init__(self, directory: Path, shard: Shard, flush: Callable[[], Awaitable[None]]) -> None:
        """Take `flush`, which puts log and rows on disk, as the housekeeper does."""
        self._directory = directory
        self._shard = shard
        self._flush = flush
        self._staged = directory / _NAME
        self._busy = False

    @asynccontextmanager
    async def staged(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the place of the files, and how far the log goes. Raises CannotStart, OSError."""
        if self._busy:
            raise CannotStart("a backup is under way: wait until it is done")
        self._busy = True
        try:
            await to_thread.run_sync(sweep, self._directory)
            log = await self._stage()
            _log.info("backup_staged", segments=len(log))
            yield {"path": str(self._staged.absolute()), "log": log}
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(sweep, self._directory)
            self._busy = False

    async def _stage(self) -> dict[str, int]:
        shard, source = self._shard, self._directory / backups.SHARD
        target = self._staged / backups.SHARD
        shard.staging = True
        try:
            await self._flush()
            await self._link_rows(source / "rows", target / "rows")
            await shard.log.sync()
            log = await to_thread.run_sync(backups.link_log, source / "log", target / "log")
        finally:
            shard.staging = False
        meta = (self._directory / backups.META).read_bytes()
        (self._staged / backups.META).write_bytes(meta)
        files.sync_directory(self._staged)
        return log

    async def _link_rows(self, source: Path, target: Path) -> None:
        """Link the rows' tables while RocksDB goes on.

        They belong together if they open. The command opens them: that would hold the loop here.
        """
        for _ in range(_TRIES):
            tables = self._shard.kv.tables()
            try:
                await to_thread.run_sync(backups.link_rows, source, target, tables)
            except FileNotFoundError:
                await to_thread.run_sync(shutil.rmtree, target)
                await anyio.sleep(_AGAIN_S)
            else:
                return
        raise CannotStart(backups.UNSTEADY)
