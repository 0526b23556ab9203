"""The files of a backup belong together, whatever RocksDB does meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kproxy.common.errors import CannotStart
from kproxy.config.server import load
from kproxy.shard import staging
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.shard.staging import Staging
from kproxy.store.backups import META, link_log, link_rows, sources
from kproxy.store.rocks import RocksKv
from kproxy.store.rows_reader import RowsReader
from kproxy.tools import backup


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shard]:
    monkeypatch.setattr(staging, "_AGAIN_S", 0.001)
    (tmp_path / META).write_text("{}")
    opened = open_local(tmp_path / "shard-0", load({"data_dir": tmp_path}, None, {}))
    opened.kv.write({b"a": b"1"})
    opened.kv.flush()
    yield opened
    opened.close()


def staged_by(tmp_path: Path, shard: Shard) -> Staging:
    async def flush() -> None:
        assert shard.staging  # from here on no segment is deleted
        shard.kv.flush()

    return Staging(tmp_path, shard, flush)


async def test_rows_that_change_meanwhile_are_linked_again(
    tmp_path: Path, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: the server opened them, too: its loop stood still while the disk was read."""
    tables, asked = RocksKv.tables, 0

    def changing(kv: RocksKv) -> frozenset[str]:
        nonlocal asked
        asked += 1
        return tables(kv) if asked > 1 else frozenset({"000000.sst"})  # gone when it is linked

    monkeypatch.setattr(RocksKv, "tables", changing)
    monkeypatch.setattr(RowsReader, "__init__", pytest.fail)
    async with staged_by(tmp_path, shard).staged() as values:
        assert not shard.staging
        found = {Path(one.name).name for one in sources(Path(values["path"]), values["log"])}
        assert tables(shard.kv) <= found
    assert asked == 2
    assert not (tmp_path / "backup-staging").exists()


def test_staged_rows_that_do_not_open_are_asked_for_again(
    tmp_path: Path, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: a table that a compaction had just noted was missing in a backup."""
    named, shard_dir, asked = [shard.kv.tables()], tmp_path / "shard-0", list[Path]()
    shard.kv.write({b"b": b"2"})
    shard.kv.flush()  # noted by RocksDB, and not named before
    named.append(shard.kv.tables())

    @contextmanager
    def asking(directory: Path, command: str) -> Iterator[Any]:
        path = tmp_path / f"staged-{len(asked)}"
        link_rows(shard_dir / "rows", path / "shard-0" / "rows", named[len(asked)])
        log = link_log(shard_dir / "log", path / "shard-0" / "log")
        (path / META).write_text("{}")
        asked.append(path)
        yield Mock(progress=lambda: iter([{"path": str(path), "log": log}]))

    monkeypatch.setattr(backup, "asking", asking)
    with backup._source(tmp_path) as found:
        assert {Path(one.name).name for one in found} >= named[1] > named[0]
    assert len(asked) == 2


async def test_rows_that_never_stand_still_are_refused(
    tmp_path: Path, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RocksKv, "tables", lambda kv: frozenset({"000000.sst"}))
    with pytest.raises(CannotStart, match="change too fast"):
        async with staged_by(tmp_path, shard).staged():
            pass
    assert not shard.staging
    assert not (tmp_path / "backup-staging").exists()


async def test_one_backup_at_a_time(tmp_path: Path, shard: Shard) -> None:
    one = staged_by(tmp_path, shard)
    async with one.staged():
        with pytest.raises(CannotStart, match="under way"):
            async with one.staged():
                pass
        assert (tmp_path / "backup-staging").exists()
    async with one.staged():
        pass


async def test_no_backup_begins_while_the_stage_of_another_is_removed(
    tmp_path: Path, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: the removal took files of the next one, which might have been taken for whole."""
    one, staged, removed = staged_by(tmp_path, shard), anyio.Event(), threading.Event()

    def sweep(directory: Path) -> None:
        if staged.is_set():
            removed.wait(20)
        real(directory)

    async def first() -> None:
        async with one.staged():
            staged.set()

    real = staging.sweep
    monkeypatch.setattr(staging, "sweep", sweep)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await staged.wait()
        await checkpoint()
        try:
            with pytest.raises(CannotStart, match="under way"):
                async with one.staged():
                    pass
        finally:
            removed.set()
