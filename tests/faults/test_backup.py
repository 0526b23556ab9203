"""Backups and restores that are killed in the middle, or find no room."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy.store.backups import NAME, UNFINISHED
from tests.faults.conftest import tmpfs
from tests.forked import begin_kproxy
from tests.harness import eventually, served, stand_still
from tests.tools.test_backup import back_up, kproxy, restore
from tests.wire import Wire, batch

MIB = 1 << 20
RECORDS = 40
STAGING = "backup-staging"


def stopped_where(process: "subprocess.Popen[str]", reached: Path) -> None:
    """Have it stand still once there is this path."""

    def there() -> bool:
        assert process.poll() is None, process.communicate()
        return reached.exists()

    eventually(there, 60, 0.0005)
    stand_still(process)
    assert process.poll() is None


def fill(wire: Wire) -> None:
    for _ in range(RECORDS):
        assert wire.produce("q", batch(os.urandom(MIB))).error_code == 0


def test_a_backup_is_killed_and_so_is_the_server_under_another(tmp_path: Path) -> None:
    data, flags = tmp_path / "data", ("--segment-bytes", "4MiB", "--batch-bytes-max", "2MiB")
    with served(data, *flags) as server:
        with Wire(server.host, server.port) as wire:
            fill(wire)
        killed = begin_kproxy("backup", "--copy", "--data-dir", data, "--to", tmp_path / "b1")
        stopped_where(killed, tmp_path / "b1" / "shard-0" / "log")
        assert (data / STAGING).exists()
        refused = kproxy("backup", "--data-dir", data, "--to", tmp_path / "b2", status=1)
        assert "under way" in refused
        killed.kill()
        killed.communicate()
        eventually(lambda: not (data / STAGING).exists())
        assert not (tmp_path / "b1" / NAME).exists()
        for tried in (
            ("restore", "--from", tmp_path / "b1", "--data-dir", tmp_path / "r1"),
            ("check", tmp_path / "b1"),
            ("backup", "--data-dir", data, "--to", tmp_path / "b1"),
        ):
            kproxy(*tried, status=1)
        assert not (tmp_path / "r1").exists()
        goes_on = begin_kproxy("backup", "--copy", "--data-dir", data, "--to", tmp_path / "b3")
        stopped_where(goes_on, tmp_path / "b3" / "shard-0" / "log")
        server.kill()
        goes_on.send_signal(signal.SIGCONT)
        said = goes_on.communicate(timeout=60)
        assert goes_on.returncode == 0, said
    assert (data / STAGING).exists()
    kproxy("check", tmp_path / "b3")
    restored = restore(tmp_path / "b3", tmp_path / "r3")
    for directory in (data, restored):
        with served(directory, *flags) as server, Wire(server.host, server.port) as wire:
            assert not (directory / STAGING).exists()
            assert wire.list_offset("q", -1).offset == RECORDS


def test_a_restore_is_killed_and_begun_anew(tmp_path: Path) -> None:
    data, restored = tmp_path / "data", tmp_path / "r"
    with served(data, "--segment-bytes", "4MiB", "--batch-bytes-max", "2MiB") as server:
        with Wire(server.host, server.port) as wire:
            fill(wire)
            backup = back_up(data, tmp_path / "b")
            given = wire.producer_id()
    for reached in (restored / "shard-0" / "log", restored / "shard-0" / "rows"):
        killed = begin_kproxy("restore", "--from", backup, "--data-dir", restored)
        stopped_where(killed, reached)
        killed.kill()
        killed.communicate()
        assert (restored / UNFINISHED).exists()
        serve = ("serve", "--data-dir", restored, "--listen", "127.0.0.1:0")
        assert "not finished" in kproxy(*serve, status=1)
    restore(backup, restored)
    kproxy("check", restored)
    with served(restored) as server, Wire(server.host, server.port) as wire:
        assert wire.list_offset("q", -1).offset == RECORDS
        assert wire.producer_id() > given


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path, RECORDS // 2) as mount:
        yield mount


def test_there_is_no_room(small_disk: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data, "--segment-bytes", "4MiB", "--batch-bytes-max", "2MiB") as server:
        with Wire(server.host, server.port) as wire:
            fill(wire)
            said = kproxy("backup", "--data-dir", data, "--to", small_disk / "b", status=1)
            assert "No space left" in said
            assert "not whole" in said
            assert not (small_disk / "b" / NAME).exists()
            eventually(lambda: not (data / STAGING).exists())
            assert wire.produce("q", batch(b"v")).error_code == 0
        backup = back_up(data, tmp_path / "b")
    said = kproxy("restore", "--from", backup, "--data-dir", small_disk / "r", status=1)
    assert "No space left" in said
    assert (small_disk / "r" / UNFINISHED).exists()
