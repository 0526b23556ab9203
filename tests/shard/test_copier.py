"""Live batches copied out of a mostly dead segment: what it costs, and what it must not miss."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from kproxy.shard import copier
from kproxy.shard.copier import Copier
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.state import State
from tests.commands import command
from tests.present import present
from tests.shard.test_shard import QUEUES, config, create, put, read, running
from tests.wire import batch

MIB = 1 << 20


async def fill(shard: Shard, count: int) -> None:
    """Put a long-lived batch at either end, and small ones of a queue that is trimmed, between."""
    await put(shard, QUEUES[1], b"first")
    small = Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"v"))
    for start in range(0, count, 10_000):
        await shard.append([small] * min(10_000, count - start)).wait()
    await put(shard, QUEUES[1], b"last")


async def turns_of(work: Any) -> tuple[int, float]:
    """Run some work; return (turns of the loop meanwhile, the longest in seconds of CPU)."""
    turns, longest, last = 0, 0.0, time.thread_time()

    async def others() -> None:
        nonlocal turns, longest, last
        while True:
            now = time.thread_time()
            turns, longest, last = turns + 1, max(longest, now - last), now
            await asyncio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        await asyncio.sleep(0)
        await work()
        tasks.cancel_scope.cancel()
    return turns, longest


class Lookups:
    """The number of searches over the rows."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.searches = self.scans = 0
        first_batch, batches = State.first_batch, State.batches

        def counted_search(state: State, *args: Any) -> Any:
            self.searches += 1
            return first_batch(state, *args)

        def counted_scan(state: State, *args: Any) -> Any:
            self.scans += 1
            return batches(state, *args)

        patch.setattr(State, "first_batch", counted_search)
        patch.setattr(State, "batches", counted_scan)


async def test_dead_batches_are_passed_over_without_a_search_and_in_slices(tmp_path: Path) -> None:
    async with running(tmp_path, sync="never", queues=2) as shard:
        await fill(shard, 20_000)
        await shard.append([command(Kind.TRIM, QUEUES[0], number=20_000)]).wait()
        await shard.log.roll()
        await Housekeeper(shard, config())._sweep()
        before = read(shard, QUEUES[1])
        with pytest.MonkeyPatch.context() as patch:
            lookups = Lookups(patch)
            patch.setattr(copier, "_TURN_S", 0.0)
            copying = Copier(shard, 0)
            turns, _ = await turns_of(copying.run)
        assert copying.copied > 0
        assert shard.state.live_bytes(0) == 0
        assert read(shard, QUEUES[1]) == before
        assert lookups.searches == 2  # one a partition
        assert lookups.scans < 100
        assert turns >= 20_000 / copier._LOOK_FRAMES


async def test_live_ones_cost_a_scan_for_many(tmp_path: Path) -> None:
    async with running(tmp_path, sync="never", queues=2) as shard:
        await fill(shard, 5000)
        await shard.log.roll()
        with pytest.MonkeyPatch.context() as patch:
            lookups = Lookups(patch)
            copier = Copier(shard, 0)
            await copier.run()
        assert shard.state.live_bytes(0) == 0
        assert lookups.scans < 5000 / 10


