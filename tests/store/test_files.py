import os
from pathlib import Path

import pytest

from kproxy.cluster.rebuild import wipe
from kproxy.shard.opening import open_local
from kproxy.store import files
from kproxy.store.directory_lock import locked
from tests.shard.test_shard import config


class Names:
    """The directories that were forced to disk, with the names that each had then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.forced: dict[Path, set[str]] = {}
        self._real = os.fsync
        patch.setattr(os, "fsync", self._fsync)

    def _fsync(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            self.forced[path] = {one.name for one in path.iterdir()}
        self._real(fd)

    def is_durable(self, path: Path) -> bool:
        return path.name in self.forced.get(path.parent, ())


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


def test_the_name_of_each_directory_of_a_new_shard_is_durable(tmp_path: Path, names: Names) -> None:
    """FAULT: a power cut could leave a data directory without its shard, or none at all."""
    data_dir = tmp_path / "above" / "data"
    with locked(data_dir):
        shard = open_local(data_dir / "shard-0", config())
        shard.close()
    made = [data_dir.parent, data_dir, data_dir / "shard-0"]
    made += [data_dir / "shard-0" / name for name in ("log", "rows")]
    assert [path for path in made if not names.is_durable(path)] == []


def test_a_directory_that_a_kill_left_is_made_durable(tmp_path: Path, names: Names) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    files.make_directory(directory)
    assert names.is_durable(directory)


def test_a_wiped_copy_does_not_come_back(tmp_path: Path, names: Names) -> None:
    """FAULT: a power cut could bring back the rows of a copy beside the log of the next one."""
    directory = tmp_path / "shard-1"
    files.make_directory(directory / "rows")
    wipe(directory)
    assert names.forced[tmp_path] == set()
    wipe(directory)
