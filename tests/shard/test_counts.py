"""Counts of a shard: with the rows on disk, and counted anew where an older kproxy was there."""

from pathlib import Path

import anyio
import structlog.testing

from kproxy.config.server import Config
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue
from kproxy.virtual.counts import COUNTS_KEY, Counts, counted, restored
from kproxy.virtual.types import QueueId


def queue_id(number: int) -> QueueId:
    return QueueId(number.to_bytes(16, "big"))


async def live(directory: Path, first: int) -> tuple[int, ...]:
    """Make three queues and delete one, and close; the counts then."""
    shard = open_local(directory, Config())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shard.log.run)
        numbers = range(first, first + 3)
        made = [CreateQueue(queue_id(n), f"q{n}", 4, {}).envelope() for n in numbers]
        await shard.append(made).wait()
        await shard.append([DeleteQueue(queue_id(first)).envelope()]).wait()
        await Housekeeper(shard, Config()).flush()
        shard.log.close()
    assert shard.state.counts.values() == counted(shard.kv).values()
    shard.close()
    return shard.state.counts.values()


def opened(directory: Path) -> tuple[Shard, bool]:
    """Return the shard, and whether its rows were walked over."""
    with structlog.testing.capture_logs() as logs:
        shard = open_local(directory, Config())
    return shard, any(entry["event"] == "rows_counted" for entry in logs)


async def test_counts_are_kept_with_the_rows(tmp_path: Path) -> None:
    assert await live(tmp_path, 1) == (2, 8, 0, 0, 0, 0, 0, 0, 0)
    assert await live(tmp_path, 11) == (4, 16, 0, 0, 0, 0, 0, 0, 0)
    shard, walked = opened(tmp_path)
    assert (shard.state.counts.queues, walked) == (4, False)
    shard.close()


async def test_data_of_an_older_kproxy_is_counted_once(tmp_path: Path) -> None:
    wanted = await live(tmp_path, 1)
    shard, _ = opened(tmp_path)
    shard.close()
    shard.kv = type(shard.kv)(tmp_path / "rows", 1 << 20)
    stale = Counts()
    stale.queues = 77
    for row in (None, stale.encode(shard.applied_through.next_offset - 1), b"odd"):
        shard.kv.last_write({COUNTS_KEY: row})
        shard.kv.close()
        shard, walked = opened(tmp_path)
        assert (shard.state.counts.values(), walked) == (wanted, True)
        shard.close()
        shard, walked = opened(tmp_path)
        assert (shard.state.counts.values(), walked) == (wanted, False)
        shard.close()
        shard.kv = type(shard.kv)(tmp_path / "rows", 1 << 20)
    shard.kv.close()


def test_a_row_of_another_log_offset_says_nothing() -> None:
    class Rows(dict[bytes, bytes]):
        def scan(self, start: bytes, end: bytes) -> None:  # type: ignore[override]
            raise AssertionError

    counts = Counts()
    counts.queues, counts.bytes, counts.waiting, counts.groups["share"] = 3, 1 << 40, 7, 5
    kv = Rows({COUNTS_KEY: counts.encode(17)})
    assert restored(kv, 18) is None  # type: ignore[arg-type]
    found = restored(kv, 17)  # type: ignore[arg-type]
    assert found is not None
    assert found.values() == counts.values()
