"""A full disk: a small tmpfs. Produces are refused, reads and deletes go on, nothing is lost."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.faults.conftest import tmpfs
from tests.harness import Served, eventually, need_program, served
from tests.wire import Wire, batch

MIB = 1 << 20
SIZE_MIB = 64
_SERVED: list[Served] = []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path, SIZE_MIB) as mount:
        try:
            yield mount
        finally:
            for server in _SERVED:
                server.kill()
            _SERVED.clear()


def serve(mount: Path, spare: str = "8MiB", *flags: str) -> Served:
    server = Served(
        mount / "data", "--disk-free-bytes-min", spare, "--segment-bytes", "4MiB",
        "--keeper-period-ms", "50", "--rows-flush-bytes", "1MiB", *flags,
    )  # fmt: skip
    _SERVED.append(server)
    return server.wait_ready()


def fill(wire: Wire, queue: str, pid: int, sequence: int = 0) -> tuple[int, bytes]:
    """Write until refused; (how many were acknowledged, the batch that was refused)."""
    while True:
        data = batch(b"x" * 500_000, producer_id=pid, epoch=0, sequence=sequence)
        answer = wire.produce(queue, data)
        if answer.error_code:
            assert answer.error_code == 56
            return sequence, data
        sequence += 1


def fill_up(mount: Path) -> None:
    """Write until nothing fits, as another program may."""
    with (mount / "junk").open("ab", buffering=0) as junk, suppress(OSError):
        while True:
            junk.write(bytes(4096))


def test_refused_then_freed_by_a_delete_and_stored_once(small_disk: Path) -> None:
    server = serve(small_disk)
    with Wire(server.host, server.port) as wire:
        pid = wire.producer_id()
        fill(wire, "old", wire.producer_id())
        wire.delete("old")
        eventually(lambda: wire.produce("new", batch(b"x" * 500_000)).error_code == 0)
        wire.delete("new")
        eventually(
            lambda: (server.event("segment_deleted"), wire.create("keep").error_code in (0, 36))[1]
        )
        wire.produce("other", batch(b"y" * 500_000))
        kept, refused = fill(wire, "keep", pid)
        assert kept > 20
        assert wire.fetch("keep", 0).error_code == 0
        assert wire.fetch("other", 0).records
        assert wire.produce("keep", refused).error_code == 56
        assert wire.list_offset("keep", -1).offset == kept
        assert wire.delete("other").error_code == 0
        trimmed = wire.call(ApiKey.DELETE_RECORDS, 2, {"timeout": 5000, "topics": [
            {"name": "keep", "partitions": [{"partition_index": 0, "offset": kept // 2}]}
        ]}).topics[0].partitions[0]  # fmt: skip
        assert (trimmed.error_code, trimmed.low_watermark) == (0, kept // 2)
        stored = eventually(
            lambda: [a for a in [wire.produce("keep", refused)] if not a.error_code]
        )
        assert stored[0].base_offset == kept
        assert wire.produce("keep", refused).base_offset == kept, "a retry is stored once"
        assert wire.list_offset("keep", -1).offset == kept + 1
    eventually(lambda: server.event("disk_full"))
    eventually(lambda: server.event("disk_has_room"))
    assert server.stop() == 0
    assert not server.faults()


def test_another_process_fills_the_disk_for_real(small_disk: Path) -> None:
    server = serve(small_disk, "8MiB", "--rows-flush-ms-max", "100")
    junk = small_disk / "junk"
    with Wire(server.host, server.port) as wire:
        pid = wire.producer_id()
        data = [batch(b"%d" % i * 1000, producer_id=pid, epoch=0, sequence=i) for i in range(9)]
        for i in range(5):
            assert wire.produce("q", data[i]).base_offset == i
        wire.produce("victim", batch(b"v"))
        eventually(lambda: (small_disk / "data" / "shard-0" / "RESERVE").exists())
        with junk.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65536))
            except OSError:
                pass
        big = batch(b"z" * 900_000, producer_id=pid, epoch=0, sequence=5)
        assert wire.produce("q", big).error_code == 56
        eventually(lambda: server.event("disk_reserve_released"))
        assert wire.fetch("q", 4).error_code == 0
        assert wire.fetch("q", 0).high_watermark == 5
        assert wire.delete("victim").error_code == 0
        junk.unlink()
        assert wire.produce("q", big).base_offset == 5
        assert wire.produce("q", big).base_offset == 5
        assert wire.produce("q", data[6]).base_offset == 6
    server.kill()
    again = serve(small_disk)
    with Wire(again.host, again.port) as wire:
        assert wire.list_offset("q", -1).offset == 7
    assert again.stop() == 0
    assert not again.faults()


def test_a_write_that_really_fails_is_undone(data_dir: Path) -> None:
    """A file size limit makes the log's own write fail halfway."""
    limited = (need_program("prlimit"), "--fsize=3000000")
    server = Served(data_dir, prefix=limited).wait_ready()
    with Wire(server.host, server.port) as wire:
        pid = wire.producer_id()
        stored, refused = fill(wire, "q", pid)
        assert stored == 5
        eventually(lambda: server.event("commit_failed"))
        assert wire.list_offset("q", -1).offset == stored
        assert wire.fetch("q", stored - 1).records
        assert wire.produce("q", refused).error_code == 56
        small = batch(b"small", producer_id=pid, epoch=0, sequence=stored)
        assert wire.produce("q", small).base_offset == stored
    server.kill()
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        assert not again.event("log_tail_cut")
        assert wire.list_offset("q", -1).offset == stored + 1


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_on_a_disk_that_others_filled(small_disk: Path, killed: bool) -> None:
    """FAULT: it was refused, though the reserve for it was there."""
    server = serve(small_disk)
    with Wire(server.host, server.port) as wire:
        for _ in range(3):
            assert wire.produce("q", batch(b"x" * 1000)).error_code == 0
    eventually(lambda: (small_disk / "data/shard-0/RESERVE").exists())
    if killed:
        server.kill()
    else:
        assert server.stop() == 0
    fill_up(small_disk)
    server = serve(small_disk)
    with Wire(server.host, server.port) as wire:
        assert wire.fetch("q", 0).high_watermark == 3
        assert wire.delete("q").error_code == 0


def test_a_stop_on_a_full_disk_is_one_line(small_disk: Path) -> None:
    """FAULT: it was a trace."""
    no_flush_before = ("--rows-flush-bytes", "1GiB", "--rows-flush-ms-max", "3600000")
    server = serve(small_disk, "8MiB", *no_flush_before)
    with Wire(server.host, server.port) as wire:
        pid = wire.producer_id()
        acknowledged, _ = fill(wire, "q", pid)
    fill_up(small_disk)
    eventually(lambda: server.event("disk_reserve_released"))
    fill_up(small_disk)  # with what the reserve held
    assert server.stop() == 0  # the log has all of it
    assert server.event("rows_not_flushed")  # one for each shard at most
    assert not [line for line in server.raw if "Traceback" in line or "kproxy: " in line]
    (small_disk / "junk").unlink()
    server = serve(small_disk)
    with Wire(server.host, server.port) as wire:
        assert wire.fetch("q", 0).high_watermark == acknowledged
