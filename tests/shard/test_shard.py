"""A shard on disk: group commit, recovery, checkpoints, sweeping, copying forward."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.store import files
from kproxy.store.rocks import Checkpoint, RowsFailed
from kproxy.store.segments import DamagedLog
from kproxy.virtual.commands.envelope import COPY_BYTES, Envelope, Kind
from kproxy.virtual.commands.traits import TRAITS
from kproxy.virtual.levels import OLDEST
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows.groups import group_due_key, group_key
from kproxy.virtual.types import QueueId
from tests.commands import command
from tests.harness import patient
from tests.present import present
from tests.wire import batch

QUEUES = [QueueId(bytes([i]) * 16) for i in range(1, 6)]


def config(**settings: Any) -> Config:
    return Config(**{"disk_free_bytes_min": 1, "keeper_period_ms": 1, **settings})


@asynccontextmanager
async def running(directory: Path, *, queues: int = 0, **settings: Any) -> AsyncIterator[Shard]:
    """Yield a shard with so many queues, made anew."""
    shard = open_local(directory, config(**settings))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shard.log.run)
        for queue in QUEUES[:queues]:
            await create(shard, queue)
        yield shard
        shard.log.close()
    shard.close()


async def create(shard: Shard, queue: QueueId, partitions: int = 1) -> None:
    values = {"name": f"q{queue[0]}", "partitions": partitions, "configs": {}}
    outcome = (await shard.append([command(Kind.CREATE, queue, values=values)]).wait())[0]
    assert outcome.code == Code.NONE


async def put(shard: Shard, queue: QueueId, *values: bytes) -> int:
    envelope = Envelope(Kind.APPEND, queue, 0, body=batch(*values))
    outcome = (await shard.append([envelope]).wait())[0]
    assert outcome.code == Code.NONE
    return outcome.number


def read(shard: Shard, queue: QueueId) -> dict[int, bytes]:
    """Return every batch by its base offset, as it lies on disk."""
    row = present(shard.state.partition((queue, 0)))
    found = {}
    for last, entry in shard.state.batches((queue, 0), row.log_start, row.next_offset):
        data = bytearray(entry.length)
        shard.segments.read_into(memoryview(data), entry.segment, entry.position, wait=True)
        found[last - entry.last_delta] = bytes(data)
    return found


async def test_many_appends_share_a_commit_and_keep_their_order(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1) as shard:
        syncs = 0
        real = os.fdatasync

        def counted(fd: int) -> None:
            nonlocal syncs
            syncs += 1
            real(fd)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files.os, "fdatasync", counted)
            envelopes = [
                Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"%d" % i)) for i in range(500)
            ]
            tickets = [shard.append([envelope]) for envelope in envelopes]
            outcomes = [(await ticket.wait())[0] for ticket in tickets]
        assert [outcome.number for outcome in outcomes] == list(range(500))
        assert syncs < 10


async def test_a_long_line_is_committed_in_parts_between_which_others_run(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1) as shard:
        body = batch(b"v")
        tickets = [
            shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=body)] * 1000) for _ in range(10)
        ]
        await tickets[1].wait()
        assert not tickets[-1].done
        outcomes = await tickets[-1].wait()
        assert outcomes[-1].number == 9999


@pytest.mark.parametrize("flush", [False, True])
async def test_everything_is_there_after_reopening_without_a_close(
    tmp_path: Path, flush: bool
) -> None:
    shard = open_local(tmp_path, config(segment_bytes=1000))
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shard.log.run)
            await create(shard, QUEUES[0])
            for i in range(30):
                await put(shard, QUEUES[0], b"%d" % i)
            if flush:
                await Housekeeper(shard, config()).flush()
            for i in range(30, 40):
                await put(shard, QUEUES[0], b"%d" % i)
            expected = read(shard, QUEUES[0])
            scope.cancel()
    # RocksDB flushes at a close: what a kill leaves is a copy of the files as they are now.
    shutil.copytree(tmp_path, tmp_path / "survived")
    shard.kv.close()
    shard.segments.close()
    again = open_local(tmp_path / "survived", config())
    assert len(again.segments.ids) > 2
    assert read(again, QUEUES[0]) == expected
    assert len(expected) == 40
    again.close()


async def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1):
        pass
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    with pytest.raises(DamagedLog, match="missing"):
        open_local(tmp_path, config())


async def test_lost_rows_are_folded_again_from_a_whole_log(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=2000, queues=1) as shard:
        for i in range(50):
            await put(shard, QUEUES[0], b"%d" % i)
        before = read(shard, QUEUES[0])
    shutil.rmtree(tmp_path / "rows")
    again = open_local(tmp_path, config())
    assert read(again, QUEUES[0]) == before
    again.close()


async def test_lost_rows_are_refused_where_the_log_was_trimmed(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=1_000_000, queues=1) as shard:
        for _ in range(20):
            await put(shard, QUEUES[0], b"x" * 200_000)
        await shard.append([command(Kind.TRIM, QUEUES[0], number=20)]).wait()
        await keep(shard, lambda: 0 not in shard.segments.ids)
    shutil.rmtree(tmp_path / "rows")
    with pytest.raises(DamagedLog, match="from its start"):
        open_local(tmp_path, config())


async def test_damaged_rows_are_refused_with_a_line(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1):
        pass
    (tmp_path / "rows" / "CURRENT").write_text("nonsense")
    with pytest.raises(RowsFailed, match="do not open"):
        open_local(tmp_path, config())


async def test_a_log_that_ends_before_its_rows_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1) as shard:
        path = shard.segments.path(0)
    os.truncate(path, 10)
    with pytest.raises(DamagedLog, match="ends before"):
        open_local(tmp_path, config())


async def test_a_failed_commit_is_answered_and_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1) as shard:
        with pytest.MonkeyPatch.context() as patch:

            def fail(fd: int) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(files.os, "fdatasync", fail)
            ticket = shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"lost"))])
            with pytest.raises(KafkaError) as refused:
                await ticket.wait()
        assert refused.value.code == Code.KAFKA_STORAGE_ERROR
        assert await put(shard, QUEUES[0], b"next") == 0


async def test_a_segment_that_cannot_be_begun_leaves_the_active_one_going(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1) as shard:

        def fail(segment: int) -> None:
            raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shard.segments, "start", fail)
            await shard.log.roll()
        assert shard.segments.ids == [0]
        assert await put(shard, QUEUES[0], b"on") == 0


async def keep(shard: Shard, until: Callable[[], bool], **settings: Any) -> None:
    """Run the keeper until something holds."""
    with anyio.fail_after(patient(10)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Housekeeper(shard, config(**settings)).run)
            while not until():
                await anyio.sleep(0.002)
            tasks.cancel_scope.cancel()


async def test_a_deleted_queue_gives_the_disk_back_and_leaves_no_row(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=2_000_000, queues=1) as shard:
        for pid in range(9):
            body = batch(b"v", producer_id=pid, epoch=0, sequence=0)
            await shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=body)]).wait()
        assert next(shard.kv.scan(b"k", b"l"), None)
        for _ in range(40):
            await put(shard, QUEUES[0], b"x" * 200_000)
        offsets = {"group": "g", "offsets": [[QUEUES[0].hex(), 0, 5, -1, "m", False]]}
        await shard.append([command(Kind.COMMIT, values=offsets)]).wait()
        assert len(shard.segments.ids) >= 4
        await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
        await keep(shard, lambda: sum(map(shard.segments.size, shard.segments.ids)) < 1000)
        left = [key for key, _ in shard.kv.scan(b"", b"\xff" * 40) if key[:1] not in b"mscF"]
        assert left == [group_due_key(0, "g"), group_key("g")]  # the group itself expires
    again = open_local(tmp_path, config())
    assert again.state.queue("q1") is None
    again.close()


async def test_a_trim_gives_the_disk_back_and_keeps_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=1_000_000, queues=1) as shard:
        for _ in range(20):
            await put(shard, QUEUES[0], b"x" * 200_000)
        before = read(shard, QUEUES[0])
        await shard.append([command(Kind.TRIM, QUEUES[0], number=17)]).wait()
        await keep(shard, lambda: 0 not in shard.segments.ids)
        assert read(shard, QUEUES[0]) == {k: v for k, v in before.items() if k >= 17}


async def test_a_small_long_lived_queue_does_not_pin_its_siblings(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=2_000_000, queues=2) as shard:
        for i in range(30):
            await put(shard, QUEUES[0], b"x" * 300_000)
            await put(shard, QUEUES[1], b"small-%d" % i, b"pair")
        kept = read(shard, QUEUES[1])
        await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
        await keep(shard, lambda: sum(map(shard.segments.size, shard.segments.ids)) < 1_000_000)
        assert read(shard, QUEUES[1]) == kept
        assert await put(shard, QUEUES[1], b"after") == 60
    again = open_local(tmp_path, config())
    found = read(again, QUEUES[1])
    assert {k: v for k, v in found.items() if k < 60} == kept
    again.close()


async def test_rows_of_recovery_are_not_on_disk_yet(tmp_path: Path) -> None:
    """Found by simulation seed 87: the log before it was deleted, and the next crash was fatal."""

    async with running(tmp_path, segment_bytes=2_000_000, queues=1) as shard:
        for _ in range(20):
            await put(shard, QUEUES[0], b"x" * 300_000)
        await shard.append([command(Kind.TRIM, QUEUES[0], number=20)]).wait()
        shutil.copytree(tmp_path, tmp_path / "first")
    async with running(tmp_path / "first", segment_bytes=2_000_000) as shard:
        assert shard.durable_through == Checkpoint()
        shard.disk_space.fits = lambda wanted: False  # type: ignore[method-assign]
        await Housekeeper(shard, config()).round()
        shutil.copytree(tmp_path / "first", tmp_path / "second")
    again = open_local(tmp_path / "second", config())
    assert present(again.state.partition((QUEUES[0], 0))).next_offset == 20
    again.close()


async def test_a_log_of_small_live_batches_is_left_alone(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1) as shard:
        small = Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"v"))
        for _ in range(30):
            await shard.append([small] * 1000).wait()
        await shard.append([command(Kind.TRIM, QUEUES[0], number=20_000)]).wait()
        keeper = Housekeeper(shard, config())
        await keeper.round()
        live = shard.state.live_bytes(shard.segments.active)
        assert live == shard.segments.end == 10_000 * (len(small.body) + COPY_BYTES)
        end = shard.log.next_offset
        for _ in range(3):
            await shard.log.roll()
            await keeper.round()
        assert shard.log.next_offset == end


async def test_live_bytes_are_counted_exactly(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=500_000) as shard:
        for queue in QUEUES[:3]:
            await create(shard, queue)
        for i in range(60):
            await put(shard, QUEUES[i % 3], b"x" * 30_000)
        await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
        await shard.append([command(Kind.TRIM, QUEUES[1], number=7)]).wait()
        await keep(shard, lambda: not list(shard.kv.scan(b"x", b"y")))
        counted: dict[int, int] = {}
        for _, value in shard.kv.scan(b"b", b"c"):
            entry = batch_rows.decode_batch(value)
            framed = entry.length + COPY_BYTES
            counted[entry.segment] = counted.get(entry.segment, 0) + framed
        for segment in shard.segments.ids:
            assert shard.state.live_bytes(segment) == counted.get(segment, 0)


async def test_nothing_above_the_level_in_force_is_appended(tmp_path: Path) -> None:
    async with running(tmp_path) as shard:
        for kind, traits in TRAITS.items():
            shard.level.value = max(OLDEST, traits.level - 1)
            if traits.level > OLDEST:
                with pytest.raises(KafkaError) as refused:
                    await shard.append([Envelope(kind)]).wait()
                assert refused.value.code == Code.UNSUPPORTED_VERSION
        assert shard.log.next_offset == 0
        assert shard.refused_some
