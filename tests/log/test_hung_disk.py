"""A disk whose calls hang: the event loop goes on, and so does what needs no disk."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import create_task_group, to_thread

from kproxy.common.counters import Histogram
from kproxy.log.disk_space import DiskSpace
from kproxy.loop.threads import on_disk
from kproxy.observe.health import DISK_STUCK_S, Health
from kproxy.observe.loop_watch import LoopWatch
from kproxy.shard.housekeeper import Housekeeper
from kproxy.store import disk_calls, files, segments
from kproxy.store.segments import Segments
from kproxy.virtual.commands.envelope import Envelope, Kind
from tests.harness import patient, until
from tests.log.test_shared import running as shared
from tests.running.blocking import blocking_calls
from tests.shard.test_shard import QUEUES, config, put, running
from tests.wire import batch


class Hung:
    """Calls that hang, each until it is let go."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self._go = threading.Semaphore(0)
        self.begun = 0

    def __call__(self, *args: Any) -> Any:
        self.begun += 1
        assert self._go.acquire(timeout=120)
        return self._real(*args)

    def let_go(self, calls: int = 1) -> None:
        self._go.release(calls)


@pytest.mark.parametrize("sync", ["always", "interval:20", "never"])
async def test_a_flush_forces_nothing_to_disk_on_the_event_loop(tmp_path: Path, sync: str) -> None:
    """FAULT: what came since the last fsync was forced by the loop, but with `always`."""
    async with running(tmp_path, sync=sync, queues=1) as shard:
        await put(shard, QUEUES[0], b"0")
        with blocking_calls() as found:
            await Housekeeper(shard, config()).flush()
        assert not found
        assert shard.durable_through == shard.applied_through


async def test_nothing_is_applied_between_the_last_fsync_and_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are flushed speak of nothing that the log may lose."""
    hung = Hung(os.fdatasync)
    async with (
        running(tmp_path, sync="never", queues=1) as shard,
        create_task_group() as group,
    ):
        await put(shard, QUEUES[0], b"0")
        monkeypatch.setattr(os, "fdatasync", hung)
        group.start_soon(Housekeeper(shard, config()).flush)
        await until(lambda: hung.begun == 1)
        await put(shard, QUEUES[0], b"1")  # most is forced while commits go on
        hung.let_go()
        await until(lambda: hung.begun == 2)
        applied = shard.applied_through
        late = shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"2"))])
        await anyio.sleep(0.02)
        assert not late.done
        hung.let_go()
        await late.wait()
        await until(lambda: shard.durable_through == applied)
        hung.let_go(1000)


async def test_a_full_local_copy_begins_a_segment_on_a_thread(tmp_path: Path) -> None:
    """FAULT: the loop forced the directory to disk."""
    async with shared(tmp_path) as (log, _):
        with blocking_calls() as found:
            for i in range(5):
                await log.was_read([(i, Envelope(Kind.APPEND, body=bytes(600), writer=2))])
                await until(lambda i=i: log.next_offset == i + 1)  # type: ignore[misc]
    assert len(list(tmp_path.glob("*.log"))) == 3
    assert not found


@pytest.mark.parametrize("kind", ["embedded", "on Kafka"])
async def test_behind_a_slow_write_the_next_is_on_a_thread_until_one_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """FAULT: each write of a disk that was slow held the event loop up."""
    write, on_loop, slow = Segments.write, [], [True, True, False, False]
    loop = threading.get_ident()

    def noted(self: Segments, buffers: Any, total: int, sync: bool) -> None:
        on_loop.append(threading.get_ident() == loop)
        was = segments.SLOW_S
        segments.SLOW_S = -1.0 if slow.pop(0) else 60.0
        try:
            write(self, buffers, total, sync)
        finally:
            segments.SLOW_S = was

    if kind == "embedded":
        async with running(tmp_path, sync="never", queues=1) as shard:
            monkeypatch.setattr(Segments, "write", noted)
            for _ in range(4):
                await put(shard, QUEUES[0], b"x")
    else:
        async with shared(tmp_path) as (log, _):
            monkeypatch.setattr(Segments, "write", noted)
            for i in range(4):
                await log.was_read([(i, Envelope(Kind.APPEND, body=b"x", writer=2))])
                await until(lambda i=i: log.next_offset == i + 1)  # type: ignore[misc]
    assert on_loop == [True, False, False, True]


async def test_hung_calls_take_no_thread_that_others_need() -> None:
    """FAULT: forty of them held up all that runs on a thread."""
    hung = Hung(lambda: None)
    async with create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(on_disk, hung)
        await until(lambda: hung.begun == 50)
        with anyio.fail_after(patient(60)):
            await to_thread.run_sync(lambda: None)
        hung.let_go(50)


def test_a_worker_whose_disk_hangs_does_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: it lived, while nothing that it took was ever answered."""
    health, hung = Health(LoopWatch(Histogram((1.0,)))), Hung(lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", hung)
    calling = threading.Thread(target=files.sync_data, args=(0,))
    calling.start()
    while not hung.begun:
        pass
    assert health.stuck() is None
    began = disk_calls.monotonic()
    monkeypatch.setattr(disk_calls, "monotonic", lambda: began + DISK_STUCK_S + 1)
    assert "the disk has not answered for" in (health.stuck() or "")
    hung.let_go()
    calling.join()
    assert health.stuck() is None


def test_free_space_is_told_without_asking_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: metrics hung with the disk."""
    space = DiskSpace(tmp_path, 1)
    monkeypatch.setattr(os, "statvfs", None)
    assert space.free_bytes_seen > 0
