"""Servers and disks that tests do harm to."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.servers import WORKERS, Servers, disturbed
from tests.harness import need


@pytest.fixture(params=["embedded", "kafka"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """Yield servers of each kind, with the FLAGS of the module, and WORKERS where it says so."""
    kafka = request.getfixturevalue("kafka") if request.param == "kafka" else None
    flags = getattr(request.module, "FLAGS", ())
    count = getattr(request.module, "WORKERS", WORKERS)
    with disturbed(tmp_path, kafka, *flags, count=count) as running:
        yield running


@contextmanager
def tmpfs(directory: Path, mebibytes: int) -> Iterator[Path]:
    """Provide a small disk, for the length of a block."""
    mount = directory / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(mount)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    need(done.returncode == 0, f"the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)
