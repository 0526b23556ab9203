"""Everything that the READMEs show on a terminal, run as it stands there.

tests/spark/test_readme.py has the tour of spark_examples.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness import ROOT, SPARK_ENV, SPARK_JARS, need, need_program, served

MILLION, HERE = "1000000", "20000"
"""The number of queues that a page makes, and the number that is made here."""
_PATIENCE_S = 30
_EXAMPLE = re.compile(r"^```sh\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.S | re.M)
_READS = re.compile(r"kproxy (consume|describe|queues|groups) |kcat .* -C ")
_LINES_MAX = 180


def sessions(page: str) -> list[tuple[str, str]]:
    """Return (commands, expected output) of each `sh` block, in order."""
    text = (ROOT / page).read_text()
    return [(found[1].rstrip("\n"), found[2] or "") for found in _EXAMPLE.finditer(text)]


def only_reads(commands: str) -> bool:
    """Whether they may be run again: what they look for may be on its way."""
    return all(_READS.match(line) for line in commands.split("\n"))


def addressed(commands: str, address: str) -> str:
    """Return the commands for a server that is elsewhere."""
    lines = commands.replace("127.0.0.1:9092", address).split("\n")
    for number, line in enumerate(lines):
        if "first_read.py" in line:
            lines[number] += f" {address}"
    return "\n".join(lines)


def installed(directory: Path) -> dict[str, str]:
    """Return an environment in which `kproxy` is this checkout's."""
    program = directory / "bin" / "kproxy"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kproxy "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    modules = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **SPARK_ENV, "PATH": path, "PYTHONPATH": modules}


@pytest.mark.parametrize(
    ("page", "least"),
    [("README.md", 3), ("docs/tour.md", 11), ("docs/tools.md", 3), ("docs/operations.md", 1)],
)
def test_the_page_prints_what_it_says(tmp_path: Path, page: str, least: int) -> None:
    commands = sessions(page)
    assert len(commands) >= least
    if any("spark_examples/" in command for command, _ in commands):
        need_program("java")
        need(SPARK_JARS.exists(), "Spark's Kafka jars: make spark-jars")
    here = tmp_path / "checkout"
    here.mkdir()
    for name in (".venv", ".tools", "spark_examples"):
        (here / name).symlink_to(ROOT / name)
    with served(tmp_path / "data") as server:
        env = installed(tmp_path) | {"KPROXY_BOOTSTRAP_SERVER": server.address}
        for command, expected in commands:
            there = addressed(command.replace(MILLION, HERE), server.address)
            wanted, until = expected.rstrip().replace(MILLION, HERE), time.monotonic() + _PATIENCE_S
            while True:
                done = run(there, here, env)
                said = done.stdout.rstrip()
                if said == wanted or not only_reads(command) or time.monotonic() > until:
                    break
            assert done.returncode == 0, (command, done.stderr)
            assert said == wanted, (command, done.stderr)


def run(command: str, directory: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-e", "-c", command], capture_output=True, text=True, cwd=directory, timeout=300,
        check=False, env=env,
    )  # fmt: skip


def test_examples_can_be_pasted() -> None:
    """No prompt stands before a command or within it."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*examples/**/*.md")]
    for page in pages:
        text = page.read_text()
        assert "```console" not in text, page
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.S | re.M):
            assert not re.search(r"^[$>] ", block, re.M), (page, block)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= _LINES_MAX
