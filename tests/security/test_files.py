"""The files on disk are for kproxy's own user: records, and the keys of users."""

from pathlib import Path

from tests.forked import run_kproxy
from tests.harness import served
from tests.securing import put_user
from tests.wire import Wire, batch


def open_to_others(directory: Path) -> list[Path]:
    return [path for path in (directory, *directory.rglob("*")) if path.stat().st_mode & 0o077]


def test_nobody_else_reads_what_kproxy_writes(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with served(data) as server:
        with Wire("127.0.0.1", server.port) as wire:
            assert put_user(wire, "alice", "secret") == {"alice": 0}
            assert wire.produce("q", batch(b"v")).error_code == 0
        assert not server.event("data_dir_readable_by_others")
        assert run_kproxy("backup", "--to", backup, "--data-dir", data).returncode == 0
        assert not open_to_others(data)
        assert not open_to_others(backup)


def test_files_of_an_older_kproxy_are_told(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    (data / "LOCK").touch()
    (data / "LOCK").chmod(0o644)  # a command run here may have left its umask
    with served(data) as server:
        event = server.event("data_dir_readable_by_others")
        assert event
        assert event["hint"].endswith(f"chmod -R go= {data}")
    data.chmod(0o700)
    with served(data) as server:
        assert not server.event("data_dir_readable_by_others")
