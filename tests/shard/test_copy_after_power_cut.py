"""A worker's copy of a log after a power cut, which leaves any part of what was not synced."""

import os
from pathlib import Path
from typing import Any

import pytest

from kproxy.log.base import Deliver
from kproxy.log.disk_space import DiskSpace
from kproxy.log.shared import SharedLog
from kproxy.shard.shard import Shard
from kproxy.store import files
from kproxy.store.segments import DamagedLog, Segments
from kproxy.store.synced import NAME
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.types import ShardId
from tests.commands import command
from tests.fakes import DictKv
from tests.log.test_shared import Link
from tests.shard.test_shard import QUEUES, config
from tests.wire import batch

SEGMENT_BYTES = 1000


def opened(directory: Path, rows: dict[bytes, bytes]) -> Shard:
    """Return a copy over these rows, recovered."""
    segments = Segments(directory / "log", marked=True)
    disk_space = DiskSpace(directory, 1)
    kv: Any = DictKv(rows)

    def log(deliver: Deliver) -> SharedLog:
        return SharedLog(
            0, segments, deliver, Link(), segment_bytes=SEGMENT_BYTES, disk_space=disk_space
        )

    shard = Shard(
        shard=ShardId(0), shards=1, kv=kv, segments=segments, disk_space=disk_space,
        config=config(), log=log, shared=True,
    )  # fmt: skip
    try:
        shard.recover()
    except BaseException:
        segments.close()
        raise
    return shard


async def take(shard: Shard, count: int) -> None:
    """Apply so many batches of others, after a queue at the log's start."""
    log = shard.log
    assert isinstance(log, SharedLog)
    some = [Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"v" * 100)) for _ in range(count)]
    if not log.next_offset:
        values = {"name": "q", "partitions": 1, "configs": {}}
        some.insert(0, command(Kind.CREATE, QUEUES[0], values=values))
    for one in some:
        await log.was_read([(log.next_offset, one)])
        while log._ready:  # a new segment is begun on a thread
            await log._apply(log._take())


async def flushed(shard: Shard, unsynced: int) -> dict[bytes, bytes]:
    """Return rows as a flush keeps them, with so many batches that come while it begins."""
    await shard.log.sync()
    await take(shard, unsynced)
    kept: Any = shard.kv
    return dict(kept.rows)


async def test_rows_without_what_they_are_made_from_are_no_copy(tmp_path: Path) -> None:
    """FAULT: a segment that was as long as before, without its last pages, was taken for whole."""
    shard = opened(tmp_path, {})
    await take(shard, 1)
    synced = shard.segments.end
    rows = await flushed(shard, 1)
    segment = shard.segments.path(shard.segments.active)
    shard.segments.close()
    mark = tmp_path / "log" / NAME
    whole, mark_there = segment.read_bytes(), mark.read_bytes()
    opened(tmp_path, rows).segments.close()
    for lost in range(synced, len(whole), 64):
        segment.write_bytes(whole[:lost] + bytes(len(whole) - lost))
        mark.write_bytes(mark_there)
        with pytest.raises(DamagedLog, match="has lost what was not on disk"):
            opened(tmp_path, rows)
        mark.unlink()  # an older kproxy had none
        with pytest.raises(DamagedLog, match="has lost what was not on disk"):
            opened(tmp_path, rows)


async def test_full_segments_behind_the_mark_are_looked_at_too(tmp_path: Path) -> None:
    shard = opened(tmp_path, {})
    await take(shard, 1)
    rows = await flushed(shard, 30)
    first, *_, last = (shard.segments.path(one) for one in shard.segments.ids)
    shard.segments.close()
    mark = tmp_path / "log" / NAME
    mark_there = mark.read_bytes()
    for segment in (first, last):
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-100] + bytes(100))
        with pytest.raises(DamagedLog):
            opened(tmp_path, rows)
        segment.write_bytes(whole)
    assert mark.read_bytes() == mark_there
    opened(tmp_path, rows).segments.close()


async def test_a_copy_whose_removal_was_broken_off_is_no_copy(tmp_path: Path) -> None:
    """FAULT: what was left was taken for whole, and the cluster's log trimmed to where it began."""
    shard = opened(tmp_path, {})
    await take(shard, 30)
    rows = await flushed(shard, 0)
    shard.segments.close()
    first, second, *_ = (shard.segments.path(one) for one in shard.segments.ids)
    for lost in first, second:
        whole = lost.read_bytes()
        lost.unlink()
        with pytest.raises(DamagedLog):
            opened(tmp_path, rows)
        lost.write_bytes(whole)
    opened(tmp_path, rows).segments.close()


async def test_full_segments_are_forced_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: who began again after a kill forced the last segment to disk, but not the ones that
    were filled since the last sync."""
    shard = opened(tmp_path, {})
    await take(shard, 1)
    await shard.log.roll()  # FAULT: nobody forced the one before it
    assert shard.segments.unforced == {0}
    await take(shard, 30)
    unforced = {shard.segments.path(one) for one in shard.segments.unforced}
    assert len(unforced) > 2
    kv: Any = shard.kv
    shard.segments.close()
    forced: set[Path] = set()
    for module, name in (os, "fsync"), (files, "sync_data"):
        monkeypatch.setattr(
            module, name, lambda fd: forced.add(Path(os.readlink(f"/proc/self/fd/{fd}")))
        )
    opened(tmp_path, dict(kv.rows)).segments.close()
    assert unforced <= forced
