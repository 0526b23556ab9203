"""Offsets of a queue that is gone: forgotten by the log's commands, and by nothing else."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.loop import pace
from kproxy.shard.housekeeper import Housekeeper, sweep_commits
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import DeleteOffsets
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from tests.commands import command
from tests.shard.test_shard import QUEUES, config, create, put, running
from tests.wire import batch

GROUPS = 1200


async def commit(shard: Shard, group: str, *partitions: int) -> None:
    offsets = [[QUEUES[0].hex(), index, 5, -1, "m", False] for index in partitions]
    values = {"group": group, "offsets": offsets}
    await shard.append([command(Kind.COMMIT, values=values)]).wait()


def left(shard: Shard) -> list[bytes]:
    return [key for key, _ in shard.kv.scan(b"", b"\xff") if key[:1] in (b"o", b"r", b"x")]


@pytest.mark.parametrize("shards", [0, 4])
async def test_ten_thousand_segments_are_looked_at_in_slices(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the last few are dead: they are found, and deleted, some in each turn."""
    monkeypatch.setattr(pace, "SLICE_S", 0)  # after each segment others may have their turn

    async with running(tmp_path, sync="never") as shard:
        segments, count = shard.segments, 10_000
        for number in range(count):
            segment = segments.ids[-1] + 1
            segments.path(segment).write_bytes(b"x" * (number % 7))
            segments.ids.append(segment)
        kept = segments.ids[-5:]
        shard.commit({rows.segment_key(segment): b"\0" * 7 + b"\1" for segment in kept})
        keeper = Housekeeper(shard, config(), shards=shards)
        turns = Turns()
        sealed = set(segments.ids) - {segments.active}
        dead = await turns.during(keeper._dead())
        assert set(dead) == sealed - set(kept)
        assert len(await turns.during(keeper._to_copy())) == 0
        shard.durable_through = shard.durable_through._replace(segment=kept[-1] + 1)
        await turns.during(keeper._reclaim(dead))
        assert set(segments.ids) == {segments.active, *kept}


class Turns:
    """Pieces of work of which each takes several turns of the loop."""

    async def during(self, work: Any) -> Any:
        task, turns = asyncio.get_running_loop().create_task(work), 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 9000
        return task.result()


class Appended:
    """The envelopes that go to a shard's log."""

    def __init__(self, shard: Shard) -> None:
        self.slices: list[list[Envelope]] = []
        append = shard.append

        def noted(envelopes: Any) -> Any:
            self.slices.append(list(envelopes))
            return append(envelopes)

        shard.append = noted  # type: ignore[method-assign]


async def test_offsets_of_a_deleted_queue_are_forgotten_through_the_log(tmp_path: Path) -> None:
    async with running(tmp_path, sync="never") as shard:
        await create(shard, QUEUES[0], 3)
        for number in range(GROUPS):
            await commit(shard, f"g{number}", 0, 2)
        await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
        appended = Appended(shard)
        await Housekeeper(shard, config())._sweep()
        assert left(shard) == []
        for slice_ in appended.slices:
            assert {envelope.kind for envelope in slice_} == {Kind.DELETE_OFFSETS}
            assert sum(len(DeleteOffsets.decode(one).partitions) for one in slice_) <= 500
    # The rows are what the log says, and nothing else.
    shutil.copytree(tmp_path / "log", tmp_path / "again" / "log")
    again = open_local(tmp_path / "again", config())
    assert [key for key in left(again) if key[:1] != b"x"] == []
    again.close()


async def test_the_note_stays_until_all_are_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path, sync="never", queues=1) as shard:
        await commit(shard, "g", 0)
        await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
        keeper = Housekeeper(shard, config())
        append = shard.append

        def refuse(envelopes: Any) -> Any:
            raise KafkaError(Code.KAFKA_STORAGE_ERROR, "no")

        shard.append = refuse  # type: ignore[method-assign]
        assert not await keeper._sweep()
        assert len(left(shard)) == 3
        shard.append = append  # type: ignore[method-assign]
        shard.serving = False
        assert not await keeper._sweep()
        assert len(left(shard)) == 3
        shard.serving = True
        assert await keeper._sweep()
        assert left(shard) == []


