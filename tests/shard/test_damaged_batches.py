"""A batch whose bytes have changed on the disk: its partition waits, and no wrong byte goes on."""

import re
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kproxy.common.errors import Code
from kproxy.delays.looker import Looker, Means
from kproxy.fetching.context import FetchPartition
from kproxy.fetching.streamed_response import Budget, PartitionRead, StreamedResponse, plan_read
from kproxy.log.sequencer import LogChanged
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.shard import Shard
from kproxy.store.damage import DamagedBatch, is_sound
from kproxy.store.segments import Segments
from kproxy.virtual.commands.queues import CreateQueue
from tests.delays.test_delivery import KEY, NONE, Later, mixed
from tests.fakes import chunks_of, memory_worker
from tests.harness import ROOT
from tests.present import present
from tests.shard.test_shard import QUEUES, config, put, running
from tests.virtual.commands.delay_cases import later
from tests.wire import batch


def test_each_byte_of_a_batch_is_covered_but_those_that_are_overwritten() -> None:
    data = batch(b"one", b"two")
    assert is_sound(bytearray(data))
    for at in range(len(data)):
        for flip in (0x01, 0x80):
            changed = bytearray(data)
            changed[at] ^= flip
            overwritten = at < 8 or 12 <= at < 16  # base offset, leader epoch
            assert is_sound(changed) == overwritten, at
    assert not any(is_sound(bytearray(data[:length])) for length in range(len(data)))
    assert not is_sound(bytearray(len(data)))


def place(shard: Shard, offset: int) -> tuple[int, int, int]:
    found = next(shard.state.stored_batches((QUEUES[0], 0), offset, offset + 1))
    return found[1], found[2], found[3]


def flip(shard: Shard, offset: int, at: int = 30) -> None:
    segment, position, _ = place(shard, offset)
    with shard.segments.path(segment).open("r+b") as file:
        file.seek(position + at)
        (byte,) = file.read(1)
        file.seek(position + at)
        file.write(bytes([byte ^ 1]))


def planned(shard: Shard, offset: int) -> PartitionRead:
    followed = FetchPartition(("q", 0))
    followed.key, followed.shard = (QUEUES[0], 0), shard
    followed.offset, followed.max_bytes = offset, 1 << 20
    return plan_read(followed, Budget(1 << 20))


async def test_a_fetch_sends_no_damaged_batch(tmp_path: Path) -> None:
    """FAULT: it sent the bytes as they lay there; a client that checks no CRC took them."""
    async with running(tmp_path, queues=1) as shard:
        for value in (b"0", b"1", b"2"):
            await put(shard, QUEUES[0], value)
        flip(shard, 1)
        with capture_logs() as logs, pytest.raises(DamagedBatch):
            await chunks_of(StreamedResponse([planned(shard, 0).stored]))
        segment, position, _ = place(shard, 1)
        assert [(one["event"], one["segment"], one["position"]) for one in logs] == [
            ("batch_damaged", segment, position)
        ]
        assert shard.segments.damage.counters.batches_damaged == 1
        before, at, behind = planned(shard, 0), planned(shard, 1), planned(shard, 2)
        assert [one[0] for one in before.batches] == [0]
        assert (at.code, at.size, at.high_watermark) == (Code.CORRUPT_MESSAGE, 0, 3)
        assert [one[0] for one in behind.batches] == [2]
        for found in before, behind:
            assert len(await chunks_of(StreamedResponse([found.stored]))) == 1


async def test_a_batch_that_the_disk_does_not_give_is_asked_for_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, queues=1) as shard:
        await put(shard, QUEUES[0], b"0")
        where = place(shard, 0)

        def fails(*_: Any) -> bool:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(Segments, "read_run", fails)
        with pytest.raises(DamagedBatch, match="Input/output error"):
            shard.segments.batch(*where)
        assert planned(shard, 0).code == Code.CORRUPT_MESSAGE
        monkeypatch.undo()
        monkeypatch.setattr("kproxy.store.damage.monotonic", lambda: 1e12)
        assert planned(shard, 0).code == Code.NONE
        assert shard.segments.batch(*where) == batch(b"0")


def test_all_who_read_batches_check_them() -> None:
    """A reader of a segment's bytes without their CRC could give damage a new one.

    Lanes are looked for in many batches that are read at once, and checked one by one.
    """
    readers = {
        str(path.relative_to(ROOT / "kproxy"))
        for path in (ROOT / "kproxy").rglob("*.py")
        if re.search(r"\.read_(into|run)\(", path.read_text())
    }
    assert readers == {
        "fetching/streamed_response.py", "shares/lanes/reading.py", "store/segments.py",
    }  # fmt: skip


async def test_delayed_records_of_a_damaged_batch_wait_and_others_come() -> None:
    """FAULT: records of a mixed batch got a new CRC, damaged as they were."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    other = QUEUES[1], 0
    shard.apply(CreateQueue(KEY[0], "q", 1, {}).envelope())
    shard.apply(CreateQueue(other[0], "r", 1, {}).envelope())
    for key in KEY, other:
        shard.apply(later(key, mixed(NONE, (-20, b"a"), (-10, b"b"))))
        if key == KEY:
            shard.segments.data[-3] ^= 1
    clock: Any = Later()
    looker = Looker(shard, Means(worker.catalogue, worker.config, clock))
    with capture_logs() as logs:
        await looker.scan_once()
    ends = [present(shard.state.partition(key)).next_offset for key in (KEY, other)]
    assert ends == [0, 2]
    assert [one["event"] for one in logs] == ["batch_damaged", "delayed_unreadable"]


async def test_a_worker_makes_a_damaged_copy_again(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1) as shard:
        await Housekeeper(shard, config(), shards=1).round()
        shard.segments.damage.note(0, 0, "is not what was written", lasts=True)
        await Housekeeper(shard, config()).round()
        with pytest.raises(LogChanged, match="damaged"):
            await Housekeeper(shard, config(), shards=1).round()
