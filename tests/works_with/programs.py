"""Programs with libraries of their own, which are fetched once in a run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.workers import Site

HERE = Path(__file__).parent
BUILD_S, RUN_S = 600, 180
REQUIREMENTS = {
    "faust_counts": ("faust-streaming==0.15.3",),
    "quix_copy": ("quixstreams==3.28.1",),
    "faststream_copy": ("faststream[kafka]==0.7.8",),
    "celery_tasks": ("celery==5.7.0", "kombu[confluentkafka]==5.7.0"),
    "bytewax_flow": ("bytewax==0.21.1", "confluent-kafka==2.16.1"),
}
"""The libraries of each Python program."""


def one_of(site: Site) -> str:
    """Return the address of one worker, for what takes no list of them."""
    return site.address.partition(",")[0]


def run(*command: str, directory: Path = HERE, seconds: float = RUN_S, **environment: str) -> str:
    """Return a program's output. Fails the test if the program fails."""
    done = subprocess.run(
        command, cwd=directory, env=os.environ | environment, capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    return done.stdout


def said(printed: str) -> Any:
    """Return the last line that a program printed, which is JSON."""
    return json.loads(printed.strip().splitlines()[-1])


def python_program(factory: pytest.TempPathFactory, name: str, *arguments: str) -> Any:
    """Run a Python program with its libraries; return what it says."""
    libraries = factory.getbasetemp() / f"libraries-of-{name}"
    if not libraries.exists():
        run(
            sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target",
            str(libraries), *REQUIREMENTS[name], seconds=BUILD_S,
        )  # fmt: skip
    printed = run(
        sys.executable, str(HERE / "python" / f"{name}.py"), *arguments,
        PYTHONPATH=str(libraries), PYTHONWARNINGS="ignore",
    )  # fmt: skip
    return said(printed)
