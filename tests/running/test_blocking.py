"""The finder of blocking calls finds them, and only those."""

import os
from pathlib import Path
from typing import Any

from anyio import to_thread

from kproxy.log.disk_space import DiskSpace
from tests.harness import ROOT
from tests.running.blocking import ALLOWED, blocking_calls


async def test_a_blocking_call_in_the_loop_is_found(tmp_path: Path) -> None:
    space = DiskSpace(tmp_path, 0)
    with blocking_calls() as found:
        os.listdir(tmp_path)  # a test's own
        await to_thread.run_sync(space.free_bytes)
        assert not found
        space.free_bytes()
    assert found == ["os.statvfs by log/disk_space.py:free_bytes"]


def test_each_exception_names_a_function() -> None:
    root: Any = ROOT / "kproxy"
    for place in ALLOWED:
        path, _, name = place.partition(":")
        assert f"def {name}(" in (root / path).read_text(), place
