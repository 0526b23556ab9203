"""The embedded log under loads that are too much for one turn of the loop, and under failures."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kproxy.common.errors import Code, KafkaError, first_of
from kproxy.log.weight import TURN, weight
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.store import files, synced
from kproxy.store.rocks import Checkpoint, RocksKv, RowsFailed, decode_checkpoint
from kproxy.store.segments import LogFailed
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows.queues import CHECKPOINT_KEY
from kproxy.virtual.types import QueueId
from tests.commands import command
from tests.present import present
from tests.shard.test_shard import QUEUES, config, create, put, running
from tests.wire import batch

WIDE = 5000  # partitions


def wide(number: int) -> Envelope:
    values = {"name": f"wide{number}", "partitions": WIDE, "configs": {}}
    return command(Kind.CREATE, QueueId(bytes([9, number] * 8)), values=values)


class Writes:
    """The writes that the rows' store gets in one piece."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self.checkpoints: list[Checkpoint] = []
        write = RocksKv.write

        def noted(kv: RocksKv, changes: dict[bytes, bytes | None]) -> None:
            self.most = max(self.most, len(changes))
            data = changes.get(CHECKPOINT_KEY)
            if data is not None:
                self.checkpoints.append(decode_checkpoint(data))
            write(kv, changes)

        patch.setattr(RocksKv, "write", noted)


@pytest.mark.parametrize("sync", ["always", "never"])
async def test_a_ticket_of_many_envelopes_is_applied_in_many_turns(
    tmp_path: Path, sync: str
) -> None:
    async with running(tmp_path, sync=sync, queues=1) as shard:
        delivered: list[int] = []
        real = shard.log._deliver  # type: ignore[attr-defined]

        def deliver(first: int, batch: list[Envelope], *rest: Any) -> Any:
            delivered.append(len(batch))
            return real(first, batch, *rest)

        shard.log._deliver = deliver  # type: ignore[attr-defined]
        turns: list[int] = []

        async def others() -> None:
            while True:
                turns.append(len(delivered))
                await anyio.lowlevel.checkpoint()

        body = batch(b"v")
        many = [Envelope(Kind.APPEND, QUEUES[0], 0, body=body)] * 10_500
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            outcomes = await shard.append(many).wait()
            tasks.cancel_scope.cancel()
        assert [outcome.number for outcome in outcomes] == list(range(10_500))
        assert max(delivered) <= TURN
        assert set(range(1, len(delivered))) <= set(turns), "two in one turn of the loop"


async def test_changes_of_one_delivery_are_written_in_pieces(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        writes = Writes(patch)
        async with running(tmp_path, rows_cached_max=1000) as shard:
            places = shard.segments.append(0, [wide(i) for i in range(6)], 1 << 30)
            end = (shard.segments.active, shard.segments.end)
            shard.log._deliver(0, [wide(i) for i in range(6)], places, end)  # type: ignore[attr-defined]
            frames = {n + 1: after for n, _, _, after in shard.segments.replay(0, 0)}
        assert writes.most < 2 * WIDE
        assert len(writes.checkpoints) > 5
        for checkpoint in writes.checkpoints[1:]:
            assert checkpoint.position == frames[checkpoint.next_offset]
        writes.most = 0
        shutil.rmtree(tmp_path / "rows")
        again = open_local(tmp_path, config(rows_cached_max=1000))
        assert writes.most < 2 * WIDE
        assert all(again.state.partition((wide(i).queue_id, WIDE - 1)) for i in range(6))
        again.close()


async def test_a_recovery_puts_rows_on_disk_when_they_are_many(tmp_path: Path) -> None:
    async with running(tmp_path) as shard:
        for number in range(10):
            await shard.append([wide(number)]).wait()
    shutil.rmtree(tmp_path / "rows")
    again = open_local(tmp_path, config(rows_flush_bytes=1 << 20))
    assert again.durable_through.next_offset > 0
    again.close()


async def test_a_long_line_behind_a_refused_write_is_refused_in_turns(tmp_path: Path) -> None:
    """FAULT: all of it was in one: 30,000 held the loop for 700 ms."""
    async with running(tmp_path, sync="never", queues=1) as shard:
        turns, refused = 0, Counter[int]()

        def write(fd: int, buffers: list[bytes], position: int) -> int:
            raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "write_all", write)
            body, tickets = batch(b"v"), []
            for _ in range(9000):
                one = Envelope(Kind.APPEND, QUEUES[0], 0, body=body)
                tickets.append(shard.append([one]))
                tickets[-1].add_done_callback(lambda: refused.update([turns]))
            while not tickets[-1].done:
                await anyio.lowlevel.checkpoint()
                turns += 1
                if refused:
                    patch.undo()  # there is room again: what stood behind is refused all the same
        assert refused.total() == 9000
        assert max(refused.values()) <= 2000
        assert shard.refused_some
        assert (await shard.append([one]).wait())[0].code == Code.NONE


async def test_tickets_behind_a_refused_write_are_refused_too(tmp_path: Path) -> None:
    """FAULT: it was taken, and so came before what its client sent again."""

    async def test() -> None:
        async with running(tmp_path, sync="never", queues=1) as shard:
            real, calls = files.write_all, 0

            def write(fd: int, buffers: list[bytes], position: int) -> int:
                nonlocal calls
                calls += 1
                if calls == 2:
                    raise OSError(28, "No space left on device")
                return real(fd, buffers, position)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(files, "write_all", write)
                body = batch(b"v")
                one = Envelope(Kind.APPEND, QUEUES[0], 0, body=body)
                outcomes = await shard.append([one] * 5000).wait()
            codes = [outcome.code for outcome in outcomes]
            assert codes == [0] * 2000 + [Code.KAFKA_STORAGE_ERROR] * 3000
            assert present(shard.state.partition((QUEUES[0], 0))).next_offset == 2000

    await test()


