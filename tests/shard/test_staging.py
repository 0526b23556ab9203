"""The files of a backup belong together, whatever RocksDB does meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy.common.errors import CannotStart
from kproxy.config.server import load
from kproxy.shard import staging
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.shard.staging import Staging
from kproxy.store.backups import META, sources
from kproxy.store.rocks import RocksKv


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
    """FAULT: a table that a compaction had just noted was missing in a backup."""
    tables, asked = RocksKv.tables, 0

    def changing(kv: RocksKv) -> frozenset[str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            return frozenset({"000000.sst"})  # it is gone when it is to be linked
        named = tables(kv)
        if asked == 2:  # noted by RocksDB, and not named yet
            kv.write({b"b": b"2"})
            kv.flush()
        return named

    monkeypatch.setattr(RocksKv, "tables", changing)
    async with staged_by(tmp_path, shard).staged() as values:
        assert not shard.staging
        found = {Path(one.name).name for one in sources(Path(values["path"]), values["log"])}
        assert tables(shard.kv) <= found
        assert len(tables(shard.kv)) == 2
    assert asked == 3
    assert not (tmp_path / "backup-staging").exists()


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