@pytest.mark.parametrize("serving", [True, False])
async def test_only_who_serves_a_shard_sweeps_its_offsets(tmp_path: Path, serving: bool) -> None:
    async with running(tmp_path, sync="never", queues=1) as shard:
        await commit(shard, "g", 0)
        shard.serving = serving
        await sweep_commits(shard, QUEUES[0])
        key = offset_rows.offset_key("g", QUEUES[0], 0)
        assert (shard.kv.get(key) is None) == serving


async def test_one_round_sweeps_all_that_was_deleted(tmp_path: Path) -> None:
    """FAULT: 500 notes a second, so the disk filled where more was deleted."""

    async with running(tmp_path) as shard:
        await create(shard, QUEUES[0], 2000)
        for index in range(2000):
            shard.append([Envelope(Kind.APPEND, QUEUES[0], index, body=batch(b"v"))])
        trims = [command(Kind.TRIM, QUEUES[0], index, number=1) for index in range(2000)]
        await shard.append(trims).wait()
        await Housekeeper(shard, config()).round()
        assert not list(shard.kv.scan(b"y", b"z"))
        assert not list(shard.kv.scan(b"b", b"c"))


async def test_a_partition_trimmed_again_is_swept_from_where_it_was(tmp_path: Path) -> None:
    """FAULT: each sweep began at offset 0 and stepped over all that was ever deleted."""

    async with running(tmp_path, queues=1) as shard:
        for _ in range(30):
            await shard.append([Envelope(Kind.APPEND, QUEUES[0], body=batch(b"v"))]).wait()
        keeper, kv = Housekeeper(shard, config()), shard.kv
        begun, scan = [], kv.scan

        def noted(start: bytes, end: bytes) -> Any:
            begun.append(start)
            return scan(start, end)

        kv.scan = noted  # type: ignore[method-assign]
        for number in (10, 20, 20, 30):
            await shard.append([command(Kind.TRIM, QUEUES[0], number=number)]).wait()
            begun.clear()
            await keeper.round()
            swept = [key for key in begun if key[:1] == b"b"]
            assert all(batch_rows.batch_key_offset(key[:29]) >= number - 10 for key in swept)
        assert not list(scan(b"b", b"c"))


async def test_an_idle_round_looks_for_no_notes(tmp_path: Path) -> None:
    """FAULT: each began with the first there ever was, and stepped over all that were deleted."""

    async with running(tmp_path, sync="never", queues=1) as shard:
        await put(shard, QUEUES[0], b"v")
        keeper, kv = Housekeeper(shard, config()), shard.kv
        begun, scan = [], kv.scan

        def noted(start: bytes, end: bytes) -> Any:
            begun.append(start)
            return scan(start, end)

        await keeper.round()
        kv.scan = noted  # type: ignore[method-assign]
        await keeper.round()
        assert begun == []
        await shard.append([command(Kind.TRIM, QUEUES[0], number=1)]).wait()
        (note,) = [key for key, _ in scan(b"y", b"z")]
        await keeper.round()
        assert begun[0] == note
        assert not list(scan(b"y", b"z"))
        await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
        await keeper.round()
        assert not list(scan(b"x", b"z"))
        begun.clear()
        await keeper.round()
        assert begun == []


async def test_a_trim_that_comes_while_an_earlier_one_is_swept_is_swept_too(tmp_path: Path) -> None:
    """FAULT: its batches counted as alive for ever, and their segments stayed."""

    async with running(tmp_path, sync="never", queues=1) as shard:
        appended = [Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"v"))] * 1500
        await shard.append(appended).wait()
        await shard.append([command(Kind.TRIM, QUEUES[0], number=700)]).wait()
        keeper, swept = Housekeeper(shard, config()), Housekeeper._sweep_batches

        async def trimmed_meanwhile(self: Housekeeper, *where: bytes) -> None:
            await swept(self, *where)
            await shard.append([command(Kind.TRIM, QUEUES[0], number=1500)]).wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Housekeeper, "_sweep_batches", trimmed_meanwhile)
            await keeper._sweep_notes(
                RowKind.SWEEP_PARTITION, keeper._notes(RowKind.SWEEP_PARTITION)
            )
        await keeper.round()
        assert not list(shard.kv.scan(b"b", b"c"))
        assert not any(shard.state.live_bytes(segment) for segment in shard.segments.ids)
