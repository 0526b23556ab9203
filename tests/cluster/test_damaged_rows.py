from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from kproxy.cluster.node import _DAMAGED, _catalogue_rows
from kproxy.cluster.shard_owner import ShardOwner
from kproxy.common.counters import Counters
from kproxy.loop.clock import SYSTEM_CLOCK
from kproxy.loop.threads import Stop
from kproxy.store.rocks import RocksKv, RowsDamaged
from tests.shard.test_shard import config


@pytest.mark.parametrize("what", ["CURRENT", "MANIFEST-*", _DAMAGED])
def test_damaged_rows_of_the_catalogue_are_read_again(tmp_path: Path, what: str) -> None:
    """FAULT: the worker did not start any more, though the topic has all that its rows had."""
    directory = tmp_path / "queues"
    rows = _catalogue_rows(directory, 1 << 20)
    rows.write({b"a": b"1"})
    rows.flush()
    rows.close()
    rows = _catalogue_rows(directory, 1 << 20)
    assert rows.get(b"a") == b"1"
    rows.close()
    if what == _DAMAGED:
        (directory / what).touch()
    else:
        next(directory.glob(what)).write_bytes(bytes(20))
    with capture_logs() as logs:
        rows = _catalogue_rows(directory, 1 << 20)
    assert rows.get(b"a") is None
    assert [one["event"] for one in logs] == ["catalogue_damaged"] * (what != _DAMAGED)
    rows.close()


class Site:
    """A worker's means, as far as a copy is opened with them."""

    config, counters = config(), Counters()
    clock = SYSTEM_CLOCK
    link = SimpleNamespace(writer=1)
    disk_space = level = None


def test_a_copy_whose_rows_are_damaged_is_closed_before_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: its rows stayed open, and the new copy could not lock them."""
    site: Any = Site()
    owner = ShardOwner(0, 1, tmp_path, site)
    RocksKv(tmp_path / "rows", 1 << 20).close()

    def scan(kv: RocksKv, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        raise RowsDamaged("block checksum mismatch")

    opened = []
    make = RocksKv.__init__

    def kept(kv: RocksKv, *asked: Any) -> None:
        opened.append(kv)
        make(kv, *asked)

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(RocksKv, "__init__", kept)
        patch.setattr(RocksKv, "scan", scan)
        assert owner._open_local(Stop()) is None
    assert len(opened) == 1
    assert [one["event"] for one in logs] == ["local_copy_damaged"]
    RocksKv(tmp_path / "rows", 1 << 20).close()