@pytest.mark.parametrize("seed", range(8))
async def test_all_that_is_live_is_copied_whatever_goes_on_meanwhile(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(copier, "_TURN_S", 0.0)
    monkeypatch.setattr(copier, "_LOOK_FRAMES", rng.choice((1, 7)))
    monkeypatch.setattr(copier, "_COPY_ENVELOPES", rng.choice((1, 5, 1000)))
    monkeypatch.setattr(copier, "_CURSORS_MAX", rng.choice((1, 2, 1000)))
    monkeypatch.setattr(copier, "_AHEAD_MAX", rng.choice((1, 4)))

    async with running(tmp_path, sync="never") as shard:
        for queue in QUEUES[:4]:
            await create(shard, queue)
        for i in range(300):
            await put(shard, rng.choice(QUEUES[:4]), b"%d" % i, *[b"more"] * rng.randrange(3))
        await shard.log.roll()
        await Copier(shard, 0).run()  # now most are COPY frames
        for i in range(100):
            await put(shard, rng.choice(QUEUES[:4]), b"late-%d" % i)
        await shard.log.roll()
        await shard.append([command(Kind.TRIM, QUEUES[0], number=20)]).wait()
        gone = False

        async def meanwhile() -> None:
            nonlocal gone
            for i in range(30):
                await asyncio.sleep(0)
                number = rng.randrange(60)
                await shard.append([command(Kind.TRIM, QUEUES[1], number=number)]).wait()
                await put(shard, QUEUES[2], b"new-%d" % i)
            await shard.append([command(Kind.DELETE, QUEUES[3])]).wait()
            gone = True

        kept = {queue: read(shard, queue) for queue in QUEUES[:3]}
        sealed = [s for s in shard.segments.ids if s != shard.segments.active]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(meanwhile)
            for segment in sealed:
                await Copier(shard, segment).run()
        assert gone
        while await Housekeeper(shard, config())._sweep():
            pass
        for queue in QUEUES[:3]:
            found = read(shard, queue)
            start = present(shard.state.partition((queue, 0))).log_start
            assert {k: v for k, v in kept[queue].items() if k >= start}.items() <= found.items()
        assert [shard.state.live_bytes(segment) for segment in sealed] == [0] * len(sealed)


async def test_a_damaged_batch_is_not_copied_and_others_are(tmp_path: Path) -> None:
    async with running(tmp_path, sync="never", queues=1) as shard:
        for i in range(3):
            await put(shard, QUEUES[0], b"value-%d" % i)
        await shard.log.roll()
        path = shard.segments.path(0)
        data = path.read_bytes()
        path.write_bytes(data.replace(b"value-1", b"value-X"))
        await Copier(shard, 0).run()
        entries = list(shard.state.batches((QUEUES[0], 0), 0, 3))
        assert [entry.copied for _, entry in entries] == [True, False, True]


async def test_a_sweep_flushes_before_its_rows_are_many(tmp_path: Path) -> None:
    async with running(tmp_path, sync="never", queues=2) as shard:
        await fill(shard, 60_000)
        await shard.append([command(Kind.DELETE, QUEUES[0])]).wait()
        keeper = Housekeeper(shard, config(rows_flush_bytes=MIB + 1))
        await keeper.flush()
        assert shard.kv.unflushed_bytes() <= MIB
        most = 0
        commit = shard.commit

        def counted(changes: dict[bytes, bytes | None]) -> None:
            nonlocal most
            commit(changes)
            most = max(most, shard.kv.unflushed_bytes())

        shard.commit = counted  # type: ignore[method-assign]
        await keeper._sweep()
        assert not list(shard.kv.scan(b"x", b"y"))
        assert most <= 3 * MIB


@pytest.mark.long
async def test_a_whole_segment_of_one_record_batches(tmp_path: Path) -> None:
    """Run with -s to see the figures."""

    async with running(tmp_path, sync="never", queues=2) as shard:
        await put(shard, QUEUES[1], b"first")
        small = Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"v"))
        while shard.segments.active == 0:
            await shard.append([small] * 10_000).wait()
        end = present(shard.state.partition((QUEUES[0], 0))).next_offset
        await shard.append([command(Kind.TRIM, QUEUES[0], number=end)]).wait()
        await Housekeeper(shard, config())._sweep()
        copier = Copier(shard, 0)
        began = time.perf_counter()
        turns, longest = await turns_of(copier.run)
        took = time.perf_counter() - began
        size = shard.segments.size(0)
        print(f"\n{end} batches, {size} bytes: {took:.2f} s, {turns} turns, "  # noqa: T201
              f"the longest {longest * 1000:.1f} ms")  # fmt: skip
        assert shard.state.live_bytes(0) == 0
        assert longest < 0.25
