"""A test that hangs fails; the next one runs."""

import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT

HANGING = """
import asyncio, threading
import pytest
pytestmark = pytest.mark.limit(0.3)

def test_hangs():
    threading.Event().wait()

async def test_hangs_in_a_loop():
    await asyncio.Event().wait()

@pytest.fixture
def hangs():
    threading.Event().wait()

def test_setup_hangs(hangs):
    pass

def test_is_quick():
    pass
"""


def test_hanging_tests_fail_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.running.timeouts", "-p", "no:cacheprovider",
         "-o", "anyio_mode=auto", "-o", "markers=limit", "-rfE", "test_hanging.py",
         "--rootdir", str(tmp_path)],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert "1 passed, 1 error" in done.stdout
    assert "FAILED test_hanging.py::test_hangs - Failed: not done within 0.3 s" in done.stdout
    assert "FAILED test_hanging.py::test_hangs_in_a_loop[asyncio]" in done.stdout
    assert "ERROR test_hanging.py::test_setup_hangs - Failed: not done" in done.stdout
