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


LEAVING = """
import subprocess

def test_leaves_a_process():
    subprocess.Popen(["/bin/sleep", "60"])

def test_ends_it():
    subprocess.run(["/bin/sleep", "0"])
"""


def _said(tmp_path: Path, tests: str) -> str:
    (tmp_path / "test_it.py").write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.running.timeouts", "-p", "no:cacheprovider",
         "-o", "anyio_mode=auto", "-o", "markers=limit", "-rfE", "test_it.py",
         "--rootdir", str(tmp_path)],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.stdout


def test_hanging_tests_fail_and_the_next_one_runs(tmp_path: Path) -> None:
    said = _said(tmp_path, HANGING)
    assert "1 passed, 1 error" in said
    assert "FAILED test_it.py::test_hangs - Failed: not done within 0.3 s" in said
    assert "FAILED test_it.py::test_hangs_in_a_loop[asyncio]" in said
    assert "ERROR test_it.py::test_setup_hangs - Failed: not done" in said


def test_the_test_that_leaves_a_process_fails(tmp_path: Path) -> None:
    said = _said(tmp_path, LEAVING)
    assert "ERROR test_it.py::test_leaves_a_process - Failed: the test left processes" in said
    assert "2 passed, 1 error" in said