def test_envelopes_weigh_what_they_change() -> None:
    assert weight(Envelope(Kind.APPEND, QUEUES[0], body=batch(b"v" * 1000))) == 1
    assert weight(wide(0)) > WIDE // 4
    assert weight(command(Kind.GROW, QUEUES[0], number=8000)) > 2000
    assert weight(command(Kind.DELETE, QUEUES[0])) == TURN
    assert weight(command(Kind.CONFIGURE, QUEUES[0], values={})) == TURN
    gone = {"name": "q", "partitions": 0}
    assert weight(command(Kind.ASSIGN_PARTITIONS, QUEUES[0], values=gone)) == TURN
    offsets = {"group": "g", "offsets": [[QUEUES[0].hex(), 0, 5, -1, ""]] * 1000}
    assert weight(command(Kind.COMMIT, values=offsets)) > 500
    assert all(weight(Envelope(kind)) >= 1 for kind in Kind)


# -- failures


class Disk:
    """An fsync that fails from some moment on, as after an I/O error."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.broken = False
        real = files.sync_data

        def sync(fd: int) -> None:
            if self.broken:
                raise OSError(5, "Input/output error")
            real(fd)

        patch.setattr(files, "sync_data", sync)


async def live(shard: Shard, work: Any) -> BaseException | None:
    """Run a shard's log and some work, as `embedded` does; what ended it."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shard.log.run)
            await work()
            shard.log.close()
    except BaseExceptionGroup as group:
        return first_of(group)
    finally:
        shard.close()
    return None


async def test_after_a_failed_fsync_rows_do_not_run_ahead_of_the_log(tmp_path: Path) -> None:
    shard = open_local(tmp_path / "a", config(sync="interval:5"))
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)

        async def work() -> None:
            await create(shard, QUEUES[0])
            await put(shard, QUEUES[0], b"on disk")
            await Housekeeper(shard, config()).flush()
            disk.broken = True
            for i in range(20):
                await put(shard, QUEUES[0], b"%d" % i)
            await anyio.sleep(5)

        assert isinstance(await live(shard, work), LogFailed)
        disk.broken = False
    mark = present(synced.read(tmp_path / "a" / "log"))
    assert mark.through == 2
    # The power is cut: what was never forced is gone. Rows that were ahead would refuse this.
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with (tmp_path / "b" / "log" / f"{0:020d}.log").open("r+b") as file:
        file.truncate(mark.position)
    again = open_local(tmp_path / "b", config())
    assert present(again.state.partition((QUEUES[0], 0))).next_offset == 1
    again.close()


async def test_nothing_is_acknowledged_after_a_failed_fsync(tmp_path: Path) -> None:
    shard = open_local(tmp_path, config(sync="interval:5"))
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)

        async def work() -> None:
            await create(shard, QUEUES[0])
            disk.broken = True
            await put(shard, QUEUES[0], b"last")
            await anyio.sleep(5)

        assert isinstance(await live(shard, work), LogFailed)
        disk.broken = False  # the system says that all is well: it forgot
        with pytest.raises(KafkaError):
            shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"x"))]).outcomes()
        with pytest.raises(LogFailed):
            shard.segments.sync()


@pytest.mark.parametrize("sync", ["never", "always"])
async def test_nothing_is_acknowledged_once_rows_were_not_written(
    tmp_path: Path, sync: str
) -> None:
    shard = open_local(tmp_path, config(sync=sync))
    real = shard.kv.write
    late: list[Any] = []

    def refuse(changes: dict[bytes, bytes | None]) -> None:
        shard.kv.write = real  # type: ignore[method-assign]
        raise RowsFailed("no room")

    async def work() -> None:
        await create(shard, QUEUES[0])
        await put(shard, QUEUES[0], b"0")
        shard.kv.write = refuse  # type: ignore[method-assign]
        body = batch(b"lost?")
        late.append(shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=body)]))
        await anyio.lowlevel.checkpoint()
        late.append(shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=body)]))
        await anyio.sleep(5)

    assert isinstance(await live(shard, work), RowsFailed)
    assert not any(ticket.done and ticket.error is None for ticket in late)
    with pytest.raises(RowsFailed, match="failed before"):
        shard.commit({b"c": b""})
    again = open_local(tmp_path, config())
    row = present(again.state.partition((QUEUES[0], 0)))
    found = [last for last, _ in again.state.batches((QUEUES[0], 0), 0, row.next_offset)]
    assert found == list(range(row.next_offset))
    again.close()


async def test_a_shard_that_applied_half_an_envelope_flushes_nothing_of_it(tmp_path: Path) -> None:
    shard = open_local(tmp_path, config())
    real = shard.fold.apply

    def apply(log_offset: int, envelope: Envelope, place: Any) -> Any:
        real(log_offset, envelope, place)
        raise ValueError("a fault of ours")

    async def work() -> None:
        await create(shard, QUEUES[0])
        shard.fold.apply = apply  # type: ignore[method-assign]
        shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"v"))])
        await anyio.sleep(5)

    assert isinstance(await live(shard, work), ValueError)
    kv = RocksKv(tmp_path / "rows", 1 << 20)
    data = kv.get(CHECKPOINT_KEY)
    assert data is None or decode_checkpoint(data).next_offset <= 1
    kv.close()
